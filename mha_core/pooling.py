"""How maps are shown: words instead of pieces, tokens hidden, one sentence of a pair looking at the other.

Nothing here renormalises a row: what is not shown is counted and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mha_core.tokens import Tokens

HIDE = ("", "special", "first")
PAIRS = ("", "AA", "AB", "BA", "BB")
_WORDS = 128  # rows of words that are made at a time: a megabyte of a long text, which stays in the processor's cache
Floats = NDArray[np.floating]


class DisplayError(ValueError):
    """A choice of what is shown that leaves nothing, or does not fit the text, as a sentence for the reader."""


@dataclass(frozen=True)
class MapOptions:
    """What is shown of a map.

    words: pieces joined to words; attention *to* a word is the sum over its pieces, *from* a word their average.
    hide: "" for nothing, "special" for the model's own marks, "first" for the first token (the first word, with words).
    pair: "" for everything; "AB" for queries of the first sentence looking at keys of the second, and so on.

    Raises:
        DisplayError: another value.
    """

    words: bool = False
    hide: str = ""
    pair: str = ""

    def __post_init__(self) -> None:
        for name, value, accepted in (("hide", self.hide, HIDE), ("pair", self.pair, PAIRS)):
            if value not in accepted:
                choices = ", ".join(repr(choice) for choice in accepted)
                raise DisplayError(f"{name} is {str(value)[:40]!r}; it is one of {choices}.")

    def __bool__(self) -> bool:
        """Whether anything is changed at all."""
        return self != MapOptions()


@dataclass(frozen=True, eq=False)
class Frame:
    """What stands around maps as they are shown.

    query_labels, key_labels: one per row and column. query_hovers, key_hovers: longer names for tooltips.
    query_positions, key_positions: the token position each row and column stands for (of a word: its first piece).
    """

    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    query_hovers: tuple[str, ...]
    key_hovers: tuple[str, ...]
    query_positions: tuple[int, ...]
    key_positions: tuple[int, ...]

    def row_of(self, position: int, tokens: Tokens, words: bool) -> int | None:
        """The row that shows a query position, or None when it is hidden. words: whether rows are words."""
        return _place(self.query_positions, position, tokens, words)

    def column_of(self, position: int, tokens: Tokens, words: bool) -> int | None:
        """The column that shows a key position, or None when it is hidden."""
        return _place(self.key_positions, position, tokens, words)


@dataclass(frozen=True, eq=False)
class Displayed(Frame):
    """Maps as they are shown.

    shown, hidden: [head, query] the attention of each row to shown and to hidden keys; together the row's sum.
    note: what was done and how much is not shown, in sentences; empty when the maps are shown as they are.
    weights: [head, query, key] of what is left, never renormalised.
    """

    shown: Floats
    hidden: Floats
    note: str
    weights: Floats


class Selection:
    """What the options leave of maps over these tokens, worked out once for all heads.

    options: None leaves everything.

    Raises:
        DisplayError: the options leave no query or no key, or want a pair of sentences where there is one.
    """

    def __init__(self, queries: Tokens, keys: Tokens, options: MapOptions | None = None) -> None:
        self.queries, self.keys, self.options = queries, keys, options or MapOptions()
        self._rows, self._columns = _kept(queries, self.options, 0), _kept(keys, self.options, 1)
        _require_something(self._rows, self._columns, self.options)
        self._words = (_Words(queries, self._rows), _Words(keys, self._columns)) if self.options.words else None
        self._some_rows = self._words[0].parts(queries, self._rows) if self._words else []

    def of(self, weights: ArrayLike) -> tuple[Floats, Floats, Floats]:
        """What is left of maps [head, query, key], never renormalised: the maps themselves [head, row, column]; how
        much of each row they show [head, row], and how much of it is hidden.

        Raises:
            ValueError: the array does not belong to these tokens.
        """
        array = np.asarray(weights)
        if array.ndim != 3 or array.shape[1:] != (len(self.queries), len(self.keys)):
            raise ValueError(
                f"weights has shape {array.shape}; [head, query, key] with {len(self.queries)} queries and "
                f"{len(self.keys)} keys is needed for these tokens."
            )
        mass = array.sum(axis=2)
        if self._words is None:
            part = _take(_take(array, self._rows, axis=1), self._columns, axis=2)
            mass = mass[:, self._rows]
        else:
            part, mass = self._join(array, mass, *self._words)
        shown = mass if part is array else part.sum(axis=2)
        all_shown = len(self._columns) == len(self.keys)
        return part, shown, np.zeros_like(shown) if all_shown else np.maximum(mass - shown, 0)

    @cached_property
    def frame(self) -> Frame:
        """What stands around the maps."""
        sides = (self.queries, self._rows), (self.keys, self._columns)
        if self._words is None:
            starts = [positions for _, positions in sides]
        else:
            starts = [words.first for words in self._words]
        names = [_names(side[0], start, self.options.words) for side, start in zip(sides, starts, strict=True)]
        return Frame(
            names[0][0], names[1][0], names[0][1], names[1][1], tuple(starts[0].tolist()), tuple(starts[1].tolist())
        )

    @property
    def hides(self) -> bool:
        """Whether some of the attention is not shown."""
        return bool(self.options.hide or self.options.pair)

    def note(self, shown: Floats | None = None, hidden: Floats | None = None) -> str:
        """What was done, in sentences; empty when the maps are shown as they are.

        shown, hidden: [head, row] of all heads, as `of` gave them; needed where the selection hides something.
        """
        parts = []
        if self.options.words:
            parts.append("Attention to a word is the sum over its pieces; from a word, the average over its pieces.")
        if self.hides:
            assert shown is not None, "a selection that hides something says how much"
            assert hidden is not None, "a selection that hides something says how much"
            parts.append(_hidden_note(self.options, hidden, shown + hidden))
        return " ".join(parts)

    def _join(self, array: Floats, mass: Floats, rows: _Words, columns: _Words) -> tuple[Floats, Floats]:
        """Pieces joined to words: the maps, and the rows' sums."""
        counts = rows.lengths.astype(array.dtype)
        part = np.empty((len(array), len(rows.first), len(columns.first)), dtype=array.dtype)
        for head, whole in enumerate(array):
            for words, positions, some in self._some_rows:  # each step would go through a long text's megabytes
                joined = words.add_up(_take(whole, positions, axis=0), axis=0)
                joined = columns.add_up(_take(joined, self._columns, axis=1), axis=1)
                np.divide(joined, counts[some, None], out=part[head, some])
        return part, rows.add_up(mass[:, self._rows], axis=1) / counts


