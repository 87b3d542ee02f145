"""Reading a sweep over a task: the map of all heads with intervals, by slice, and heads found on one half of the
prompts, measured again on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha_core.head_statistics import intervals_of, max_t_p
from mha_core.interventions import HeadRef
from mha_core.paired import Interval, cluster_interval, halves
from mha_core.task_sweep import TaskSweep

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Mean effect of each head on a metric, over prompts or a slice of them.

    mean, low, high: [layer, head]; the interval is a bootstrap over templates, NaN with fewer than five.
    p: two-sided, of each head alone. p_adjusted: corrected for all heads (max-T). Both [layer, head].
    clean: the unchanged model's mean. n: prompts. n_clusters: templates.
    """

    metric: str
    clean: float
    mean: Numbers
    low: Numbers
    high: Numbers
    p: Numbers
    p_adjusted: Numbers
    n: int
    n_clusters: int

    def ranking(self, heads: Sequence[HeadRef], top: int | None = None) -> list[tuple[HeadRef, int]]:
        """Heads by the size of their mean effect, largest first, each with its place in the flattened map."""
        order = np.argsort(-np.abs(self.mean).ravel(), kind="stable")[:top]
        return [(heads[place], place) for place in order.tolist()]


def head_map(sweep: TaskSweep, metric: str, places: Sequence[int] | None = None) -> HeadMap:
    """All heads on the measured prompts (or some of them, by their place among the measured)."""
    effects = sweep.effects(metric, places)
    clusters = _at(sweep.clusters, places)
    mean, low, high = intervals_of(effects, clusters, seed=sweep.seed)
    p, adjusted = max_t_p(effects, clusters, seed=sweep.seed)
    clean = float(sweep.clean(metric, places).mean())
    shape = sweep.shape
    return HeadMap(
        metric, clean, mean.reshape(shape), low.reshape(shape), high.reshape(shape), p.reshape(shape),
        adjusted.reshape(shape), len(clusters), len(set(clusters)),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SliceEffects:
    """Every head on one slice: means and intervals, [head]."""

    slice: str
    value: str
    clean: float
    mean: Numbers
    low: Numbers
    high: Numbers
    n: int


def slice_effects(sweep: TaskSweep, metric: str) -> list[SliceEffects]:
    """Every head on every slice, in the order of slices and values."""
    found = []
    for name, values in sweep.slices().items():
        for value, places in sorted(values.items()):
            mean, low, high = intervals_of(sweep.effects(metric, places), _at(sweep.clusters, places), seed=sweep.seed)
            clean = float(sweep.clean(metric, places).mean())
            found.append(SliceEffects(name, value, clean, mean, low, high, len(places)))
    return found


@dataclass(frozen=True)
class HeldOut:
    """A head that was among the strongest on one half of the templates, and what it does on the other.

    found: its mean effect on the half that it was chosen on: too large, as winners are. again: on the other half.
    """

    head: HeadRef
    found: float
    again: Interval


def held_out(sweep: TaskSweep, metric: str, top: int = 10) -> list[HeldOut]:
    """The `top` strongest heads of one half of the templates, measured again on the other half. Empty where there are
    fewer than two templates.
    """
    if len(set(sweep.clusters)) < 2:
        return []
    first, second = halves(sweep.clusters, sweep.seed)
    chosen_on, again = sweep.effects(metric, first).mean(axis=0), sweep.effects(metric, second)
    clusters = _at(sweep.clusters, second)
    found = []
    for place in np.argsort(-np.abs(chosen_on), kind="stable")[:top].tolist():
        interval = cluster_interval(again[:, place], clusters, seed=sweep.seed)
        found.append(HeldOut(sweep.heads[place], float(chosen_on[place]), interval))
    return found


def _at(clusters: Sequence[str], places: Sequence[int] | None) -> list[str]:
    return list(clusters) if places is None else [clusters[place] for place in places]
