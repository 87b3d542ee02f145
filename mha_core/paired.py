"""Paired differences of many prompts: intervals, tests, and their correction for several plans.

Prompts of one template are alike, so templates are what is resampled and what signs are flipped of: with K templates
no p-value can go below 2^(1 − K).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

LEVEL, N_BOOTSTRAP, N_FLIPS = 0.95, 2000, 9999
MIN_CLUSTERS = 5  # resampling fewer gives intervals that are far too narrow


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval over clusters; NaN ends where there are fewer than five clusters."""

    mean: float
    low: float
    high: float
    n: int
    n_clusters: int


def cluster_interval(
    values: ArrayLike, clusters: Sequence[str], *, level: float = LEVEL, n_resamples: int = N_BOOTSTRAP, seed: int = 0
) -> Interval:
    """Mean of values [prompt] with a percentile interval from resampling whole clusters (`scipy.stats.bootstrap`).

    Raises:
        ValueError: no values, or not one cluster per value.
    """
    sums, counts = cluster_sums(values, clusters)
    mean, n, k = float(sums.sum() / counts.sum()), int(counts.sum()), len(sums)
    if k < MIN_CLUSTERS:
        return Interval(mean, float("nan"), float("nan"), n, k)

    def ratio(x: NDArray[np.float64], y: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return x.sum(axis=axis) / y.sum(axis=axis)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (sums, counts), ratio, paired=True, vectorized=True, n_resamples=n_resamples, confidence_level=level,
            method="percentile", rng=np.random.default_rng(seed),
        )  # fmt: skip
    low, high = found.confidence_interval
    return Interval(mean, float(low), float(high), n, k)


def sign_flip_p(differences: ArrayLike, clusters: Sequence[str], *, n_resamples: int = N_FLIPS, seed: int = 0) -> float:
    """Two-sided p-value of a mean difference of 0: signs of whole clusters are flipped, all ways where these are few
    (`scipy.stats.permutation_test`). NaN with fewer than two clusters.
    """
    sums, _ = cluster_sums(differences, clusters)
    if len(sums) < 2:
        return float("nan")
    if not sums.any():
        return 1.0
    found = stats.permutation_test(
        (sums,), lambda x, axis: np.abs(x.sum(axis=axis)), permutation_type="samples", vectorized=True,
        n_resamples=n_resamples, alternative="greater", rng=np.random.default_rng(seed),
    )  # fmt: skip
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being several (Holm 1979), in the given order. NaN stays and is not counted."""
    p = np.asarray(p_values, dtype=float)
    places = np.flatnonzero(~np.isnan(p))
    order = places[np.argsort(p[places], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    corrected = p.copy()
    corrected[order] = np.minimum(1, np.maximum.accumulate(steps)) if len(order) else steps
    return [float(value) for value in corrected]


def auc_terms(positive: ArrayLike, negative: ArrayLike) -> NDArray[np.float64]:
    """Per pair i, a number whose mean is the AUC of all positives against all negatives (ties count half) and whose
    spread is the AUC's: V10(i) + V01(i) − AUC, with the placement values of DeLong et al. 1988.
    """
    pos, neg = np.asarray(positive, dtype=float), np.asarray(negative, dtype=float)
    wins = (pos[:, None] > neg[None, :]) + 0.5 * (pos[:, None] == neg[None, :])
    return wins.mean(axis=1) + wins.mean(axis=0) - wins.mean()


def cluster_sums(values: ArrayLike, clusters: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and count of each cluster, in order of first appearance."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or len(array) != len(clusters) or not len(array):
        raise ValueError(f"{array.shape} values and {len(clusters)} clusters were given; one cluster per value.")
    numbers = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    places = np.array([numbers[name] for name in clusters])
    return np.bincount(places, weights=array).astype(np.float64), np.bincount(places).astype(np.float64)


def halves(clusters: Sequence[str], seed: int = 0) -> tuple[list[int], list[int]]:
    """Places of the values in one half of the clusters and in the other: no cluster is in both."""
    names = list(dict.fromkeys(clusters))
    order = np.random.default_rng(seed).permutation(len(names))
    first = {names[place] for place in order[: len(names) // 2].tolist()}
    places = range(len(clusters))
    return [p for p in places if clusters[p] in first], [p for p in places if clusters[p] not in first]