class _Words:
    """The words that kept positions make up. first: where each begins, in the text. lengths: how many pieces it has."""

    def __init__(self, tokens: Tokens, positions: NDArray[np.intp]) -> None:
        words = np.array(tokens.word_ids)[positions]
        starts = np.flatnonzero(np.diff(words, prepend=words[0] - 1))
        self.first = positions[starts]
        self.lengths = np.diff(np.append(starts, len(positions)))
        # Piece by piece over all words at once: words are short.
        more = [(number, np.flatnonzero(self.lengths > number)) for number in range(1, int(self.lengths.max()))]
        self._starts = torch.from_numpy(starts)
        self._more = [(torch.from_numpy(which), torch.from_numpy(starts[which] + number)) for number, which in more]

    def parts(self, tokens: Tokens, positions: NDArray[np.intp]) -> list[tuple[_Words, NDArray[np.intp], slice]]:
        """Some of the words at a time: the words, their positions, and which of all the words they are."""
        ends = np.append(self._starts.numpy(), len(positions))
        parts = []
        for start in range(0, len(self.lengths), _WORDS):
            stop = min(start + _WORDS, len(self.lengths))
            some = positions[ends[start] : ends[stop]]
            parts.append((_Words(tokens, some), some, slice(start, stop)))
        return parts

    def add_up(self, array: Floats, axis: int) -> Floats:
        """Pieces along an axis added up to words."""
        if len(self._starts) == array.shape[axis]:
            return array
        # With torch, which holds up no other thread meanwhile.
        usable = array.flags.writeable and min(array.strides) >= 0
        pieces = torch.from_numpy(array if usable else array.copy())
        words = pieces.index_select(axis, self._starts)
        for which, places in self._more:
            words.index_add_(axis, which, pieces.index_select(axis, places))
        return words.numpy()


