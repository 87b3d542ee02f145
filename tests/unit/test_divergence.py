"""Jensen–Shannon divergence: its identities, all pairs of heads, and what is made of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor

from mha_core import HeadRef, Trace, load_model
from mha_core.divergence import (
    LN2,
    cluster_order,
    divergence_from_mean,
    head_distances,
    nearest_heads,
    normalised,
    pairwise_divergence,
    row_divergence,
    with_rest,
)
from tests.tiny import tiny_model_dir


def random_maps(n: int = 5, queries: int = 6, keys: int = 7, seed: int = 0) -> Tensor:
    return (3 * torch.randn(n, queries, keys, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def plainly(a: Tensor, b: Tensor) -> np.ndarray:
    """The definition in float64, attention to no key as one more key."""
    p, q = (torch.cat([w, 1 - w.sum(-1, keepdim=True)], dim=-1).clamp_min(0).double() for w in (a, b))
    mean = (p + q) / 2
    return ((torch.xlogy(p, p / mean.clamp_min(1e-30)) + torch.xlogy(q, q / mean.clamp_min(1e-30))).sum(-1) / 2).numpy()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return load_model(str(tiny_model_dir("llama", tmp_path_factory))).run("The keys are on the table in the hallway.")


def test_it_equals_scipy() -> None:
    a, b = random_maps(2)
    expected = [jensenshannon(p, q) ** 2 for p, q in zip(a.numpy(), b.numpy(), strict=True)]
    np.testing.assert_allclose(row_divergence(a, b).numpy(), expected, atol=1e-6)


def test_it_is_symmetric_zero_on_equal_rows_and_at_most_ln_2() -> None:
    a, b = random_maps(2, seed=1)
    torch.testing.assert_close(row_divergence(a, b), row_divergence(b, a))
    assert float(row_divergence(a, a).max()) == 0
    apart = row_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    assert apart.item() == pytest.approx(math.log(2))
    assert normalised(apart).item() == pytest.approx(1)
    assert bool((row_divergence(a, b) <= LN2).all())


def test_a_known_number() -> None:
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])
    assert row_divergence(p, q).item() == pytest.approx(0.75 * math.log(4 / 3))  # = 0.2158


def test_attention_to_no_key_counts_as_a_key() -> None:
    nothing, something = torch.zeros(1, 3), torch.tensor([[0.2, 0.3, 0.5]])
    assert row_divergence(nothing, something).item() == pytest.approx(math.log(2))
    assert row_divergence(nothing, nothing).item() == 0
    (kept,) = with_rest(something)
    assert kept is something


def test_maps_of_different_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="6 × 7 and 6 × 8"):
        row_divergence(random_maps(), random_maps(keys=8))


def test_what_averaging_hides() -> None:
    maps = random_maps(4)
    expected = [row_divergence(head, maps.mean(0)).mean().item() for head in maps]
    mean, divergence = divergence_from_mean(maps)
    np.testing.assert_allclose(mean, maps.mean(0), atol=1e-7)
    np.testing.assert_allclose(divergence.mean(-1), expected, atol=1e-7)
    assert float(divergence_from_mean(maps[:1].expand(3, -1, -1))[1].max()) < 1e-6


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_long_layers_distance_from_its_mean_is_that_of_its_rows(causal: bool, sinks: bool) -> None:
    maps = random_maps(3, queries=600, keys=600)
    if causal:
        maps = maps.tril() / maps.tril().sum(-1, keepdim=True)
    if sinks:
        maps = maps * torch.linspace(0.2, 1, 600)[:, None]
        maps[1, 5] = 0  # a row that goes to no key
    expected = [plainly(head, maps.mean(0)).mean() for head in maps]
    np.testing.assert_allclose(divergence_from_mean(maps)[1].mean(-1), expected, atol=1e-6)
    for dtype in (torch.float32, torch.float64):
        found = row_divergence(maps.to(dtype), maps[1].to(dtype))
        assert found.dtype == dtype
        np.testing.assert_allclose(found.numpy(), plainly(maps, maps[1]), atol=1e-6)


def test_all_pairs_equal_pair_by_pair() -> None:
    maps = random_maps(9, queries=8, keys=8)
    maps[:, 0] = torch.eye(8)[0]  # as in a causal model, where the first query has one key
    found = pairwise_divergence(maps)
    expected = [[row_divergence(a, b).mean().item() for b in maps] for a in maps]
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(found, found.T)
    assert not found.diagonal().any()


def test_distances_of_a_run(trace: Trace) -> None:
    seen: list[tuple[int, int]] = []
    distances = head_distances(trace, progress=lambda done, total: seen.append((done, total)))
    n = len(trace.tokens)
    maps = torch.cat([trace.weights(layer) for layer in (0, 1)])
    assert distances.heads[5] == HeadRef(1, 1)
    assert distances.note == f"Mean over all {n} rows."
    assert seen == [(i, n) for i in range(n)]
    assert np.asarray(distances).shape == (8, 8)
    assert distances.matrix[2, 5] == pytest.approx(row_divergence(maps[2], maps[5]).mean().item(), abs=1e-6)


def test_of_a_long_text_evenly_spaced_rows_are_compared_and_said(trace: Trace) -> None:
    n = len(trace.tokens)
    distances = head_distances(trace, max_cells=36 * n * 2)
    assert distances.queries[0] == 0
    assert distances.queries[-1] == n - 1
    assert 2 <= len(distances.queries) < n
    assert f"of {n} rows, evenly spaced" in distances.note
    rows = list(distances.queries)
    maps = torch.cat([trace.weights(layer)[:, rows] for layer in (0, 1)])
    assert distances.matrix[0, 7] == pytest.approx(row_divergence(maps[0], maps[7]).mean().item(), abs=1e-6)


def test_progress_can_end_the_work(trace: Trace) -> None:
    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        head_distances(trace, progress=stop)


def test_nearest_heads_come_in_order() -> None:
    distances = np.array([[0, 0.3, 0.1, 0.2], [0.3, 0, 0.5, 0.6], [0.1, 0.5, 0, 0.4], [0.2, 0.6, 0.4, 0]])
    assert nearest_heads(distances, 0, 2) == [2, 3]
    assert nearest_heads(distances, 1, 9) == [0, 2, 3]
    with pytest.raises(ValueError, match="numbered 0 to 3"):
        nearest_heads(distances, 4)


def test_clusters_keep_alike_heads_together() -> None:
    groups = np.array([0, 1, 0, 2, 1, 0, 2])
    distances = np.where(groups[:, None] == groups, 0.01, 0.5)
    np.fill_diagonal(distances, 0)
    order, labels = cluster_order(distances, 3)
    assert sorted(order.tolist()) == list(range(7))
    assert labels[order].tolist() == sorted(labels.tolist())  # numbered as they follow each other
    assert len({(int(g), int(label)) for g, label in zip(groups, labels, strict=True)}) == 3
    one, same = cluster_order(distances[:1, :1], 4)
    assert (one.tolist(), same.tolist()) == ([0], [0])
    with pytest.raises(ValueError, match="at least one cluster"):
        cluster_order(distances, 0)
