"""Heads together: what pairs do beyond the sum of both, and what heads taken at random would do.

Everything is exact, in few batched passes: any set of heads can be off in a row of the batch (`variants.py`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mha_core.interventions import HeadRef, InterventionError
from mha_core.model import Model
from mha_core.tokens import Tokens
from mha_core.variants import Experiment, Variant, every_head, experiment

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class PairEffects:
    """What heads do alone and two at a time.

    heads: [k]. single: [k] effects, ablated minus clean. joint: [k, k] effects of both together, symmetric, the single
    effects on the diagonal. interaction: [k, k] joint minus the sum of both single effects, NaN on the diagonal: a head
    makes no pair with itself. An interaction of the effects' own sign says that the two do more together than each
    alone, as where one stands in for the other (a backup head); of the other sign, that they do the same work in a row.
    baseline, metric, kind: as in a sweep. seconds: wall time. method: how; always exact.
    """

    heads: tuple[HeadRef, ...]
    single: NDArray[np.float64]
    joint: NDArray[np.float64]
    baseline: float
    metric: str
    kind: str
    seconds: float
    method: str

    @property
    def interaction(self) -> NDArray[np.float64]:
        """[k, k], NaN on the diagonal."""
        result = self.joint - self.single[:, None] - self.single[None, :]
        np.fill_diagonal(result, np.nan)
        return result

    def ranking(self) -> list[tuple[HeadRef, HeadRef, float]]:
        """Pairs by the size of their interaction, largest first."""
        places = itertools.combinations(range(len(self.heads)), 2)
        pairs = [(self.heads[a], self.heads[b], float(self.interaction[a, b])) for a, b in places]
        return sorted(pairs, key=lambda pair: -abs(pair[2]))


@dataclass(frozen=True, eq=False)
class RandomHeads:
    """Joint effects of k heads taken at random.

    effects: [n], ablated minus clean. heads: the n sets. seed: they are drawn from it.
    """

    effects: NDArray[np.float64]
    heads: tuple[tuple[HeadRef, ...], ...]
    baseline: float
    metric: str
    kind: str
    seed: int
    seconds: float

    @property
    def mean(self) -> float:
        """Mean effect."""
        return float(self.effects.mean())

    @property
    def spread(self) -> float:
        """Standard deviation of the effects over the sets (n − 1)."""
        return float(self.effects.std(ddof=1)) if len(self.effects) > 1 else 0.0

    def share_as_large(self, effect: float) -> float:
        """Share of the random sets whose effect is at least as large in size. Descriptive: one sentence only."""
        return float((np.abs(self.effects) >= abs(effect)).mean())


@dataclass(frozen=True, eq=False)
class RandomDirections:
    """Effects of pushing each head's output as far as its ablation does, in directions taken at random.

    effects: [head, draw], changed minus clean. Draws come in twos: a direction and its opposite. heads: [k].
    """

    effects: NDArray[np.float64]
    heads: tuple[HeadRef, ...]
    baseline: float
    metric: str
    kind: str
    seed: int
    seconds: float

    @property
    def mean_size(self) -> NDArray[np.float64]:
        """Mean size of the effects, [head]: what the ablation's effect is compared with."""
        return np.abs(self.effects).mean(axis=1)


