"""Intervals and max-T over many columns: the single-column library functions, planted effects, error under the null."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from mha_core.head_statistics import intervals_of, max_t_p


def planted(
    seed: int, k: int = 12, each: int = 3, columns: int = 40, shift: float = 0.0
) -> tuple[NDArray[np.float64], list[str]]:
    """Templates with an effect of their own, prompts around it; column 0 is shifted."""
    rng = np.random.default_rng(seed)
    values = np.repeat(rng.normal(size=(k, columns)), each, axis=0) + 0.3 * rng.normal(size=(k * each, columns))
    values[:, 0] += shift
    return values, [f"t{number // each}" for number in range(k * each)]


def test_p_of_each_column_is_the_librarys_exact_one() -> None:
    values, clusters = planted(1, k=8, columns=5, shift=1.0)
    p, adjusted = max_t_p(values, clusters)
    sums = values.reshape(8, 3, 5).sum(axis=1)
    for column in range(5):
        exact = stats.permutation_test(
            (sums[:, column],), lambda x, axis: np.abs(x.sum(axis=axis)), permutation_type="samples", vectorized=True,
            n_resamples=10_000, alternative="greater",
        )  # fmt: skip
        assert p[column] == pytest.approx(float(exact.pvalue))
    assert (adjusted >= p).all()
    assert (adjusted <= 1).all()


def test_the_largest_statistic_of_each_flip_corrects_for_all_columns() -> None:
    """By hand: two columns, three templates, four flips that differ."""
    values = np.array([[1.0, 3.0], [1.0, -1.0], [1.0, 1.0]])
    p, adjusted = max_t_p(values, ["a", "b", "c"])
    signs = np.array([[1, a, b] for a in (1, -1) for b in (1, -1)])
    t = np.abs(signs @ (values / np.sqrt((values**2).sum(axis=0))))
    assert p.tolist() == [(t[:, c] >= t[0, c] - 1e-12).mean() for c in (0, 1)]
    assert adjusted.tolist() == [(t.max(axis=1) >= t[0, c] - 1e-12).mean() for c in (0, 1)]


def test_a_planted_head_is_found_and_under_the_null_few_are() -> None:
    values, clusters = planted(3, k=20, shift=3.0)
    _, adjusted = max_t_p(values, clusters, n_resamples=1999)
    assert adjusted[0] < 0.01
    assert (adjusted[1:] > 0.05).all()
    wrong, wrong_alone = 0, 0
    for seed in range(100):
        values, clusters = planted(seed + 100, k=10)
        p, adjusted = max_t_p(values, clusters)
        wrong += bool((adjusted < 0.1).any())
        wrong_alone += bool((p < 0.1).any())
    assert wrong <= 20  # 10 expected
    assert wrong_alone > 80  # without the correction nearly every map shows some head


def test_intervals_cover_about_as_often_as_they_say() -> None:
    inside = np.zeros(40)
    for seed in range(100):
        values, clusters = planted(seed, k=24, shift=0.0)
        mean, low, high = intervals_of(values, clusters, n_resamples=400)
        np.testing.assert_allclose(mean, values.mean(axis=0))
        inside += (low <= 0) & (high >= 0)
    assert 0.88 <= inside.mean() / 100 <= 0.97


def test_they_repeat_with_the_seed_and_few_templates_have_no_interval() -> None:
    values, clusters = planted(5)
    assert [x.tolist() for x in intervals_of(values, clusters, seed=3)] == [
        x.tolist() for x in intervals_of(values, clusters, seed=3)
    ]
    _, low, _ = intervals_of(values[:12], clusters[:12])
    assert np.isnan(low).all()
    p, _ = max_t_p(values[:3], clusters[:3])
    assert np.isnan(p).all()
    still, _ = max_t_p(np.zeros((6, 2)), list("abcdef"))
    assert still.tolist() == [1, 1]


def test_values_must_be_a_table_with_a_cluster_per_row() -> None:
    with pytest.raises(ValueError, match="must be"):
        intervals_of(np.zeros(4), list("abcd"))
    with pytest.raises(ValueError, match="one cluster per value"):
        intervals_of(np.zeros((4, 2)), list("abc"))
