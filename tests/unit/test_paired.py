"""Paired statistics against numbers that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from mha_core.paired import auc_terms, cluster_interval, holm, sign_flip_p


def test_holm_gives_the_numbers_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_a_missing_p_value_stays_missing_and_does_not_count() -> None:
    corrected = holm([0.02, float("nan"), 0.01])
    assert corrected[0] == pytest.approx(0.02)
    assert math.isnan(corrected[1])
    assert corrected[2] == pytest.approx(0.02)


def test_sign_flips_of_few_templates_are_all_made() -> None:
    """Five clusters of one sign: only the two extreme flips of 32 are as large."""
    assert sign_flip_p([1, 2, 1, 3, 2], list("abcde")) == pytest.approx(2 / 32)


def test_prompts_of_one_template_flip_together() -> None:
    differences = [1.0] * 40
    assert sign_flip_p(differences, ["a", "b"] * 20) == pytest.approx(0.5)  # 2^(1 − 2)
    assert sign_flip_p(differences, [str(i) for i in range(40)]) < 0.001


def test_the_test_keeps_its_level_where_nothing_is_different() -> None:
    rng = np.random.default_rng(0)
    clusters = [str(i // 4) for i in range(80)]
    p = [sign_flip_p(np.repeat(rng.normal(size=20), 4) + rng.normal(size=80), clusters, n_resamples=199)
         for _ in range(200)]  # fmt: skip
    assert 0.01 <= np.mean(np.array(p) <= 0.05) <= 0.10


def test_an_interval_of_clusters_is_wider_than_one_that_takes_prompts_for_independent() -> None:
    rng = np.random.default_rng(1)
    values = np.repeat(rng.normal(size=20), 10)
    clustered = cluster_interval(values, [str(i // 10) for i in range(200)])
    apart = cluster_interval(values, [str(i) for i in range(200)])
    assert clustered.mean == pytest.approx(values.mean())
    assert (clustered.high - clustered.low) > 2 * (apart.high - apart.low)
    assert (clustered.n, clustered.n_clusters) == (200, 20)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(100):
        values = np.repeat(rng.normal(size=30), 3) + rng.normal(size=90)
        found = cluster_interval(values, [str(i // 3) for i in range(90)], n_resamples=300)
        hits += found.low <= 0 <= found.high
    assert hits >= 86


def test_few_templates_have_no_interval() -> None:
    assert math.isnan(cluster_interval([1.0, 2.0, 3.0, 4.0], list("abcd")).low)
    assert cluster_interval([1.0, 2.0, 3.0, 4.0, 5.0], list("abcde")).low < 3


def test_one_template_has_no_interval_and_no_test() -> None:
    found = cluster_interval([1.0, 2.0], ["a", "a"])
    assert found.mean == 1.5
    assert math.isnan(found.low)
    assert math.isnan(sign_flip_p([1.0, 2.0], ["a", "a"]))


def test_no_difference_at_all_is_no_evidence() -> None:
    assert sign_flip_p([0.0] * 6, list("abcdef")) == 1.0
    found = cluster_interval([0.0] * 6, list("abcdef"))
    assert (found.low, found.high) == (0, 0)


def test_auc_terms_average_to_the_auc_and_spread_as_it_does() -> None:
    rng = np.random.default_rng(3)
    positive, negative = rng.normal(1, 1, 300), rng.normal(0, 1, 300)
    terms = auc_terms(positive, negative)
    auc = stats.mannwhitneyu(positive, negative).statistic / 300**2
    assert terms.mean() == pytest.approx(auc)
    draws = [auc_terms(rng.normal(1, 1, 300), rng.normal(0, 1, 300)).mean() for _ in range(300)]
    assert terms.std(ddof=1) / math.sqrt(300) == pytest.approx(np.std(draws), rel=0.2)


def test_values_without_a_cluster_each_are_refused() -> None:
    with pytest.raises(ValueError, match="one cluster per value"):
        cluster_interval([1.0, 2.0], ["a"])
