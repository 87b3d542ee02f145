"""How far apart two rows of attention are, what averaging a layer's heads hides, and which heads are alike.

The Jensen–Shannon divergence of two distributions p and q with mean m is H(m) − (H(p) + H(q)) / 2: 0 when they are
equal, ln 2 nats when they share no key, symmetric, and defined where one is zero and the other is not (Lin 1991).
Attention that goes to no key (a sink's, or all of an empty row's) counts as one more key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

from mha_core.interventions import HeadRef
from mha_core.metrics import n_seen_keys
from mha_core.rows import weights_of_rows
from mha_core.trace import Trace

LN2 = math.log(2.0)
MAX_CELLS = 800_000_000  # pairs of heads x rows x keys that are compared at most: two seconds on one core
_CHUNK = 1 << 17  # numbers worked on at a time: half a megabyte, which stays in the processor's cache
_FLOOR = 1e-30
_REST = 1e-4  # rounding leaves rows a few millionths short of 1; sinks leave more
Progress = Callable[[int, int], None]
Floats = NDArray[np.floating]


def row_divergence(a: Tensor, b: Tensor) -> Tensor:
    """Jensen–Shannon divergence of each row of `a` from the same row of `b`, in nats: [..., query], 0 to ln 2.

    a, b: weights [..., query, key]; leading axes broadcast (one head against all heads).

    Raises:
        ValueError: the maps have different queries or keys.
    """
    if a.shape[-2:] != b.shape[-2:]:
        raise ValueError(
            f"The maps are {_size(a)} and {_size(b)} (queries × keys); rows are compared key by key, so they must be "
            "of the same tokens. For texts that differ in a few tokens, align them first."
        )
    a, b = with_rest(a, b)
    maps = np.broadcast_arrays(*(weights.detach().numpy() for weights in (a, b)))
    result = np.empty(maps[0].shape[:-1], dtype=maps[0].dtype)
    step = max(1, _CHUNK // max(1, maps[0].shape[-1]))
    for place in np.ndindex(maps[0].shape[:-2]):
        for start in range(0, result.shape[-1], step):
            some = (*place, slice(start, start + step))
            result[some] = _divergences(*(weights[some] for weights in maps))
    return torch.from_numpy(result)


def _divergences(a: Floats, b: Floats) -> Floats:
    """`row_divergence` of a few rows [row, key]. With NumPy, whose logarithm takes half as long as torch's."""
    stop = n_seen_keys(a, b)
    a, b = a[:, :stop], b[:, :stop]
    mean = np.maximum((a + b) / 2, _FLOOR, dtype=a.dtype)
    parts = np.zeros(len(a), dtype=a.dtype)
    for rows in (a, b):
        logs = np.maximum(rows / mean, _FLOOR, dtype=a.dtype)  # 0 ln 0 = 0
        np.log(logs, out=logs)
        parts += np.einsum("rk,rk->r", rows, logs)
    result: Floats = (parts / 2).clip(0, LN2)  # rounding can leave -1e-9 where rows are equal
    return result


def normalised(divergence: Tensor) -> Tensor:
    """Nats to a share of the most there can be, ln 2: 0 equal, 1 no key in common."""
    return divergence / LN2


