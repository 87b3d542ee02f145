"""Two texts that differ in a few tokens, laid over each other (“… because it was tired/wide”)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import torch
from torch import Tensor

from mha_core.divergence import row_divergence
from mha_core.tokens import Tokens

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Alignment:
    """Which positions of two texts are the same token. Iterating gives the pairs.

    pairs: (position in the first, position in the second), rising in both.
    by: "tokens", or "words" where the texts were cut into different pieces; then pieces are paired within words that
        both texts share, and only where both cut the word into as many pieces.
    only_first, only_second: the positions without a partner.
    """

    pairs: Pairs
    by: Literal["tokens", "words"]
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.pairs)

    @property
    def note(self) -> str:
        """What was found, as a sentence."""
        shared = f"{len(self.pairs)} shared {'token' if len(self.pairs) == 1 else 'tokens'}"
        if not self.only_first and not self.only_second:
            return f"{shared}: the texts are the same."
        by = "" if self.by == "tokens" else ", found word by word, since the texts are cut into different pieces"
        alone = f"{len(self.only_first)} only in the first text, {len(self.only_second)} only in the second"
        return f"{shared}{by}; {alone}."


def align(first: Tokens, second: Tokens) -> Alignment:
    """The tokens two texts share, in order: the longest runs of equal tokens (`difflib.SequenceMatcher`).

    Tokens are equal when their ids and what stands in the text are. Where words align more (another tokenizer, or our
    own layer, whose numbers belong to one sentence), words are used.
    """
    if (first.ids, first.surfaces) == (second.ids, second.surfaces):  # what would be found, without looking for it
        return Alignment(tuple((i, i) for i in range(len(first))), "tokens", (), ())
    by_token = shared_positions(_pieces(first), _pieces(second))
    by_word = _by_words(first, second)
    pairs = by_token if len(by_token) >= len(by_word) else by_word
    known = [{pair[side] for pair in pairs} for side in (0, 1)]
    return Alignment(
        pairs,
        "tokens" if len(by_token) >= len(by_word) else "words",
        tuple(i for i in range(len(first)) if i not in known[0]),
        tuple(j for j in range(len(second)) if j not in known[1]),
    )


def shared_positions(first: Sequence[Hashable], second: Sequence[Hashable]) -> Pairs:
    """(i, j) of the items that two sequences share, in order. For anything that can be compared: labels, words."""
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    return tuple((block.a + n, block.b + n) for block in blocks for n in range(block.size))


def _pieces(tokens: Tokens) -> list[tuple[int, str]]:
    return list(zip(tokens.ids, tokens.surfaces, strict=True))


def _by_words(first: Tokens, second: Tokens) -> Pairs:
    places = [_word_places(tokens) for tokens in (first, second)]
    pairs: list[tuple[int, int]] = []
    for one, other in shared_positions([w.casefold() for w in first.words], [w.casefold() for w in second.words]):
        if len(places[0][one]) == len(places[1][other]):
            pairs.extend(zip(places[0][one], places[1][other], strict=True))
    return tuple(pairs)


def _word_places(tokens: Tokens) -> list[list[int]]:
    """The positions of each word's pieces."""
    places: list[list[int]] = [[] for _ in tokens.words]
    for position, word in enumerate(tokens.word_ids):
        places[word].append(position)
    return places


@dataclass(frozen=True, eq=False)
class AlignedDifference:
    """Two maps compared over the tokens that their texts share; nothing is renormalised.

    difference: [..., query, key] first minus second, for the shared queries and keys.
    divergence: [..., query] Jensen–Shannon divergence of the rows in nats, 0 to ln 2; all attention to tokens that are
        not shared counts as one more key. Of value-weighted maps each row's shares are compared.
    hidden_first, hidden_second: [..., query] the attention of each row that goes to tokens that are not shared.
    queries: the (first, second) positions of the rows. keys: those of the columns.
    """

    difference: Tensor
    divergence: Tensor
    hidden_first: Tensor
    hidden_second: Tensor
    queries: Pairs
    keys: Pairs

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return sum(part.nbytes for part in (self.difference, self.divergence, self.hidden_first, self.hidden_second))


def aligned_difference(
    first: Tensor, second: Tensor, pairs: Iterable[tuple[int, int]], key_pairs: Iterable[tuple[int, int]] | None = None
) -> AlignedDifference:
    """Difference of two maps of different texts over their shared tokens.

    Args:
        first, second: weights [..., query, key], with equal leading axes (none, or the heads of a layer).
        pairs: shared positions of the queries, from `align`. key_pairs: of the keys, where they are of another text
            (cross-attention); None: the same.

    Raises:
        ValueError: no token is shared, a position is outside its map, or the heads differ in number.
    """
    pairs = tuple(pairs)
    key_pairs = pairs if key_pairs is None else tuple(key_pairs)
    if not pairs or not key_pairs:
        raise ValueError("The two texts share no token, so there is nothing to lay over each other.")
    if first.shape[:-2] != second.shape[:-2]:
        raise ValueError(
            f"The first map has leading axes {tuple(first.shape[:-2])}, the second {tuple(second.shape[:-2])}; compare "
            "one head with one head, or layers with as many heads."
        )
    for side, weights in enumerate((first, second)):
        for name, found, size in (("query", pairs, weights.shape[-2]), ("key", key_pairs, weights.shape[-1])):
            highest = max(pair[side] for pair in found)
            if highest >= size or min(pair[side] for pair in found) < 0:
                raise ValueError(
                    f"Position {highest} is paired, but the {('first', 'second')[side]} map's {name} axis has {size}."
                )
    shared, rests = [], []
    for side, weights in enumerate((first, second)):
        rows = _take(weights, [pair[side] for pair in pairs], -2)
        part = _take(rows, [pair[side] for pair in key_pairs], -1)
        rests.append((rows.sum(dim=-1) - part.sum(dim=-1)).clamp_min(0))
        shared.append(part)
    whole = shared
    if any(bool(rest.any()) for rest in rests):
        whole = [torch.cat([part, rest[..., None]], dim=-1) for part, rest in zip(shared, rests, strict=True)]
    divergence = row_divergence(*map(_shares, whole))
    return AlignedDifference(shared[0] - shared[1], divergence, rests[0], rests[1], pairs, key_pairs)


def _take(weights: Tensor, places: list[int], dim: int) -> Tensor:
    """Positions along an axis; the weights themselves where that is all of them: a long text's take megabytes."""
    if places == list(range(weights.shape[dim])):
        return weights
    return weights.index_select(dim, torch.tensor(places))


def _shares(rows: Tensor) -> Tensor:
    """Rows that sum to more than 1 as shares of their sum; weights stay as they are."""
    totals = rows.sum(dim=-1, keepdim=True)
    return rows / totals.clamp_min(1e-30) if bool((totals > 1.001).any()) else rows
