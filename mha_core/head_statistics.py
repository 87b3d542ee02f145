"""Intervals and tests of many heads at once: paired effects of every prompt, templates resampled and flipped together.

With several hundred heads some look strong by luck. So p-values are corrected for all of them by the largest statistic
of each flip (max-T: Westfall and Young 1993), which keeps the dependence between heads: the same signs are flipped for
all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mha_core.paired import LEVEL, MIN_CLUSTERS, N_BOOTSTRAP, N_FLIPS, cluster_sums

Numbers = NDArray[np.float64]


def intervals_of(
    values: Numbers, clusters: Sequence[str], *, level: float = LEVEL, n_resamples: int = N_BOOTSTRAP, seed: int = 0
) -> tuple[Numbers, Numbers, Numbers]:
    """Mean and percentile interval over whole clusters of each column: values [prompt, column] -> three of [column].

    The same resampled clusters serve all columns. NaN ends where there are fewer than five clusters.

    Raises:
        ValueError: no values, or not one cluster per prompt.
    """
    sums, counts = column_sums(values, clusters)
    mean = sums.sum(axis=0) / counts.sum()
    if len(counts) < MIN_CLUSTERS:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    k = len(counts)
    draws = np.random.default_rng(seed).multinomial(k, np.full(k, 1 / k), size=n_resamples)  # [draw, cluster]
    means = (draws @ sums) / (draws @ counts)[:, None]
    low, high = np.percentile(means, [50 * (1 - level), 50 * (1 + level)], axis=0)
    return mean, low, high


def max_t_p(
    values: Numbers, clusters: Sequence[str], *, n_resamples: int = N_FLIPS, seed: int = 0
) -> tuple[Numbers, Numbers]:
    """Two-sided p-values of means of 0, [column] each: of every column alone, and corrected for all columns by max-T.

    Signs of whole clusters are flipped, all ways where these are few. The statistic is |Σ s_k d_k| / sqrt(Σ d_k²):
    d_k the sum of a cluster, so that columns of different size can be compared. NaN with fewer than two clusters.
    """
    sums, _ = column_sums(values, clusters)
    k = len(sums)
    if k < 2:
        nothing = np.full(sums.shape[1], np.nan)
        return nothing, nothing.copy()
    size = np.sqrt((sums**2).sum(axis=0))
    scaled = sums / np.where(size > 0, size, 1)
    seen = np.abs(scaled.sum(axis=0))
    exact = 2 ** (k - 1) <= n_resamples  # a flip and its mirror image give the same: half of them are all
    flips = _all_signs(k) if exact else np.random.default_rng(seed).choice([-1.0, 1.0], size=(n_resamples, k))
    alone, largest = np.zeros(len(seen)), np.zeros(len(seen))
    for start in range(0, len(flips), 500):
        drawn = np.abs(flips[start : start + 500] @ scaled)  # [flip, column]
        alone += (drawn >= seen - 1e-9).sum(axis=0)
        largest += (drawn.max(axis=1)[:, None] >= seen - 1e-9).sum(axis=0)
    extra, n = (0, len(flips)) if exact else (1, len(flips) + 1)  # drawn at random, what is seen counts as one of them
    return np.asarray((alone + extra) / n, dtype=np.float64), np.asarray((largest + extra) / n, dtype=np.float64)


def column_sums(values: Numbers, clusters: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Sum [cluster, column] and count [cluster] of each cluster, in order of first appearance."""
    if values.ndim != 2:
        raise ValueError(f"values has shape {values.shape}; it must be [prompt, column].")
    _, counts = cluster_sums(np.zeros(len(values)), clusters)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros((len(counts), values.shape[1]))
    np.add.at(sums, [numbers[name] for name in clusters], values)
    return sums, counts


def _all_signs(k: int) -> Numbers:
    """Every way to flip k signs, the first held: [2^(k−1), k]."""
    bits = (np.arange(2 ** (k - 1))[:, None] >> np.arange(k)) & 1
    return np.where(bits, -1.0, 1.0)