def divergence_from_mean(weights: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over heads, and how far each head's rows are from it in nats: what averaging the heads hides.

    weights: [head, row, key]. Returns the mean [row, key] and the Jensen–Shannon divergences [head, row].
    """
    mean = weights.mean(dim=0)
    return mean, row_divergence(weights, mean)


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """How unlike the heads of a site are.

    matrix: [n, n] mean over query rows of the Jensen–Shannon divergence, in nats; symmetric, 0 on the diagonal.
    heads: which head each row of the matrix is. queries: the positions whose rows were compared, of n_queries in all.
    """

    matrix: NDArray[np.float32]
    heads: tuple[HeadRef, ...]
    queries: tuple[int, ...]
    n_queries: int

    @property
    def note(self) -> str:
        """What was compared, as a sentence."""
        if len(self.queries) == self.n_queries:
            return f"Mean over all {self.n_queries} rows."
        return f"Mean over {len(self.queries)} of {self.n_queries:,} rows, evenly spaced, to take seconds."

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """The matrix, so that NumPy and the functions below take the whole."""
        return np.array(self.matrix, dtype=dtype, copy=copy)


def head_distances(
    trace: Trace, site: str | None = None, progress: Progress | None = None, *, max_cells: int = MAX_CELLS
) -> HeadDistances:
    """Mean Jensen–Shannon divergence between the rows of every pair of heads of a site.

    Args:
        site: where; None: the main site.
        progress: called with (query rows done, in all). What it raises ends the work.
        max_cells: pairs × rows × keys that are compared at most. Of a longer text evenly spaced query rows are taken,
            the first and the last among them, and the result says so.
    """
    site = trace.main_site if site is None else site
    trace.inputs(0, site)  # a wrong site is said here
    shape = trace.sites[site]
    n_queries, n_keys = (len(tokens) for tokens in trace.site_tokens(site))
    heads = tuple(HeadRef(layer, head, site=site) for layer in range(shape.n_layers) for head in range(shape.n_heads))
    queries = _rows(n_queries, n_keys * (1 if not shape.causal else 0.5), len(heads), max_cells)
    rows = torch.cat([weights_of_rows(trace, layer, queries, site) for layer in range(shape.n_layers)])
    return HeadDistances(pairwise_divergence(rows, progress), heads, tuple(queries), n_queries)


def pairwise_divergence(weights: Tensor, progress: Progress | None = None) -> NDArray[np.float32]:
    """Mean over queries of the Jensen–Shannon divergence between every two of n maps, [n, n] in nats.

    weights: [n, query, key]. progress: called with (query rows done, in all).
    """
    (weights,) = with_rest(weights)
    maps = weights.detach().float().numpy()
    n, n_queries, _ = maps.shape
    total = np.zeros((n, n))
    for query in range(n_queries):
        if progress is not None:
            progress(query, n_queries)
        rows = maps[:, query]
        total += _mean_entropies(rows[:, (rows > 0).any(axis=0)])  # without keys nobody looks at, such as the future
    own = total.diagonal()  # the mean of a row with itself is the row
    distances = ((total - (own[:, None] + own) / 2) / max(1, n_queries)).clip(0, LN2).astype(np.float32)
    np.fill_diagonal(distances, 0)
    return distances


def _mean_entropies(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """H((p_a + p_b) / 2) for every two of n rows [n, key], in nats: [n, n].

    On one core, with NumPy: on two cores that others use too, torch's threads spend longer waiting for each other.
    """
    n, n_keys = rows.shape
    half = rows / np.float32(2)
    result = np.zeros((n, n), dtype=np.float32)
    step = max(1, _CHUNK // (n * max(1, n_keys)))
    for start in range(0, n, step):
        stop = min(n, start + step)
        mean = half[start:stop, None, :] + half[None, start:, :]  # [a, b, key], b from the first of these a on
        logs = np.maximum(mean, np.float32(_FLOOR))  # 0 ln 0 = 0
        np.log(logs, out=logs)
        entropies = -np.einsum("abk,abk->ab", mean, logs)
        result[start:stop, start:] = entropies
        result[start:, start:stop] = entropies.T
    return result


def _rows(n_queries: int, n_keys: float, n_heads: int, max_cells: int) -> list[int]:
    """The query positions to compare: all, or evenly spaced ones."""
    affordable = max(2, int(max_cells / (n_keys * n_heads * (n_heads + 1) / 2)))
    if affordable >= n_queries:
        return list(range(n_queries))
    return sorted({int(place) for place in np.linspace(0, n_queries - 1, affordable).round()})


def with_rest(*maps: Tensor) -> tuple[Tensor, ...]:
    """Maps with one more key that holds what a row lacks to 1, where any row lacks more than rounding."""
    rests = [(1 - weights.sum(dim=-1, keepdim=True)).clamp_min(0) for weights in maps]
    if not any(bool((rest > _REST).any()) for rest in rests):
        return maps
    return tuple(torch.cat([weights, rest], dim=-1) for weights, rest in zip(maps, rests, strict=True))


def nearest_heads(distances: ArrayLike | HeadDistances, head: int, k: int = 5) -> list[int]:
    """The k heads whose rows are most like a head's, nearest first, without itself.

    distances: [n, n]. head and the result: places in it.

    Raises:
        ValueError: there is no such place.
    """
    matrix = np.asarray(distances)
    if not 0 <= head < len(matrix):
        raise ValueError(f"head is {head}; {len(matrix)} heads were compared, numbered 0 to {len(matrix) - 1}.")
    order = [int(place) for place in np.argsort(matrix[head], kind="stable") if place != head]
    return order[: max(0, k)]


def cluster_order(distances: ArrayLike | HeadDistances, n_clusters: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Heads put in an order in which alike ones are neighbours, and cut into clusters.

    Hierarchical clustering with average linkage; up to 1,000 heads the leaves are ordered optimally (Bar-Joseph et al.
    2001).

    Returns:
        order: [n] which head stands at each place. labels: [n] the cluster of each head (in the matrix's own order),
        numbered from 0 as they follow each other in `order`. There may be fewer clusters than asked for, when heads
        are equally far apart.

    Raises:
        ValueError: `n_clusters` is below 1.
    """
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
    from scipy.spatial.distance import squareform

    if n_clusters < 1:
        raise ValueError(f"n_clusters is {n_clusters}; heads are put into at least one cluster.")
    matrix = np.asarray(distances, dtype=float)
    n = len(matrix)
    if n < 2:
        return np.arange(n), np.zeros(n, dtype=np.intp)
    condensed = squareform(matrix, checks=False)
    tree = linkage(condensed, "average", optimal_ordering=n <= 1000)
    order = leaves_list(tree).astype(np.intp)
    found = fcluster(tree, n_clusters, criterion="maxclust")
    numbers = {label: number for number, label in enumerate(dict.fromkeys(found[order]))}
    return order, np.array([numbers[label] for label in found], dtype=np.intp)


def _size(weights: Tensor) -> str:
    return " × ".join(f"{n:,}" for n in weights.shape[-2:])
