"""Every head ablated, one at a time, exactly, in one pass through the layers per chunk of heads.

The variants of the sentence, one per head, run together as rows of a batch that grows from layer to layer: see
`variants.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha_core.interventions import HeadRef
from mha_core.model import Model
from mha_core.outcomes import METRICS
from mha_core.tokens import Tokens
from mha_core.variants import KINDS, experiment

__all__ = ["KINDS", "METRICS", "HeadSweep", "head_ablation_sweep", "sweep_steps"]

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
    other: str | None = None,
    positions: Sequence[int] | None = None,
    site: str | None = None,
    target: str | Tokens | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> HeadSweep:
    """Ablate every head of a site, one at a time, exactly.

    Args:
        model, text: as for `Model.run`; `target` is an encoder-decoder's.
        metric: one of `METRICS`; None: "kl" for language models, "cosine_distance" for encoders. A masked LM predicts
            at its first mask, and at the last position where there is none.
        kind: "zero", "mean" (over `reference`) or "resample" (from the sentence `source`).
        answers: two words that are one token each (" Mary", " John"), for "logit_diff".
        other: another sentence, for "similarity".
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
                            other=other, positions=positions, site=site, target=target,
                            memory_budget=memory_budget):  # fmt: skip
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
    other: str | None = None,
    positions: Sequence[int] | None = None,
    site: str | None = None,
    target: str | Tokens | None = None,
    memory_budget: int | None = None,
) -> Generator[HeadSweep]:
    """The sweep step by step: what is known so far after each chunk of heads. Arguments: `head_ablation_sweep`."""
    started = time.perf_counter()
    job = experiment(model, text, metric=metric, kind=kind, reference=reference, source=source, answers=answers,
                     other=other, positions=positions, site=site, target=target,
                     memory_budget=memory_budget)  # fmt: skip
    site = job.heads[0].site
    shape = model.sites[site]
    effects = np.full((shape.n_layers, shape.n_heads), np.nan)
    done = 0
    for numbers, values in job.effects([job.without([head]) for head in job.heads]):
        for number, value in zip(numbers, values, strict=True):
            effects[job.heads[number].layer, job.heads[number].head] = value
        done += len(numbers)
        yield HeadSweep(
            effects.copy(), job.outcome.baseline, job.outcome.name, kind, site, time.perf_counter() - started,
            job.method, done, len(job.heads),
        )  # fmt: skip
