"""What is changed in a run: frozen, hashable data that goes to JSON and back. No behaviour.

Layers, heads and positions count from 0. A negative position counts from the end: -1 is the last token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mha_core.head_ref import SITES, HeadRef, InterventionError
from mha_core.plan_arguments import (
    SiteShape,
    absolute,
    check_head,
    check_knockout_heads,
    head_tuple,
    int_tuple,
    reference_of,
    require_only_with,
    short_reference,
    site_of,
)

__all__ = [
    "KINDS",
    "SITES",
    "AttentionKnockout",
    "HeadAblation",
    "HeadRef",
    "Intervention",
    "InterventionError",
    "Interventions",
]
KINDS = ("zero", "mean", "resample", "scale", "uniform")


@dataclass(frozen=True, init=False)
class HeadAblation:
    """Switch heads off, or replace what they put out, before the output projection.

    heads: `HeadRef`s or their names ("L1H5").
    kind: what z (the head's output, [position, d_head]) becomes:
        "zero": 0.
        "mean": the head's mean output over `reference`.
        "resample": the head's output for the sentence `source`, at the same positions.
        "scale": `factor` times itself.
        "uniform": its weights are spread evenly over the keys it may attend to.
    positions: query positions where it applies; None: all.
    reference: for "mean": "corpus" (the model's reference sentences, `Model.corpus`), "sentence" (this sentence's own
        positions: later words then reach earlier ones, so that per-token loss is no longer a language model's loss),
        or a tuple of sentences.
    source: for "resample": a sentence of the same length in tokens.
    factor: for "scale".
    """

    heads: tuple[HeadRef, ...]
    kind: str
    positions: tuple[int, ...] | None
    reference: str | tuple[str, ...]
    source: str | None
    factor: float | None

    def __init__(
        self,
        heads: Iterable[HeadRef | str] | HeadRef | str,
        kind: str = "zero",
        positions: Iterable[int] | None = None,
        *,
        reference: str | Sequence[str] = "corpus",
        source: str | None = None,
        factor: float | None = None,
    ) -> None:
        if kind not in KINDS:
            raise InterventionError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}.")
        require_only_with(kind, "resample", "source", source)
        require_only_with(kind, "scale", "factor", factor)
        if source is not None and (not isinstance(source, str) or not source.strip()):
            raise InterventionError(f"source is {source!r}; it must be a sentence.")
        if factor is not None and (isinstance(factor, bool) or not isinstance(factor, (int, float))):
            raise InterventionError(f"factor is {factor!r}; it must be a number.")
        if factor is not None and not -1e6 < factor < 1e6:  # also refuses NaN
            raise InterventionError(f"factor is {factor}; it must be a number between -1,000,000 and 1,000,000.")
        if kind != "mean":
            reference = "corpus"  # one spelling per meaning, so that equal plans are equal
        _set(
            self, heads=head_tuple(heads), kind=kind, positions=int_tuple("positions", positions),
            reference=reference_of(reference), source=source, factor=None if factor is None else float(factor),
        )  # fmt: skip

    def __str__(self) -> str:
        details = {"mean": f" ({short_reference(self.reference)})", "resample": f" from {self.source!r}"}
        detail = f" × {self.factor:g}" if self.factor is not None else details.get(self.kind, "")
        where = "" if self.positions is None else f" at positions {', '.join(map(str, self.positions))}"
        return f"{self.kind}{detail}: {', '.join(map(str, self.heads))}{where}"


@dataclass(frozen=True, init=False)
class AttentionKnockout:
    """Queries at `dst` may not attend to keys at `src`; the other weights of the row renormalise (Geva et al. 2023).

    src: key positions. dst: query positions.
    heads: `HeadRef`s or names; or plain head numbers, which then count in each of `layers`; None: every head.
    layers: layer numbers; None: every layer. Not together with `HeadRef`s, which name their layer.
    site: where the positions are; in an encoder-decoder "cross" takes `src` in the source and `dst` in the target.
    """

    src: tuple[int, ...]
    dst: tuple[int, ...]
    heads: tuple[HeadRef | int, ...] | None
    layers: tuple[int, ...] | None
    site: str

    def __init__(
        self,
        src: Iterable[int],
        dst: Iterable[int],
        heads: Iterable[HeadRef | str | int] | None = None,
        layers: Iterable[int] | None = None,
        site: str = "self",
    ) -> None:
        if site not in SITES:
            raise InterventionError(f"site is {site!r}; it must be one of {', '.join(SITES)}.")
        parsed = None if heads is None else tuple(
            dict.fromkeys(HeadRef.parse(h) if isinstance(h, str) else h for h in heads)
        )  # fmt: skip
        if parsed is not None:
            check_knockout_heads(parsed, layers, site)
        _set(self, src=int_tuple("src", src), dst=int_tuple("dst", dst), heads=parsed,
             layers=int_tuple("layers", layers), site=site)  # fmt: skip

    def heads_of(self, layer: int, n_heads: int) -> tuple[int, ...]:
        """The head numbers of one layer that this knockout concerns."""
        if self.heads is not None and any(isinstance(h, HeadRef) for h in self.heads):
            return tuple(h.head for h in self.heads if isinstance(h, HeadRef) and h.layer == layer)
        if self.layers is not None and layer not in self.layers:
            return ()
        return tuple(range(n_heads)) if self.heads is None else tuple(h for h in self.heads if isinstance(h, int))

    def __str__(self) -> str:
        heads = "all heads" if self.heads is None else ", ".join(
            str(h) if isinstance(h, HeadRef) else f"H{h}" for h in self.heads)  # fmt: skip
        layers = "" if self.layers is None else f" of layers {', '.join(map(str, self.layers))}"
        return (f"knockout: {', '.join(map(str, self.dst))} may not look at {', '.join(map(str, self.src))} "
                f"({heads}{layers}{'' if self.site == 'self' else ', ' + self.site})")  # fmt: skip


Intervention = HeadAblation | AttentionKnockout


@dataclass(frozen=True, init=False)
class Interventions:
    """A plan: everything that is changed in one run. Iterable, hashable, empty when nothing is changed."""

    items: tuple[Intervention, ...]

    def __init__(self, items: Iterable[Intervention] | Intervention | None = None) -> None:
        if isinstance(items, (HeadAblation, AttentionKnockout)):
            items = (items,)
        items = tuple(items or ())
        for item in items:
            if not isinstance(item, (HeadAblation, AttentionKnockout)):
                raise InterventionError(
                    f"{item!r} is not an intervention; a plan holds HeadAblation and AttentionKnockout."
                )
        _set(self, items=items)
        _check_overlaps(self.ablations)

    def __iter__(self) -> Iterator[Intervention]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        return "; ".join(map(str, self.items)) or "nothing changed"

    @property
    def ablations(self) -> tuple[HeadAblation, ...]:
        return tuple(item for item in self.items if isinstance(item, HeadAblation))

    @property
    def knockouts(self) -> tuple[AttentionKnockout, ...]:
        return tuple(item for item in self.items if isinstance(item, AttentionKnockout))

    @property
    def heads(self) -> tuple[HeadRef, ...]:
        """Every head that an ablation names, in order, once."""
        return tuple(dict.fromkeys(head for item in self.ablations for head in item.heads))

    def to_json(self) -> str:
        """The plan as JSON text; `from_json` gives an equal plan back. Head and position numbers count from 0."""
        return json.dumps({"version": 1, "items": [_item_to_dict(item) for item in self.items]}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Interventions:
        """Read what `to_json` wrote.

        Raises:
            InterventionError: not JSON, or not a plan; the sentence says which part.
        """
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InterventionError(f"This is not a plan in JSON: {error}.") from None
        items = data.get("items") if isinstance(data, dict) else None
        if not isinstance(items, list):
            raise InterventionError('A plan in JSON is an object with a list "items"; this is something else.')
        if data.get("version", 1) != 1:
            raise InterventionError(f"The plan has version {data['version']!r}; this Headscope reads version 1.")
        return cls([_item_from_dict(item, number) for number, item in enumerate(items)])

    def validated_for(
        self, sites: Mapping[str, SiteShape], lengths: Mapping[str, tuple[int, int]] | None = None
    ) -> Interventions:
        """The same plan with negative positions made absolute, checked against a model's shape.

        Args:
            sites: site name -> something with `n_layers` and `n_heads`.
            lengths: site name -> (queries, keys); None leaves positions unchecked and as they are.

        Raises:
            InterventionError: a head, layer or position that the model or the sentence does not have.
        """
        return Interventions([_validated(item, sites, lengths) for item in self.items])


def _set(instance: object, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def _check_overlaps(ablations: tuple[HeadAblation, ...]) -> None:
    """Two edits of one head at one position would make the result depend on their order."""
    seen: dict[HeadRef, list[tuple[int, ...] | None]] = {}
    for ablation in ablations:
        for head in ablation.heads:
            for positions in seen.setdefault(head, []):
                if positions is None or ablation.positions is None or set(positions) & set(ablation.positions):
                    raise InterventionError(
                        f"{head} is changed twice at the same positions; keep one of the two ablations."
                    )
            seen[head].append(ablation.positions)


def _item_to_dict(item: Intervention) -> dict[str, Any]:
    data: dict[str, Any]
    if isinstance(item, AttentionKnockout):
        heads = None if item.heads is None else [str(h) if isinstance(h, HeadRef) else h for h in item.heads]
        data = {"type": "knockout", "src": item.src, "dst": item.dst, "heads": heads, "layers": item.layers,
                "site": item.site}  # fmt: skip
    else:
        reference = item.reference if item.kind == "mean" else None
        data = {"type": "ablation", "heads": [str(h) for h in item.heads], "kind": item.kind,
                "positions": item.positions, "reference": reference, "source": item.source,
                "factor": item.factor}  # fmt: skip
    return {name: value for name, value in data.items() if value is not None}


_FIELDS = {
    "ablation": (HeadAblation, {"heads", "kind", "positions", "reference", "source", "factor"}),
    "knockout": (AttentionKnockout, {"src", "dst", "heads", "layers", "site"}),
}


def _item_from_dict(data: Any, number: int) -> Intervention:
    kind = data.get("type") if isinstance(data, dict) else None
    if kind not in _FIELDS:
        raise InterventionError(f'Item {number} of the plan has type {kind!r}; it must be "ablation" or "knockout".')
    cls, names = _FIELDS[kind]
    arguments = {name: value for name, value in data.items() if name != "type"}
    unknown = sorted(set(arguments) - names)
    if unknown:
        raise InterventionError(
            f"Item {number} of the plan has {', '.join(unknown)}, which a {kind} does not know; it takes "
            f"{', '.join(sorted(names))}."
        )
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise InterventionError(f"Item {number} of the plan cannot be read: {str(error).rstrip('.')}.") from None


def _validated(
    item: Intervention, sites: Mapping[str, SiteShape], lengths: Mapping[str, tuple[int, int]] | None
) -> Intervention:
    if isinstance(item, HeadAblation):
        return _valid_ablation(item, sites, lengths)
    return _valid_knockout(item, sites, lengths)


def _valid_ablation(
    item: HeadAblation, sites: Mapping[str, SiteShape], lengths: Mapping[str, tuple[int, int]] | None
) -> HeadAblation:
    for head in item.heads:
        check_head(sites, head)
    if lengths is None or item.positions is None:
        return item
    query_lengths = {lengths[head.site][0] for head in item.heads}
    if len(query_lengths) > 1:
        raise InterventionError("positions were given for heads whose sites differ in length; split the ablation.")
    positions = absolute(item.positions, query_lengths.pop(), "position")
    return HeadAblation(
        item.heads, item.kind, positions, reference=item.reference, source=item.source, factor=item.factor
    )


def _valid_knockout(
    item: AttentionKnockout, sites: Mapping[str, SiteShape], lengths: Mapping[str, tuple[int, int]] | None
) -> AttentionKnockout:
    site_of(sites, item.site, "The knockout")
    for layer in item.layers or ():
        check_head(sites, HeadRef(layer, 0, item.site))
    for head in item.heads or ():
        check_head(sites, head if isinstance(head, HeadRef) else HeadRef(0, head, item.site))
    if lengths is None:
        return item
    n_queries, n_keys = lengths[item.site]
    src, dst = absolute(item.src, n_keys, "src"), absolute(item.dst, n_queries, "dst")
    return AttentionKnockout(src, dst, item.heads, item.layers, item.site)
