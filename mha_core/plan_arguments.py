"""What a plan is given, checked and brought into one form. Errors are sentences for the person who made the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from mha_core.head_ref import HeadRef, InterventionError


class SiteShape(Protocol):
    """The sizes a plan is checked against."""

    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...


def require_only_with(kind: str, needs: str, name: str, value: object) -> None:
    """A kind that needs an argument has it, and no other kind does."""
    if kind == needs and value is None:
        raise InterventionError(f"kind {kind!r} needs {name}; none was given.")
    if kind != needs and value is not None:
        raise InterventionError(f"{name} was given with kind {kind!r}; only kind {needs!r} uses it.")


def head_tuple(heads: Iterable[HeadRef | str] | HeadRef | str) -> tuple[HeadRef, ...]:
    """Heads in whatever form they were named, each once."""
    if isinstance(heads, (HeadRef, str)):
        heads = (heads,)
    parsed = tuple(dict.fromkeys(h if isinstance(h, HeadRef) else HeadRef.parse(h) for h in heads))
    if not parsed:
        raise InterventionError("An ablation needs at least one head, such as L1H5; none was given.")
    return parsed


def int_tuple(name: str, values: Iterable[int] | None) -> tuple[int, ...] | None:
    """Whole numbers, each once; None stays None and means all."""
    if values is None:
        return None
    numbers = tuple(dict.fromkeys(values))
    if not numbers:
        raise InterventionError(f"{name} is empty; give at least one number, or leave it out to mean all.")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise InterventionError(f"{name} holds {number!r}; it must hold whole numbers.")
    return numbers


def reference_of(reference: str | Sequence[str]) -> str | tuple[str, ...]:
    """What a mean is taken over: "corpus", "sentence", or sentences."""
    if isinstance(reference, str):
        if reference not in ("corpus", "sentence"):
            raise InterventionError(
                f'reference is {reference[:60]!r}; it must be "corpus", "sentence", or a tuple of sentences.'
            )
        return reference
    sentences = tuple(reference)
    if not sentences or not all(isinstance(s, str) and s.strip() for s in sentences):
        raise InterventionError("reference must hold at least one sentence and no empty one.")
    return sentences


def short_reference(reference: str | tuple[str, ...]) -> str:
    """The same for a plan's name."""
    return f"of the {reference}" if isinstance(reference, str) else f"of {len(reference)} sentences"


def check_knockout_heads(heads: tuple[Any, ...], layers: object, site: str) -> None:
    """A knockout names heads of its site, or head numbers in the layers it names, not both."""
    if not heads:
        raise InterventionError("heads is empty; name at least one head, or leave it out to mean every head.")
    refs = [h for h in heads if isinstance(h, HeadRef)]
    numbers = [h for h in heads if isinstance(h, int) and not isinstance(h, bool) and h >= 0]
    if len(refs) + len(numbers) != len(heads) or (refs and numbers):
        raise InterventionError("heads must all be HeadRefs (L1H5) or all be head numbers from 0.")
    if refs and layers is not None:
        raise InterventionError("layers was given together with heads that name their own layer; leave one out.")
    strangers = [str(h) for h in refs if h.site != site]
    if strangers:
        raise InterventionError(f"{', '.join(strangers)} is not in site {site!r}, which this knockout is for.")


def site_of(sites: Mapping[str, SiteShape], site: str, what: str) -> SiteShape:
    """A model's site. what: who asks, for the error."""
    if site not in sites:
        raise InterventionError(f"{what} is in {site!r}; this model has {', '.join(sites)}.")
    return sites[site]


def check_head(sites: Mapping[str, SiteShape], head: HeadRef) -> None:
    """The model has this head."""
    shape = site_of(sites, head.site, str(head))
    for what, number, count in (("layer", head.layer, shape.n_layers), ("head", head.head, shape.n_heads)):
        if number >= count:
            raise InterventionError(
                f"{head} names {what} {number}; this model has {count} {what}s there, numbered 0 to {count - 1}."
            )


def absolute(numbers: tuple[int, ...], length: int, what: str) -> tuple[int, ...]:
    """Positions counted from 0, checked against `length` tokens."""
    for number in numbers:
        if not -length <= number < length:
            raise InterventionError(
                f"{what} {number} does not exist; the sentence has {length} tokens, numbered 0 to {length - 1} "
                f"(or -{length} to -1 from the end)."
            )
    return tuple(dict.fromkeys(number % length for number in numbers))