def displayed(weights: ArrayLike, queries: Tokens, keys: Tokens, options: MapOptions | None = None) -> Displayed:
    """Maps [head, query, key] as the options want them shown.

    Args:
        weights: [head, query, key], one query per token of `queries`, one key per token of `keys`. Value-weighted maps
            and other non-negative arrays of that shape do as well; then "shown" and "hidden" are in their unit.
        options: None shows everything.

    Raises:
        DisplayError: the options leave no query or no key, or want a pair of sentences where there is one.
        ValueError: the array does not belong to these tokens.
    """
    selection = Selection(queries, keys, options)
    part, shown, hidden = selection.of(weights)
    return Displayed(
        **vars(selection.frame), shown=shown, hidden=hidden, note=selection.note(shown, hidden), weights=part
    )


def _take(array: Floats, positions: NDArray[np.intp], axis: int) -> Floats:
    """The positions along an axis; no copy where they follow each other, the array itself where they are all."""
    if len(positions) == array.shape[axis]:
        return array
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):
        return array[(slice(None),) * axis + (slice(first, last + 1),)]
    return np.take(array, positions, axis=axis)


def _kept(tokens: Tokens, options: MapOptions, side: int) -> NDArray[np.intp]:
    """The positions of queries (side 0) or keys (side 1) that stay."""
    keep = np.ones(len(tokens), dtype=bool)
    if options.hide == "special":
        keep &= ~np.array(tokens.special, dtype=bool)
    elif options.hide == "first" and len(tokens):
        first = [word == tokens.word_ids[0] for word in tokens.word_ids]
        keep &= ~np.array(first if options.words else [i == 0 for i in range(len(tokens))])
    if options.pair:
        keep &= np.array(tokens.segments) == "AB".index(options.pair[side])
    return np.flatnonzero(keep)


def _require_something(rows: NDArray[np.intp], columns: NDArray[np.intp], options: MapOptions) -> None:
    if len(rows) and len(columns):
        return
    if options.pair and "B" in options.pair:
        raise DisplayError(
            f"{options.pair[0]}→{options.pair[1]} needs two sentences, and there is no second one here. Give the "
            "model a pair, or show everything."
        )
    hiding = {"special": " when special tokens are hidden", "first": " when the first token is hidden"}
    raise DisplayError(
        f"Nothing is left to show{hiding.get(options.hide, '')}: the text has no other tokens there. Show everything, "
        "or type a longer text."
    )


def _names(
    tokens: Tokens, positions: Sequence[int] | NDArray[np.intp], words: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and hovers of what is shown."""
    if not words:
        hovers = tokens.hovers
        return tuple(tokens.labels[i] for i in positions), tuple(hovers[i] for i in positions)
    counts: dict[int, int] = {}
    for word in tokens.word_ids:
        counts[word] = counts.get(word, 0) + 1
    labels = tuple(tokens.words[tokens.word_ids[i]] for i in positions)
    pieces = [counts[tokens.word_ids[i]] for i in positions]
    hovers = tuple(label if n == 1 else f"{label} ({n} pieces)" for label, n in zip(labels, pieces, strict=True))
    return labels, hovers


def _hidden_note(options: MapOptions, hidden: Floats, mass: Floats) -> str:
    what = {"special": "special tokens", "first": "the first word" if options.words else "the first token"}
    left_out = [what[options.hide]] if options.hide else []
    if options.pair:
        left_out.append(f"all but {options.pair[0]}→{options.pair[1]}")
    shares = hidden / np.where(mass > 0, mass, 1)
    return (
        f"Not shown: {' and '.join(left_out)}. That is {_percent(shares.mean())} of the attention of these rows "
        f"({_percent(shares.min())} to {_percent(shares.max())} of a row); rows are not renormalised."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "under 1 %"


def _place(positions: Sequence[int], position: int, tokens: Tokens, words: bool) -> int | None:
    if words and 0 <= position < len(tokens):
        word = tokens.word_ids[position]
        return next((i for i, p in enumerate(positions) if tokens.word_ids[p] == word), None)
    return positions.index(position) if position in positions else None
