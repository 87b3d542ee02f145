"""What is shown of a map keeps its mass, and what is not shown is counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from mha_core import InputError, Tokens
from mha_core.pooling import HIDE, PAIRS, DisplayError, MapOptions, displayed

# [CLS] un ##happy dogs [SEP] run fast ##er [SEP]
PAIR = Tokens(
    text="unhappy dogs", text_pair="run faster",
    ids=(1, 2, 3, 4, 5, 6, 7, 8, 5),
    labels=("[CLS]", "un", "happy", "dogs", "[SEP]", "run", "fast", "er", "[SEP]"),
    surfaces=("[CLS]", "un", "happy", "dogs", "[SEP]", "run", "fast", "er", "[SEP]"),
    word_ids=(0, 1, 1, 2, 3, 4, 5, 5, 6),
    words=("[CLS]", "unhappy", "dogs", "[SEP]", "run", "faster", "[SEP]"),
    special=(True, False, False, False, True, False, False, False, True),
    segments=(-1, 0, 0, 0, -1, 1, 1, 1, -1),
)  # fmt: skip
SINGLE = Tokens(
    text="a b", text_pair=None, ids=(1, 2), labels=("a", "b"), surfaces=("a", "b"), word_ids=(0, 1), words=("a", "b"),
    special=(False, False), segments=(0, 0),
)  # fmt: skip


@pytest.fixture(scope="module")
def maps() -> NDArray[np.float64]:
    scores = np.exp(np.random.default_rng(0).normal(size=(3, 9, 9)))
    return np.asarray(scores / scores.sum(axis=-1, keepdims=True))


def test_by_default_everything_is_shown_as_it_is(maps: NDArray[np.float64]) -> None:
    shown = displayed(maps, PAIR, PAIR)
    assert not MapOptions()
    assert shown.weights is maps
    assert shown.note == ""
    assert shown.query_labels == PAIR.labels
    assert shown.key_hovers == PAIR.hovers
    assert shown.query_positions == tuple(range(9))
    np.testing.assert_allclose(shown.shown, 1)
    assert not shown.hidden.any()


def test_words_sum_to_and_average_from(maps: NDArray[np.float64]) -> None:
    shown = displayed(maps, PAIR, PAIR, MapOptions(words=True))
    assert shown.query_labels == shown.key_labels == PAIR.words
    assert shown.query_positions == (0, 1, 3, 4, 5, 6, 8)
    assert shown.key_hovers[1] == "unhappy (2 pieces)"
    np.testing.assert_allclose(shown.weights[:, 0, 1], maps[:, 0, 1] + maps[:, 0, 2])
    np.testing.assert_allclose(shown.weights[:, 1, 0], (maps[:, 1, 0] + maps[:, 2, 0]) / 2)
    np.testing.assert_allclose(shown.weights[:, 5, 1], maps[:, 6:8, 1:3].sum(axis=(1, 2)) / 2)
    np.testing.assert_allclose(shown.weights.sum(axis=-1), 1)  # pooled rows keep their mass
    assert "sum over its pieces" in shown.note


def test_hidden_tokens_leave_the_rest_as_it_was(maps: NDArray[np.float64]) -> None:
    shown = displayed(maps, PAIR, PAIR, MapOptions(hide="special"))
    kept = [1, 2, 3, 5, 6, 7]
    np.testing.assert_array_equal(shown.weights, maps[:, kept][:, :, kept])
    np.testing.assert_allclose(shown.hidden, maps[:, kept][:, :, [0, 4, 8]].sum(-1))
    assert shown.query_positions == tuple(kept)
    share = 100 * shown.hidden.mean()
    assert f"special tokens. That is {share:.0f} % of the attention" in shown.note
    assert "not renormalised" in shown.note


def test_the_first_token_is_a_whole_word_where_words_are_shown(maps: NDArray[np.float64]) -> None:
    assert displayed(maps, PAIR, PAIR, MapOptions(hide="first")).query_positions == tuple(range(1, 9))
    tokens = Tokens("ab c", None, (1, 2, 3), ("a", "b", "c"), ("a", "b", "c"), (0, 0, 1), ("ab", "c"),
                    (False,) * 3, (0,) * 3)  # fmt: skip
    small = np.full((1, 3, 3), 1 / 3)
    assert displayed(small, tokens, tokens, MapOptions(hide="first")).key_labels == ("b", "c")
    words = displayed(small, tokens, tokens, MapOptions(words=True, hide="first"))
    assert words.key_labels == ("c",)
    np.testing.assert_allclose(words.hidden, 2 / 3)
    assert "the first word" in words.note


@pytest.mark.parametrize(
    ("pair", "rows", "columns"),
    [
        ("AA", [1, 2, 3], [1, 2, 3]),
        ("AB", [1, 2, 3], [5, 6, 7]),
        ("BA", [5, 6, 7], [1, 2, 3]),
        ("BB", [5, 6, 7], [5, 6, 7]),
    ],
)
def test_one_sentence_looks_at_the_other(
    maps: NDArray[np.float64], pair: str, rows: list[int], columns: list[int]
) -> None:
    shown = displayed(maps, PAIR, PAIR, MapOptions(pair=pair))
    np.testing.assert_array_equal(shown.weights, maps[:, rows][:, :, columns])
    assert f"all but {pair[0]}→{pair[1]}" in shown.note


@pytest.mark.parametrize(("words", "hide", "pair"), [*product([False, True], HIDE, PAIRS)])
def test_shown_and_hidden_make_up_each_row(maps: NDArray[np.float64], words: bool, hide: str, pair: str) -> None:
    shown = displayed(maps, PAIR, PAIR, MapOptions(words, hide, pair))
    np.testing.assert_allclose(shown.shown + shown.hidden, 1, atol=1e-9)
    np.testing.assert_allclose(shown.weights.sum(-1), shown.shown)
    shape = (3, len(shown.query_labels), len(shown.key_labels))
    assert shown.weights.shape == shape
    assert (len(shown.query_positions), len(shown.key_positions)) == shape[1:]
    assert bool(shown.note) == bool(MapOptions(words, hide, pair))


def test_positions_lead_back_to_rows(maps: NDArray[np.float64]) -> None:
    words = displayed(maps, PAIR, PAIR, MapOptions(words=True, hide="special"))
    assert words.row_of(2, PAIR, words=True) == 0  # "happy" is shown by "unhappy"
    assert words.column_of(7, PAIR, words=True) == 3
    assert words.row_of(4, PAIR, words=True) is None
    pieces = displayed(maps, PAIR, PAIR, MapOptions(hide="special"))
    assert pieces.row_of(2, PAIR, words=False) == 1
    assert pieces.row_of(99, PAIR, words=False) is None


def test_keys_of_another_text() -> None:
    weights = np.full((2, 2, 9), 1 / 9)
    shown = displayed(weights, SINGLE, PAIR, MapOptions(words=True, hide="special"))
    assert shown.weights.shape == (2, 2, 4)
    np.testing.assert_allclose(shown.hidden, 3 / 9)


def test_rows_of_norms_are_kept_in_their_unit(maps: NDArray[np.float64]) -> None:
    shown = displayed(5 * maps, PAIR, PAIR, MapOptions(words=True, hide="special"))
    np.testing.assert_allclose(shown.shown + shown.hidden, 5)


def test_choices_that_do_not_fit_are_said_in_sentences(maps: NDArray[np.float64]) -> None:
    with pytest.raises(DisplayError, match="needs two sentences"):
        displayed(np.full((1, 2, 2), 0.5), SINGLE, SINGLE, MapOptions(pair="AB"))
    only_marks = Tokens(**{**vars(SINGLE), "special": (True, True), "segments": (-1, -1)})
    with pytest.raises(DisplayError, match="when special tokens are hidden"):
        displayed(np.full((1, 2, 2), 0.5), only_marks, only_marks, MapOptions(hide="special"))
    with pytest.raises(DisplayError, match="hide is 'all'; it is one of '', 'special', 'first'"):
        MapOptions(hide="all")
    with pytest.raises(DisplayError, match="pair is 'AC'"):
        MapOptions(pair="AC")
    with pytest.raises(ValueError, match="2 queries and 9 keys"):
        displayed(maps, SINGLE, PAIR)
    assert not issubclass(DisplayError, InputError)


def test_options_can_be_kept_by() -> None:
    assert {MapOptions(True, "first"): 1}[MapOptions(words=True, hide="first")] == 1


# ---------------------------------------------------------------- long texts go the fast way, to the same numbers


def long_pair(n: int = 300) -> Tokens:
    """Two texts whose words have one to four pieces, with marks around and between them."""
    lengths = np.random.default_rng(1).choice([1, 1, 1, 2, 3, 4], size=n)
    words = np.repeat(np.arange(n), lengths)[:n]
    special = np.isin(words, (0, words[n // 2], words[-1]))
    segments = np.where(special, -1, np.arange(n) > n // 2)
    names = tuple(f"w{word}" for word in range(words.max() + 1))
    labels = tuple(f"p{i}" for i in range(n))
    return Tokens(
        text="long", text_pair="pair", ids=tuple(range(n)), labels=labels, surfaces=labels,
        word_ids=tuple(words.tolist()), words=names, special=tuple(special.tolist()),
        segments=tuple(segments.tolist()),
    )  # fmt: skip


def plainly(array: NDArray[np.float32], tokens: Tokens, options: MapOptions) -> tuple[NDArray[np.float32], ...]:
    """Maps, shown and hidden mass, word by word: additions in the order of the pieces, as float32 does them."""
    keep = np.ones(len(tokens), dtype=bool)
    ids = np.array(tokens.word_ids)
    if options.hide == "special":
        keep &= ~np.array(tokens.special)
    elif options.hide == "first":
        keep &= (ids != ids[0]) if options.words else (np.arange(len(tokens)) > 0)
    segments = np.array(tokens.segments)
    sides = [keep & (segments == "AB".index(side)) for side in options.pair] if options.pair else [keep, keep]
    rows, columns = map(np.flatnonzero, sides)
    mass, part = array.sum(axis=2)[:, rows], array[:, rows][:, :, columns]
    if options.words:
        groups = [[np.flatnonzero(ids[side] == word) for word in dict.fromkeys(ids[side])] for side in (rows, columns)]
        part = np.stack([sum_of(part, group, 1) for group in groups[0]], axis=1)
        part = np.stack([sum_of(part, group, 2) for group in groups[1]], axis=2)
        counts = np.array([len(group) for group in groups[0]], dtype=np.float32)
        part = part / counts[:, None]
        mass = np.stack([sum_of(mass, group, 1) for group in groups[0]], axis=1) / counts
    shown = np.ascontiguousarray(part).sum(axis=2)
    hidden = np.maximum(mass - shown, 0) if len(columns) < len(tokens) else np.zeros_like(shown)
    return part, shown, hidden


def sum_of(array: NDArray[np.float32], places: NDArray[np.intp], axis: int) -> NDArray[np.float32]:
    total = array.take(places[0], axis=axis)
    for place in places[1:]:
        total = total + array.take(place, axis=axis)
    return total


@pytest.mark.parametrize(("words", "hide", "pair"), list(product((False, True), HIDE, PAIRS)))
def test_a_long_text_is_pooled_to_the_last_bit_as_word_by_word(words: bool, hide: str, pair: str) -> None:
    tokens, options = long_pair(), MapOptions(words, hide, pair)
    array = np.random.default_rng(2).random((3, len(tokens), len(tokens)), dtype=np.float32)
    before = array.copy()
    shown = displayed(array, tokens, tokens, options)
    for found, expected in zip(
        (shown.weights, shown.shown, shown.hidden), plainly(array, tokens, options), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(array, before)
    # One head alone is what it is among the others.
    alone = displayed(array[1:2], tokens, tokens, options)
    np.testing.assert_array_equal(alone.weights[0], shown.weights[1])
