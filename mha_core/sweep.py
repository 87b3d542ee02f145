"""Every head ablated, one at a time, exactly, in one pass through the layers per chunk of heads.

A variant of the sentence differs from the clean run only from its head's layer on. So the clean run's block inputs are
kept, and the variants of a chunk of heads run together as rows of one batch that grows: each row joins right before
its layer, and `attend` changes head h of row r. Weights are read once per chunk and layer instead of once per head,
and nothing of the library's blocks is reimplemented. See `blocks.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_core.attention import Edit, ReplaceOutput, ScaleOutput
from mha_core.backend import Call
from mha_core.blocks import WAVEFRONT, CleanBlocks, Wavefront
from mha_core.interventions import HeadAblation, HeadRef, InterventionError
from mha_core.metrics import cosine_similarity, kl_divergence, sentence_embedding
from mha_core.model import Model, PretrainedModel, RunInputs, batch_arguments
from mha_core.tokens import Tokens
from mha_core.trace import Trace

METRICS = {
    "kl": "KL(clean ‖ ablated) of the prediction at the last position, in nats",
    "logit_diff": "change of the first answer's logit minus the second's, at the last position",
    "loss": "change of the mean loss over the sentence, in nats",
    "top1_prob": "change of the probability of the clean run's most likely word, at the last position",
    "cosine_distance": "1 − cosine of the ablated sentence embedding with the clean one",
}
KINDS = ("zero", "mean", "resample")
_ROWS_TOKENS = 1600  # rows × positions of a chunk: beyond, its activations leave the processor's cache
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class HeadSweep:
    """What one head at a time does.

    effects: [layer, head], ablated minus clean; 0 means nothing changed, NaN not measured (yet).
    baseline: the clean run's own value of the metric (0 for those that compare with it).
    metric, kind, site: as asked. seconds: wall time. method: how it was computed; always exact.
    """

    effects: NDArray[np.float64]
    baseline: float
    metric: str
    kind: str
    site: str
    seconds: float
    method: str
    done: int
    total: int

    def ranking(self) -> list[tuple[HeadRef, float]]:
        """Heads by the size of their effect, largest first; those not measured are left out."""
        order = np.argsort(-np.abs(np.nan_to_num(self.effects)), axis=None)
        n_heads = self.effects.shape[1]
        refs = [
            (HeadRef(place // n_heads, place % n_heads, self.site), float(self.effects.flat[place]))
            for place in order.tolist()
        ]
        return [(ref, value) for ref, value in refs if not np.isnan(value)]


def head_ablation_sweep(
    model: Model,
    text: str | Tokens,
    *,
    metric: str | None = None,
    kind: str = "zero",
    reference: str | Sequence[str] = "corpus",
    source: str | None = None,
    answers: tuple[str, str] | None = None,
    positions: Sequence[int] | None = None,
    site: str | None = None,
    target: str | Tokens | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> HeadSweep:
    """Ablate every head of a site, one at a time, exactly.

    Args:
        model, text: as for `Model.run`; `target` is an encoder-decoder's.
        metric: one of `METRICS`; None: "kl" for language models, "cosine_distance" for encoders.
        kind: "zero", "mean" (over `reference`) or "resample" (from the sentence `source`).
        answers: two words that are one token each (" Mary", " John"), for "logit_diff".
        positions: query positions where heads are ablated; None: all.
        site: None: the only one, or the decoder's self-attention.
        memory_budget: bytes that a chunk's activations may take; None: what fits the processor's cache.
        progress: called with (heads done, in all); what it raises ends the sweep (`sweep_steps` keeps what it has).

    Returns:
        `HeadSweep` with `effects` [layer, head], equal to one run per head.

    Raises:
        InterventionError, InputError: what this model or text cannot do, in a sentence.
    """
    last = None
    for step in sweep_steps(model, text, metric=metric, kind=kind, reference=reference, source=source, answers=answers,
                            positions=positions, site=site, target=target, memory_budget=memory_budget):  # fmt: skip
        last = step
        if progress is not None:
            progress(step.done, step.total)
    assert last is not None
    return last


def sweep_steps(
    model: Model,
    text: str | Tokens,
    *,
    metric: str | None = None,
    kind: str = "zero",
    reference: str | Sequence[str] = "corpus",
    source: str | None = None,
    answers: tuple[str, str] | None = None,
    positions: Sequence[int] | None = None,
    site: str | None = None,
    target: str | Tokens | None = None,
    memory_budget: int | None = None,
) -> Generator[HeadSweep]:
    """The sweep step by step: what is known so far after each chunk of heads. Arguments: `head_ablation_sweep`."""
    if kind not in KINDS:
        raise InterventionError(f"kind is {kind!r}; a sweep takes {', '.join(KINDS)}.")
    started = time.perf_counter()
    inputs = model.prepare(text, target=target)
    clean = model.run_prepared(inputs)
    site = clean.main_site if site is None else site
    if site not in model.sites:
        raise InterventionError(f"site is {site!r}; this model has {', '.join(model.sites)}.")
    shape = model.sites[site]
    every = [HeadRef(layer, head, site) for layer in range(shape.n_layers) for head in range(shape.n_heads)]
    ablation = HeadAblation(every, kind, positions, reference=_one(reference), source=source)
    ablation = model.validated(inputs, ablation).ablations[0]
    measure = _measure(model, clean, metric, answers)
    effects = np.full((shape.n_layers, shape.n_heads), np.nan)
    job = _Job(model, inputs, clean, site, ablation, measure, memory_budget)
    method = "wavefront" if isinstance(model, PretrainedModel) else "one run per head"
    done = 0
    for heads, values in job.chunks(every):
        for head, value in zip(heads, values, strict=True):
            effects[head.layer, head.head] = value
        done += len(heads)
        yield HeadSweep(
            effects.copy(), measure.baseline, measure.name, kind, site, time.perf_counter() - started,
            f"exact, {method}", done, len(every),
        )  # fmt: skip


def _one(reference: str | Sequence[str]) -> str | tuple[str, ...]:
    return reference if isinstance(reference, str) else tuple(reference)


@dataclass(frozen=True, eq=False)
class _Measure:
    """A metric, ready to be taken of changed runs. of: hidden [row, position, d_model] -> one number per row, changed
    minus clean. baseline: the clean run's own value.
    """

    name: str
    baseline: float
    of: Callable[[Tensor], list[float]]


def _measure(model: Model, clean: Trace, metric: str | None, answers: tuple[str, str] | None) -> _Measure:
    name = metric or ("logit_diff" if answers else "kl" if clean.has_logits else "cosine_distance")
    if name not in METRICS:
        raise InterventionError(f"metric is {name!r}; it must be one of {', '.join(METRICS)}.")
    if (name == "logit_diff") != (answers is not None):
        raise InterventionError('"logit_diff" is the metric that takes answers, a pair such as (" Mary", " John").')
    if name == "cosine_distance":
        embedding = sentence_embedding(clean.hidden)
        return _Measure(
            name, 0.0, lambda hidden: [1 - cosine_similarity(sentence_embedding(h), embedding) for h in hidden]
        )
    if not clean.has_logits:
        raise InterventionError(f"This model is a bare encoder without words to predict; {name!r} needs them.")
    return _loss_measure(clean) if name == "loss" else _last_position_measure(model, clean, name, answers)


def _loss_measure(clean: Trace) -> _Measure:
    ids = torch.tensor(clean.tokens.ids)
    if len(ids) < 2:
        raise InterventionError("The loss needs a sentence of at least two tokens.")

    def losses(hidden: Tensor) -> Tensor:
        flat = hidden[:, :-1].reshape(-1, hidden.shape[-1])  # [row * (position - 1), d_model]
        wanted = ids[1:].repeat(len(hidden))
        parts = [
            torch.nn.functional.cross_entropy(clean.logits_of(some), some_ids, reduction="none")
            for some, some_ids in zip(flat.split(256), wanted.split(256), strict=True)
        ]
        return torch.cat(parts).view(len(hidden), -1).mean(dim=1)

    baseline = float(losses(clean.hidden[None])[0])
    return _Measure("loss", baseline, lambda hidden: (losses(hidden) - baseline).tolist())


def _last_position_measure(model: Model, clean: Trace, name: str, answers: tuple[str, str] | None) -> _Measure:
    before = clean.logits_at([-1])[0]

    def logits(hidden: Tensor) -> Tensor:
        return clean.logits_of(hidden[:, -1])  # [row, vocabulary]

    if name == "kl":
        return _Measure(name, 0.0, lambda hidden: kl_divergence(before, logits(hidden)).tolist())
    if name == "top1_prob":
        top = int(before.argmax())
        clean_p = float(before.softmax(-1)[top])
        return _Measure(name, clean_p, lambda hidden: (logits(hidden).softmax(-1)[:, top] - clean_p).tolist())
    assert answers is not None
    first, second = (model.token_id(answer) for answer in answers)
    baseline = float(before[first] - before[second])

    def change(hidden: Tensor) -> list[float]:
        after = logits(hidden)
        return (after[:, first] - after[:, second] - baseline).tolist()

    return _Measure(name, baseline, change)


@dataclass(frozen=True, eq=False)
class _Job:
    """One sweep: what stays the same from chunk to chunk."""

    model: Model
    inputs: RunInputs
    clean: Trace
    site: str
    ablation: HeadAblation
    measure: _Measure
    memory_budget: int | None
    blocks: CleanBlocks = field(default_factory=CleanBlocks)

    def chunks(self, heads: Sequence[HeadRef]) -> Iterator[tuple[list[HeadRef], list[float]]]:
        """Heads in chunks, with what switching each off does."""
        if not isinstance(self.model, PretrainedModel):
            yield from self._one_run_each(heads)
            return
        model = self.model
        values = model.replacements(self.inputs, self.ablation)
        self._clean_blocks(model)
        size = self._chunk_size(model)
        for start in range(0, len(heads), size):
            chunk = list(heads[start : start + size])
            hidden = self._run(model, chunk, values)
            yield chunk, self.measure.of(hidden)

    def _one_run_each(self, heads: Sequence[HeadRef]) -> Iterator[tuple[list[HeadRef], list[float]]]:
        item = self.ablation
        for head in heads:
            plan = HeadAblation([head], item.kind, item.positions, reference=item.reference, source=item.source)
            yield [head], self.measure.of(self.model.run_prepared(self.inputs, plan).hidden[None])

    def _chunk_size(self, model: PretrainedModel) -> int:
        """Rows of a chunk: as many as keep the activations in the cache, or in the budget."""
        n_positions = max(len(self.inputs.tokens), len(self.inputs.source or self.inputs.tokens))
        if self.memory_budget is not None:
            shape = model.sites[self.site]
            per_row = 4 * n_positions * (8 * self.clean.hidden.shape[-1] + 3 * shape.n_heads * n_positions)
            return max(1, self.memory_budget // per_row)
        return max(8, _ROWS_TOKENS // n_positions)

    def _clean_blocks(self, model: PretrainedModel) -> None:
        wavefront = Wavefront(model.blocks, self.blocks, record=True)
        self._forward(model, Call(model.slots, record=False), wavefront)

    def _run(
        self, model: PretrainedModel, chunk: Sequence[HeadRef], values: dict[tuple[str, int], Tensor] | None
    ) -> Tensor:
        """Final hidden states [row, position, d_model] of one variant per head of the chunk."""
        stack = "dec" if self.site == "cross" else self.site
        joins: dict[int, int] = {}
        for head in chunk:
            joins[head.layer] = joins.get(head.layer, 0) + 1
        rows = {head: row for row, head in enumerate(sorted(chunk))}
        edits = {
            (self.site, layer): (self._edit(layer, [(rows[h], h.head) for h in chunk if h.layer == layer], values),)
            for layer in joins
        }
        call = Call(model.slots, edits, record=False)
        call.start_at(min(joins))
        self._forward(model, call, Wavefront(model.blocks, self.blocks, stack, joins))
        if sum(call.applied.values()) != len(joins) or call.hidden is None or len(call.hidden) != len(chunk):
            raise InterventionError(
                "The sweep did not reach every head it was asked for; this is a fault of Headscope."
            )
        return call.hidden[[rows[head] for head in chunk]]

    def _edit(
        self, layer: int, places: Sequence[tuple[int, int]], values: dict[tuple[str, int], Tensor] | None
    ) -> Edit:
        rows, heads = (torch.tensor(column) for column in zip(*places, strict=True))
        positions = None if self.ablation.positions is None else torch.tensor(self.ablation.positions)
        if values is None:
            return ScaleOutput(heads, rows=rows, positions=positions, factor=0.0)
        value = values[self.site, layer][heads]  # [row, 1 or position, d_head]
        if positions is not None and value.shape[1] > 1:
            value = value[:, positions]
        return ReplaceOutput(heads, rows=rows, positions=positions, value=value)

    def _forward(self, model: PretrainedModel, call: Call, wavefront: Wavefront) -> None:
        token = WAVEFRONT.set(wavefront)
        try:
            model.call_in(call, *batch_arguments([self.inputs]))
        finally:
            WAVEFRONT.reset(token)