def pair_effects(
    model: Model,
    text: str | Tokens,
    heads: Sequence[HeadRef | str],
    *,
    metric: str | None = None,
    kind: str = "zero",
    reference: str | Sequence[str] = "corpus",
    source: str | None = None,
    answers: tuple[str, str] | None = None,
    other: str | None = None,
    positions: Sequence[int] | None = None,
    target: str | Tokens | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> PairEffects:
    """Ablate heads alone and two at a time, all pairs of them.

    Args:
        heads: two or more, of the encoder or of the decoder, such as the top of a sweep's ranking.
        progress: called with (runs done, in all); what it raises ends the work.
        The others are those of `head_ablation_sweep`.

    Raises:
        InterventionError, InputError: what this model or text cannot do, in a sentence.
    """
    started = time.perf_counter()
    job = experiment(model, text, heads, metric=metric, kind=kind, reference=reference, source=source, answers=answers,
                     other=other, positions=positions, target=target, memory_budget=memory_budget)  # fmt: skip
    k = len(job.heads)
    if k < 2:
        raise InterventionError("Pairs need at least two different heads.")
    places = [*((i, i) for i in range(k)), *itertools.combinations(range(k), 2)]
    variants = [job.without([job.heads[i] for i in dict.fromkeys(place)]) for place in places]
    effects = _effects(job, variants, progress)
    joint = np.zeros((k, k))
    for (a, b), effect in zip(places, effects, strict=True):
        joint[a, b] = joint[b, a] = effect
    return PairEffects(
        job.heads, joint.diagonal().copy(), joint, job.outcome.baseline, job.outcome.name, kind,
        time.perf_counter() - started, job.method,
    )  # fmt: skip


def random_heads_control(
    model: Model,
    text: str | Tokens,
    k: int,
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
    n: int = 20,
    seed: int = 0,
    exclude: Sequence[HeadRef | str] = (),
    progress: Progress | None = None,
) -> RandomHeads:
    """Ablate n sets of k heads taken at random from a site: would any k heads have done that?

    It answers whether these heads matter more than others as many. What they are switched off with is the same.

    Args:
        k: heads in a set. n: sets. seed: the same seed draws the same sets.
        exclude: heads never drawn, such as those that the control is for.
        The others are those of `pair_effects` and `head_ablation_sweep`.
    """
    started = time.perf_counter()
    job = experiment(model, text, None, metric=metric, kind=kind, reference=reference, source=source, answers=answers,
                     other=other, positions=positions, site=site, target=target,
                     memory_budget=memory_budget)  # fmt: skip
    left = {ref if isinstance(ref, HeadRef) else HeadRef.parse(ref) for ref in exclude}
    pool = [ref for ref in every_head(model, job.heads[0].site) if ref not in left]
    if not 1 <= k <= len(pool) or n < 1:
        raise InterventionError(
            f"{n} sets of {k} heads were asked for; there are {len(pool)} heads to draw from, and at least one set of "
            "one head is needed."
        )
    generator = np.random.default_rng(seed)
    drawn = [sorted(generator.choice(len(pool), size=k, replace=False).tolist()) for _ in range(n)]
    sets = tuple(tuple(pool[place] for place in places) for places in drawn)
    effects = _effects(job, [job.without(heads) for heads in sets], progress)
    return RandomHeads(effects, sets, job.outcome.baseline, job.outcome.name, kind, seed, time.perf_counter() - started)


def random_direction_control(
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
    n: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
) -> RandomDirections:
    """Push each head's output as far as its ablation does, but in random directions: is it what the head says?

    It answers whether a head's effect comes from what it writes being gone, or whether any push of that length at that
    place would have done as much. Each draw is one direction of the head's d_head dimensions, the same at every
    position, times the length of the ablation's change ‖z' − z‖ at that position.

    Args:
        heads: None: every head of `site`.
        n: draws per head, an even number: every direction is taken forth and back. seed: of the draws; a head gets the
            same directions whichever heads it stands among.
        The others are those of `pair_effects` and `head_ablation_sweep`.
    """
    started = time.perf_counter()
    if n < 2 or n % 2:
        raise InterventionError(f"n is {n}; it must be an even number from 2, since directions go forth and back.")
    job = experiment(model, text, heads, metric=metric, kind=kind, reference=reference, source=source, answers=answers,
                     other=other, positions=positions, site=site, target=target,
                     memory_budget=memory_budget)  # fmt: skip
    variants: list[Variant] = []
    with torch.inference_mode():
        for ref in job.heads:
            variants += [{ref: pushed} for pushed in _pushed(job, ref, n, seed)]
    effects = _effects(job, variants, progress).reshape(len(job.heads), n)
    return RandomDirections(
        effects, job.heads, job.outcome.baseline, job.outcome.name, kind, seed, time.perf_counter() - started
    )


def _pushed(job: Experiment, ref: HeadRef, n: int, seed: int) -> list[Tensor]:
    """n changed outputs [position, d_head] of one head."""
    z = job.variants.clean.head_outputs(ref.layer, ref.site)[ref.head]  # [position, d_head]
    replacement = job.replacement(ref)
    change = -z if replacement is None else replacement - z
    length = change.norm(dim=-1, keepdim=True)  # [position, 1]
    generator = np.random.default_rng([seed, ref.layer, ref.head])
    pushed = []
    for _ in range(n // 2):
        direction = torch.from_numpy(generator.standard_normal(z.shape[-1])).to(z.dtype)
        push = length * direction / direction.norm()
        pushed += [z + push, z - push]
    return pushed


def _effects(job: Experiment, variants: Sequence[Variant], progress: Progress | None) -> NDArray[np.float64]:
    effects = np.zeros(len(variants))
    done = 0
    for numbers, values in job.effects(variants):
        effects[numbers] = values
        done += len(numbers)
        if progress is not None:
            progress(done, len(variants))
    return effects
