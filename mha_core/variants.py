"""Many variants of one sentence in few passes: which heads of a row are changed, and to what, is free.

A variant differs from the clean run only from the layer of its first changed head on. So the clean run's block inputs
are kept, and variants run together as rows of one batch that grows: each row joins right before that layer, and
`attend` changes head h of row r. Weights are read once per chunk and layer instead of once per variant, and nothing of
the library's blocks is reimplemented. See `blocks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mha_core.backend import Call, SlotKey
from mha_core.blocks import WAVEFRONT, CleanBlocks, Wavefront
from mha_core.edits import Edit, ReplaceOutput, ScaleOutput
from mha_core.interventions import HeadAblation, HeadRef, InterventionError
from mha_core.model import Model
from mha_core.outcomes import Outcome, outcome_of
from mha_core.pretrained import PretrainedModel
from mha_core.run_inputs import RunInputs, batch_arguments
from mha_core.tokens import Tokens
from mha_core.trace import Trace

Variant = Mapping[HeadRef, Tensor | None]
"""Changed head -> what stands in the place of its z, [1 or position, d_head]; None: zero."""

KINDS = ("zero", "mean", "resample")
_ROWS_TOKENS = 1600  # rows × positions of a chunk: beyond, its activations leave the processor's cache


@dataclass(frozen=True, eq=False)
class Variants:
    """Runs variants of one input.

    model, inputs, clean: the model, the sentence and its unchanged run.
    positions: query positions where heads are changed, counted from 0; None: all.
    memory_budget: bytes that a chunk's activations may take; None: what fits the processor's cache.
    blocks: what the blocks took in and gave back in the clean run (`clean_run`); nothing for our own layer.
    """

    model: Model
    inputs: RunInputs
    clean: Trace
    positions: tuple[int, ...] | None = None
    memory_budget: int | None = None
    blocks: CleanBlocks = field(default_factory=CleanBlocks)

    def chunks(self, variants: Sequence[Variant]) -> Iterator[tuple[list[int], Tensor]]:
        """Variants in chunks: which of them, and their final hidden states [row, position, d_model].

        Raises:
            InterventionError: a variant changes heads of the encoder and of the decoder, which begin in two passes.
        """
        for variant in variants:
            _check(variant)
        if not isinstance(self.model, PretrainedModel):
            for number, variant in enumerate(variants):
                yield [number], self._alone(variant)[None]
            return
        order = sorted(range(len(variants)), key=lambda number: _start(variants[number]))
        size = self._chunk_size(variants)
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            yield numbers, self._together(self.model, [variants[number] for number in numbers])

    def _alone(self, variant: Variant) -> Tensor:
        """Final hidden states of one variant, by a run of its own."""
        edits = {slot: self._edits(places) for slot, places in _by_slot([variant]).items()}
        return self.model.run_edits(self.inputs, edits).hidden

    def _together(self, model: PretrainedModel, variants: Sequence[Variant]) -> Tensor:
        """Final hidden states of variants that are sorted by the layer they start at."""
        joins: dict[int, int] = {}
        for variant in variants:
            joins[_start(variant)] = joins.get(_start(variant), 0) + 1
        by_slot = _by_slot(variants)
        edits = {slot: self._edits(places) for slot, places in by_slot.items()}
        call = Call(model.slots, edits, record=False)
        call.start_at(min(joins))
        with _through(Wavefront(model.blocks, self.blocks, _stack(variants[0]), joins)):
            model.call_in(call, *batch_arguments([self.inputs]))
        if call.applied != dict.fromkeys(by_slot, 1) or call.hidden is None or len(call.hidden) != len(variants):
            raise InterventionError("Not every head that was asked for was reached; this is a fault of Headscope.")
        return call.hidden

    def _edits(self, places: Sequence[tuple[int, HeadRef, Tensor | None]]) -> tuple[Edit, ...]:
        """The edits of one layer, for (row, head, what replaces its z)."""
        positions = None if self.positions is None else torch.tensor(self.positions)
        edits: list[Edit] = []
        zeros = [(row, ref.head) for row, ref, value in places if value is None]
        if zeros:
            rows, heads = (torch.tensor(column) for column in zip(*zeros, strict=True))
            edits.append(ScaleOutput(heads, rows=rows, positions=positions, factor=0.0))
        others = [(row, ref.head, value) for row, ref, value in places if value is not None]
        if others:
            rows, heads = (torch.tensor([place[column] for place in others]) for column in (0, 1))
            length = max(len(value) for _, _, value in others)
            stacked = torch.stack([value.expand(length, -1) for _, _, value in others])  # [n, 1 or position, d_head]
            if positions is not None and length > 1:
                stacked = stacked[:, positions]
            edits.append(ReplaceOutput(heads, rows=rows, positions=positions, value=stacked))
        return tuple(edits)

    def _chunk_size(self, variants: Sequence[Variant]) -> int:
        """Rows of a chunk: as many as keep the activations in the cache, or in the budget."""
        n_positions = max(len(self.inputs.tokens), len(self.inputs.source or self.inputs.tokens))
        if self.memory_budget is not None and variants:
            n_heads = self.model.sites[next(iter(variants[0])).site].n_heads
            per_row = 4 * n_positions * (8 * self.clean.hidden.shape[-1] + 3 * n_heads * n_positions)
            return max(1, self.memory_budget // per_row)
        return max(8, _ROWS_TOKENS // n_positions)


@contextmanager
def _through(wavefront: Wavefront) -> Iterator[None]:
    """Runs in here pass their blocks this way."""
    token = WAVEFRONT.set(wavefront)
    try:
        yield
    finally:
        WAVEFRONT.reset(token)


def clean_run(model: Model, inputs: RunInputs) -> tuple[Trace, CleanBlocks]:
    """The run nothing is changed in, and what its blocks took in and gave back, which variants begin from."""
    blocks = CleanBlocks()
    if not isinstance(model, PretrainedModel):
        return model.run_prepared(inputs), blocks
    with _through(Wavefront(model.blocks, blocks, record=True)):
        return model.run_prepared(inputs), blocks


def _stack(variant: Variant) -> str:
    site = next(iter(variant)).site
    return "dec" if site == "cross" else site


def _start(variant: Variant) -> int:
    return min(ref.layer for ref in variant)


def _check(variant: Variant) -> None:
    if not variant:
        raise InterventionError("A variant changes at least one head; none was named.")
    if len({"dec" if ref.site == "cross" else ref.site for ref in variant}) > 1:
        raise InterventionError(
            "Heads of the encoder and of the decoder cannot be changed together here; take heads of one of the two."
        )


def _by_slot(variants: Sequence[Variant]) -> dict[SlotKey, list[tuple[int, HeadRef, Tensor | None]]]:
    """Slot -> (row, head, what replaces its z) of every change there."""
    places: dict[SlotKey, list[tuple[int, HeadRef, Tensor | None]]] = {}
    for row, variant in enumerate(variants):
        for ref, value in variant.items():
            places.setdefault((ref.site, ref.layer), []).append((row, ref, value))
    return places


@dataclass(frozen=True, eq=False)
class Experiment:
    """One sentence, one way of switching heads off, one metric: what sweeps, pairs and controls share.

    heads: those it is about. kind: how they are switched off. values: what replaces z, for all heads of their layers:
    slot -> [head, 1 or position, d_head]; None: zero.
    """

    variants: Variants
    outcome: Outcome
    kind: str
    heads: tuple[HeadRef, ...]
    values: Mapping[SlotKey, Tensor] | None

    @property
    def method(self) -> str:
        """How the numbers are computed, in words."""
        runs = "wavefront" if isinstance(self.variants.model, PretrainedModel) else "one run per head"
        return f"exact, {runs}"

    def replacement(self, ref: HeadRef) -> Tensor | None:
        """What replaces a head's z, [1 or position, d_head]; None: zero."""
        return None if self.values is None else self.values[ref.site, ref.layer][ref.head]

    def without(self, heads: Sequence[HeadRef]) -> Variant:
        """The variant in which these heads are off."""
        return {ref: self.replacement(ref) for ref in heads}

    def effects(self, variants: Sequence[Variant]) -> Iterator[tuple[list[int], list[float]]]:
        """Chunk by chunk: which of the variants, and how each changes the metric."""
        for numbers, hidden in self.variants.chunks(variants):
            yield numbers, self.outcome.changes(hidden)


