"""Measures of attention and of effects, against their definitions written out with NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mha_core.metrics import (
    MEASURES,
    cosine_similarity,
    entropy_share,
    first_token_share,
    kl_divergence,
    logit_difference,
    mean_distance,
    next_token_share,
    previous_token_share,
    row_entropies,
    self_share,
    sentence_embedding,
    sentence_measures,
    special_share,
    token_losses,
    token_movement,
)


def random_weights(heads: int = 3, n: int = 7, causal: bool = False, seed: int = 0) -> Tensor:
    """Attention of random scores, rows summing to 1."""
    scores = 2 * torch.randn(heads, n, n, generator=torch.Generator().manual_seed(seed))
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    return scores.softmax(dim=-1)


# ---------------------------------------------------------------- shares of attention


@pytest.mark.parametrize("causal", [False, True])
def test_shares_are_means_over_queries(causal: bool) -> None:
    weights = random_weights(causal=causal)
    maps = weights.double().numpy()
    n = maps.shape[-1]
    expected = {
        "first": [m[:, 0].mean() for m in maps],
        "previous": [np.mean([m[i, i - 1] for i in range(1, n)]) for m in maps],
        "next": [np.mean([m[i, i + 1] for i in range(n - 1)]) for m in maps],
        "self": [np.mean([m[i, i] for i in range(n)]) for m in maps],
        "distance": [np.mean([sum(m[i, j] * abs(i - j) for j in range(n)) for i in range(n)]) for m in maps],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(MEASURES[name].compute(weights).numpy(), values, rtol=1e-5, atol=1e-7)


def test_patterns_that_are_pure_have_a_share_of_one() -> None:
    n = 5
    eye = torch.eye(n)[None]
    sink = torch.zeros(1, n, n)
    sink[..., 0] = 1
    before = torch.zeros(1, n, n)
    before[0, range(1, n), range(n - 1)] = 1
    assert first_token_share(sink).item() == 1
    assert self_share(eye).item() == 1
    assert previous_token_share(before).item() == 1
    assert previous_token_share(eye).item() == 0
    assert next_token_share(before.mT).item() == 1
    assert mean_distance(eye).item() == 0
    assert mean_distance(sink).item() == 2  # (0 + 1 + 2 + 3 + 4) / 5


def test_a_single_token_has_no_token_before_it() -> None:
    assert previous_token_share(torch.ones(4, 1, 1)).tolist() == [0] * 4
    assert next_token_share(torch.ones(4, 1, 1)).tolist() == [0] * 4
    assert first_token_share(torch.ones(4, 1, 1)).tolist() == [1] * 4


# ---------------------------------------------------------------- entropy


def test_spread_is_entropy_over_the_most_it_could_be() -> None:
    maps = random_weights(causal=True)
    rows = []
    for m in maps.double().numpy():
        shares = [0.0]  # the first row has one key
        for i in range(1, m.shape[0]):
            open_keys = m[i, : i + 1]
            shares.append(float(-(open_keys * np.log(open_keys)).sum() / math.log(i + 1)))
        rows.append(np.mean(shares))
    np.testing.assert_allclose(entropy_share(maps).numpy(), rows, rtol=1e-5)


def test_a_row_of_one_key_has_entropy_zero_and_divides_by_nothing() -> None:
    assert entropy_share(torch.ones(2, 1, 1)).tolist() == [0, 0]
    assert entropy_share(torch.eye(6)[None]).item() == 0


def test_entropies_of_rows_in_pieces_are_those_of_rows_at_once() -> None:
    weights = random_weights(9, 300)  # more numbers than are worked on at a time
    expected = torch.special.entr(weights.double()).sum(-1)
    torch.testing.assert_close(row_entropies(weights).double(), expected, rtol=1e-5, atol=1e-6)


def test_an_even_row_has_spread_one_and_an_empty_row_none() -> None:
    assert entropy_share(torch.full((1, 4, 4), 0.25)).item() == pytest.approx(1)
    assert entropy_share(torch.zeros(1, 3, 3)).item() == 0


@pytest.mark.parametrize("name", sentence_measures(square=True, special=True))
@pytest.mark.parametrize("n", [1, 2, 9])
def test_every_measure_is_finite_and_in_its_range(name: str, n: int) -> None:
    special = torch.arange(n) % 3 == 0
    low, high = MEASURES[name].range(n, n)
    for causal in (False, True):
        values = MEASURES[name].compute(random_weights(4, n, causal), special=special)
        assert values.shape == (4,)
        assert bool(((values >= low) & (values <= high + 1e-6)).all())


def test_measures_that_need_no_square_take_cross_attention() -> None:
    cross = torch.randn(3, 4, 9).softmax(dim=-1)
    special = torch.zeros(9, dtype=torch.bool)
    for name in sentence_measures(square=False, special=True):
        assert MEASURES[name].compute(cross, special=special).shape == (3,)
    with pytest.raises(ValueError, match="4 queries and 9 keys"):
        MEASURES["previous"].compute(cross)


def test_the_share_of_special_tokens_is_that_of_their_columns() -> None:
    weights = random_weights()
    special = torch.tensor([True, False, False, True, False, False, True])
    torch.testing.assert_close(special_share(weights, special), weights[..., [0, 3, 6]].sum(-1).mean(-1))
    with pytest.raises(ValueError, match="one per key"):
        special_share(weights, special[:3])


# ---------------------------------------------------------------- divergence, losses, movement


def test_kl_is_its_definition() -> None:
    logits = torch.randn(2, 5, 50, generator=torch.Generator().manual_seed(3)).double()
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in logits.numpy())
    np.testing.assert_allclose(kl_divergence(logits[0], logits[1]).numpy(), (p * np.log(p / q)).sum(-1), rtol=1e-9)


def test_kl_is_never_negative_and_zero_on_equal_logits() -> None:
    logits = 8 * torch.randn(64, 4000, generator=torch.Generator().manual_seed(4))
    assert kl_divergence(logits, logits).tolist() == [0] * 64
    shifted = kl_divergence(logits, logits + 5)  # the same distribution, other rounding
    assert bool((shifted >= 0).all())
    assert float(shifted.max()) < 1e-4
    assert bool((kl_divergence(logits, logits.flip(0)) > 0).all())


def test_kl_of_many_runs_against_one_clean_run() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(5))
    together = kl_divergence(logits[0], logits)
    assert together[0] == 0
    for run in (1, 2):
        assert float(together[run]) == pytest.approx(float(kl_divergence(logits[0], logits[run])))


def test_token_losses_are_the_cross_entropy_of_each_next_token() -> None:
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(6)).double()
    ids = torch.tensor([3, 29, 0, 7, 7, 12])
    exponentials = np.exp(logits.numpy())
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    expected = [-math.log(probabilities[i, ids[i + 1]]) for i in range(5)]
    np.testing.assert_allclose(token_losses(logits, ids).numpy(), expected, rtol=1e-9)


def test_one_token_has_no_loss() -> None:
    assert token_losses(torch.randn(1, 30), torch.tensor([4])).shape == (0,)


def test_logit_difference_is_a_difference() -> None:
    assert logit_difference(torch.tensor([[1.0, 5.0, 2.5]]), 1, 2).tolist() == [2.5]


def test_a_sentence_is_the_mean_of_its_tokens_and_similarity_a_cosine() -> None:
    hidden = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert sentence_embedding(hidden).tolist() == [1.5, 0.5]
    assert cosine_similarity(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 2.0])) == 0
    assert cosine_similarity(torch.tensor([1.0, 1.0]), torch.tensor([-2.0, -2.0])) == pytest.approx(-1)


def test_movement_is_relative_to_each_vectors_length() -> None:
    clean = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    changed = torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]])
    assert token_movement(clean, changed).tolist() == [0, 1.5, 0]
