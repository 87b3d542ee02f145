"""How maps are shown: words instead of pieces, tokens hidden, one sentence of a pair looking at the other.

Nothing here renormalises a row: what is not shown is counted and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mha_core.tokens import Tokens

HIDE = ("", "special", "first")
PAIRS = ("", "AA", "AB", "BA", "BB")
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
    shown, hidden: [head, query] the attention of each row to shown and to hidden keys; together the row's sum.
    note: what was done and how much is not shown, in sentences; empty when the maps are shown as they are.
    """

    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    query_hovers: tuple[str, ...]
    key_hovers: tuple[str, ...]
    query_positions: tuple[int, ...]
    key_positions: tuple[int, ...]
    shown: Floats
    hidden: Floats
    note: str

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes: its arrays, and a hundred for each row and column."""
        return self.shown.nbytes + self.hidden.nbytes + 100 * (len(self.query_labels) + len(self.key_labels))

    def row_of(self, position: int, tokens: Tokens, words: bool) -> int | None:
        """The row that shows a query position, or None when it is hidden. words: whether rows are words."""
        return _place(self.query_positions, position, tokens, words)

    def column_of(self, position: int, tokens: Tokens, words: bool) -> int | None:
        """The column that shows a key position, or None when it is hidden."""
        return _place(self.key_positions, position, tokens, words)


@dataclass(frozen=True, eq=False)
class Displayed(Frame):
    """Maps as they are shown. weights: [head, query, key] of what is left, never renormalised."""

    weights: Floats

    @property
    def frame(self) -> Frame:
        """The same without the weights."""
        return Frame(**{field.name: getattr(self, field.name) for field in fields(Frame)})


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
    options = options or MapOptions()
    array = np.asarray(weights)
    if array.ndim != 3 or array.shape[1:] != (len(queries), len(keys)):
        raise ValueError(
            f"weights has shape {array.shape}; [head, query, key] with {len(queries)} queries and {len(keys)} keys is "
            "needed for these tokens."
        )
    rows, columns = _kept(queries, options, 0), _kept(keys, options, 1)
    _require_something(rows, columns, options)
    row_mass = array.sum(axis=2)
    if options.words:
        part, mass, row_starts, column_starts = _words(array, row_mass, rows, columns, queries, keys)
    else:
        part = _take(_take(array, rows, axis=1), columns, axis=2)
        mass, row_starts, column_starts = row_mass[:, rows], rows, columns
    shown = mass if part is array else part.sum(axis=2)
    hidden = np.maximum(mass - shown, 0) if len(columns) < len(keys) else np.zeros_like(shown)
    names = [_names(tokens, starts, options.words) for tokens, starts in ((queries, row_starts), (keys, column_starts))]
    return Displayed(
        names[0][0], names[1][0], names[0][1], names[1][1], tuple(row_starts.tolist()), tuple(column_starts.tolist()),
        shown, hidden, _note(options, hidden, mass), part,
    )  # fmt: skip


def _take(array: Floats, positions: NDArray[np.intp], axis: int) -> Floats:
    """The positions along an axis; no copy where they follow each other, the array itself where they are all."""
    if len(positions) == array.shape[axis]:
        return array
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):
        return array[(slice(None),) * axis + (slice(first, last + 1),)]
    return np.take(array, positions, axis=axis)


def _words(
    array: Floats, row_mass: Floats, rows: NDArray[np.intp], columns: NDArray[np.intp], queries: Tokens, keys: Tokens
) -> tuple[Floats, Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Pieces joined to words: the maps, the rows' sums, and the positions of the words' first pieces on both sides."""
    row_starts, column_starts = _starts(rows, queries), _starts(columns, keys)
    counts = np.diff(np.append(row_starts, len(rows))).astype(array.dtype)
    part = np.empty((len(array), len(row_starts), len(column_starts)), dtype=array.dtype)
    for head, whole in enumerate(array):  # one by one: all at once, each step would go through 150 MB of a long text
        joined = _sum_words(_take(whole, rows, axis=0), rows, queries, axis=0)
        joined = _sum_words(_take(joined, columns, axis=1), columns, keys, axis=1)
        np.divide(joined, counts[:, None], out=part[head])
    mass = _sum_words(row_mass[:, rows], rows, queries, axis=1) / counts
    return part, mass, rows[row_starts], columns[column_starts]


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


def _starts(positions: NDArray[np.intp], tokens: Tokens) -> NDArray[np.intp]:
    """Where in `positions` each word begins."""
    words = np.array(tokens.word_ids)[positions]
    return np.flatnonzero(np.diff(words, prepend=words[0] - 1))


def _sum_words(array: Floats, positions: NDArray[np.intp], tokens: Tokens, axis: int) -> Floats:
    """Pieces along an axis added up to words."""
    starts = _starts(positions, tokens)
    if len(starts) == len(positions):
        return array
    # Piece by piece over all words at once: words are short, and `np.add.reduceat` takes long over long texts.
    lengths = np.diff(np.append(starts, len(positions)))
    words = np.take(array, starts, axis=axis)
    for number in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > number)
        words[(slice(None),) * axis + (longer,)] += np.take(array, starts[longer] + number, axis=axis)
    return words


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


def _note(options: MapOptions, hidden: Floats, mass: Floats) -> str:
    parts = []
    if options.words:
        parts.append("Attention to a word is the sum over its pieces; from a word, the average over its pieces.")
    what = {"special": "special tokens", "first": "the first word" if options.words else "the first token"}
    left_out = [what[options.hide]] if options.hide else []
    if options.pair:
        left_out.append(f"all but {options.pair[0]}→{options.pair[1]}")
    if left_out:
        shares = hidden / np.where(mass > 0, mass, 1)
        parts.append(
            f"Not shown: {' and '.join(left_out)}. That is {_percent(shares.mean())} of the attention of these rows "
            f"({_percent(shares.min())} to {_percent(shares.max())} of a row); rows are not renormalised."
        )
    return " ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "under 1 %"


def _place(positions: Sequence[int], position: int, tokens: Tokens, words: bool) -> int | None:
    if words and 0 <= position < len(tokens):
        word = tokens.word_ids[position]
        return next((i for i, p in enumerate(positions) if tokens.word_ids[p] == word), None)
    return positions.index(position) if position in positions else None