def experiment(
    model: Model,
    text: str | Tokens,
    heads: Sequence[HeadRef | str] | None = None,
    *,
    metric: str | None = None,
    kind: str = "zero",
    reference: str | Sequence[str] = "corpus",
    source: str | None = None,
    answers: tuple[str, str] | None = None,
    other: str | None = None,
    positions: Sequence[int] | None = None,
    site: str | None = None,
    target: str | Tokens | None = None,
    memory_budget: int | None = None,
) -> Experiment:
    """Prepare an experiment: the clean run, and what replaces heads. heads: None: all of `site`. The other arguments
    are those of `head_ablation_sweep`.

    Raises:
        InterventionError, InputError: what this model or text cannot do, in a sentence.
    """
    inputs = model.prepare(text, target=target)
    ablation = ablation_of(model, inputs, heads, kind, reference, source, positions, site)
    clean, blocks = clean_run(model, inputs)
    outcome = outcome_of(model, inputs.tokens, clean.hidden, metric, answers, other)
    variants = Variants(model, inputs, clean, ablation.positions, memory_budget, blocks)
    return Experiment(variants, outcome, kind, ablation.heads, model.replacements(inputs, ablation))


def ablation_of(
    model: Model,
    inputs: RunInputs,
    heads: Sequence[HeadRef | str] | None,
    kind: str,
    reference: str | Sequence[str],
    source: str | None,
    positions: Sequence[int] | None,
    site: str | None,
) -> HeadAblation:
    """The heads (None: every head of a site) and the way to switch them off, checked against model and sentence."""
    if kind not in KINDS:
        raise InterventionError(f"kind is {kind!r}; this takes {', '.join(KINDS)}.")
    if heads is None:
        site = model.main_site if site is None else site
        if site not in model.sites:
            raise InterventionError(f"site is {site!r}; this model has {', '.join(model.sites)}.")
        heads = every_head(model, site)
    reference = reference if isinstance(reference, str) else tuple(reference)
    ablation = HeadAblation(heads, kind, positions, reference=reference, source=source)
    return model.validated(inputs, ablation).ablations[0]


def every_head(model: Model, site: str) -> list[HeadRef]:
    """All heads of a site, layer by layer."""
    shape = model.sites[site]
    return [HeadRef(layer, head, site) for layer in range(shape.n_layers) for head in range(shape.n_heads)]
