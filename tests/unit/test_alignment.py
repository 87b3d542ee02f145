"""Minimal pairs laid over each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mha_core import Tokens, load_model
from mha_core.alignment import align, aligned_difference, shared_positions
from mha_core.divergence import LN2, row_divergence
from mha_core.model import Model
from tests.tiny import tiny_model_dir

TIRED = "The animal crossed the road because it was frightened."
OPEN = "The animal crossed the old road because it was open."


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir("bert", tmp_path_factory)))


def random_maps(n: int, heads: int = 2, seed: int = 0) -> Tensor:
    return (2 * torch.randn(heads, n, n, generator=torch.Generator().manual_seed(seed))).softmax(-1)


def test_shared_items_are_found_in_order() -> None:
    assert shared_positions("abcde", "abxde") == ((0, 0), (1, 1), (3, 3), (4, 4))
    assert shared_positions([1, 2], [3]) == ()


def test_a_minimal_pair_shares_all_but_what_differs(bert: Model) -> None:
    first, second = bert.tokenize(TIRED), bert.tokenize(OPEN)
    alignment = align(first, second)
    assert alignment.by == "tokens"
    assert all(first.ids[i] == second.ids[j] for i, j in alignment)
    assert list(alignment) == sorted(alignment)
    assert "frightened" in {first.words[first.word_ids[i]] for i in alignment.only_first}
    assert {second.words[second.word_ids[j]] for j in alignment.only_second} == {"old", "open"}
    assert len(alignment) + len(alignment.only_first) == len(first)
    assert f"{len(alignment)} shared tokens; " in alignment.note
    assert align(first, first).note == f"{len(first)} shared tokens: the texts are the same."


def test_other_pieces_are_aligned_by_words(bert: Model, tmp_path_factory: pytest.TempPathFactory) -> None:
    llama = load_model(str(tiny_model_dir("llama", tmp_path_factory)))
    first, second = bert.tokenize("the cat was on the table"), llama.tokenize("the cat was on the table")
    alignment = align(first, second)
    assert alignment.by == "words"
    assert len(alignment) > 0
    for i, j in alignment:
        assert first.words[first.word_ids[i]] == second.words[second.word_ids[j]]
    assert "word by word" in alignment.note


def test_our_own_layers_numbers_are_of_one_sentence_only() -> None:
    own = load_model("own-layer")
    first, second = own.tokenize("she saw it"), own.tokenize("yesterday she saw it")
    assert align(first, second).pairs == ((0, 1), (1, 2), (2, 3))
    assert isinstance(first, Tokens)


def test_the_difference_over_shared_tokens_and_the_rest() -> None:
    a, b = random_maps(5), random_maps(6, seed=1)
    pairs = [(0, 0), (2, 1), (4, 5)]
    found = aligned_difference(a, b, pairs)
    rows_a, rows_b = a[:, [0, 2, 4]], b[:, [0, 1, 5]]
    torch.testing.assert_close(found.difference, rows_a[:, :, [0, 2, 4]] - rows_b[:, :, [0, 1, 5]])
    torch.testing.assert_close(found.hidden_first, rows_a[:, :, [1, 3]].sum(-1))
    torch.testing.assert_close(found.hidden_second, rows_b[:, :, [2, 3, 4]].sum(-1))
    assert found.divergence.shape == (2, 3)
    assert bool((found.divergence <= LN2).all())
    assert found.queries == found.keys == tuple(pairs)


def test_equal_maps_differ_nowhere_and_all_shared_is_the_plain_divergence() -> None:
    a, b = random_maps(4), random_maps(4, seed=2)
    every = [(i, i) for i in range(4)]
    same = aligned_difference(a, a, every)
    assert float(same.difference.abs().max()) == float(same.divergence.max()) == 0
    torch.testing.assert_close(aligned_difference(a, b, every).divergence, row_divergence(a, b), atol=1e-6, rtol=1e-5)
    one = aligned_difference(a[0], b[0], every)  # one head each
    torch.testing.assert_close(one.difference, (a - b)[0])


def test_rows_of_norms_are_compared_by_their_shares() -> None:
    a, b = random_maps(4), random_maps(4, seed=2)
    every = [(i, i) for i in range(4)]
    plain, scaled = aligned_difference(a, b, every), aligned_difference(7 * a, 3 * b, every)
    torch.testing.assert_close(scaled.divergence, plain.divergence, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(scaled.difference, 7 * a - 3 * b)


def test_keys_of_another_text_have_pairs_of_their_own() -> None:
    found = aligned_difference(torch.rand(2, 5), torch.rand(3, 4), [(0, 0), (1, 2)], [(4, 3)])
    assert found.difference.shape == (2, 1)


def test_what_cannot_be_compared_is_said() -> None:
    a = random_maps(4)
    with pytest.raises(ValueError, match="share no token"):
        aligned_difference(a, a, [])
    with pytest.raises(ValueError, match="one head with one head"):
        aligned_difference(a, random_maps(4, heads=3), [(0, 0)])
    with pytest.raises(ValueError, match=r"Position 9 is paired, but the second map's query axis has 4"):
        aligned_difference(a, a, [(0, 9)])
