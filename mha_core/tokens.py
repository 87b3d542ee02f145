"""Text to tokens: ids for the model, and labels, words and segments for the reader.

Positions and words count from 0. No page touches a tokenizer; everything it needs is in `Tokens`.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from mha_core.pieces import (
    joined_text,
    piece_bytes,
    piece_style,
    reconstruct_offsets,
    special_ids,
    surfaces_and_labels,
    visible,
)

_LOOKS_SPECIAL = re.compile(r"\[(?:CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]|</?s>|<(?:pad|unk|mask|bos|eos)>|<\|\w{1,40}\|>")
_NO_ROOM = 100_000  # tokenizers without a limit report one of about 10^30


class InputError(ValueError):
    """A text that cannot be run, as a sentence for the person who typed it."""


@dataclass(frozen=True)
class Tokens:
    """One tokenized text (or pair of texts).

    text, text_pair: what was given.
    ids: vocabulary ids, one per position.
    labels: a readable piece of text per position, never empty. A piece that is only part of a character shows `�`,
        the character, and which part it is.
    surfaces: the pieces as they stand in the text, with their leading space; what "next word" lists show.
    word_ids: which word each position belongs to (special tokens are words of their own).
    words: the words' texts.
    special: True for the model's own marks ([CLS], [SEP], <s> ...).
    segments: 0 for the first text, 1 for the second, -1 for special tokens.
    type_ids: the model's token_type_ids, where it has them.
    notes: sentences for the reader: what was cut, what was read as a special token, what is unknown to the model.
    n_total: positions before cutting. limit: the most the model takes.
    """

    text: str
    text_pair: str | None
    ids: tuple[int, ...]
    labels: tuple[str, ...]
    surfaces: tuple[str, ...]
    word_ids: tuple[int, ...]
    words: tuple[str, ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    n_total: int = 0
    limit: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def hovers(self) -> tuple[str, ...]:
        """Per position the label, and the whole word where the label is only a part of it."""
        return tuple(
            label if label == self.words[word] else f"{label}, part of {_shorten(self.words[word])}"
            for label, word in zip(self.labels, self.word_ids, strict=True)
        )


def _shorten(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def clean_text(text: str | None) -> str:
    """`text` without what no tokenizer takes (halves of surrogate pairs become `�`)."""
    return (text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def require_text(text: str | None) -> str:
    """The cleaned text; an `InputError` that asks for a sentence when there is none."""
    text = clean_text(text)
    if not text.strip():
        raise InputError("There is no text yet. Type a sentence, and each head's map of it appears here.")
    return text


def split_words(text: str) -> list[tuple[int, int]]:
    """Character spans of the words: runs without white space, their outer punctuation split off.

    "store," gives "store" and ","; "didn't", "$117.2" and "a<b" stay whole.
    """
    spans: list[tuple[int, int]] = []
    for match in re.finditer(r"\S+", text):
        start, end = match.span()
        inner_start, inner_end = start, end
        while inner_start < end and _is_punctuation(text[inner_start]):
            inner_start += 1
        while inner_end > inner_start and _is_punctuation(text[inner_end - 1]):
            inner_end -= 1
        spans.extend((i, i + 1) for i in range(start, inner_start))
        if inner_end > inner_start:
            spans.append((inner_start, inner_end))
        spans.extend((i, i + 1) for i in range(max(inner_end, inner_start), end))
    return spans


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def token_limit(tokenizer: Any, config: Any, cap: int) -> int:
    """The most positions a model takes: its own limit, the tokenizer's, and `cap`, whichever is least."""
    limits = [
        cap,
        getattr(tokenizer, "model_max_length", None),
        getattr(config, "max_position_embeddings", None),
    ]
    numbers = [n for n in limits if isinstance(n, int) and 0 < n < _NO_ROOM]
    return min(numbers)


def tokenize(
    tokenizer: Any, text: str, text_pair: str | None = None, *, limit: int, lock: Lock, specials: bool = True
) -> Tokens:
    """Tokenize a text, or a pair of texts, for a model.

    Args:
        tokenizer: a transformers tokenizer.
        limit: the most positions to keep. What is cut beyond it is said in `notes`.
        lock: held while the tokenizer works (fast tokenizers fail when two threads use one).
        specials: add the model's own marks.

    Raises:
        InputError: there is no text.
    """
    text = require_text(text)
    text_pair = clean_text(text_pair) if text_pair and text_pair.strip() else None
    with lock:
        encoding = _encode(tokenizer, text, text_pair, specials, None)
        n_total = len(encoding["input_ids"])
        if n_total > limit:
            encoding = _encode(tokenizer, text, text_pair, specials, limit)
        ids = tuple(encoding["input_ids"])
        pieces = tokenizer.convert_ids_to_tokens(list(ids))
        marks = special_ids(tokenizer)
    return _build(tokenizer, text, text_pair, encoding, ids, pieces, marks, n_total, limit)


def _encode(tokenizer: Any, text: str, pair: str | None, specials: bool, limit: int | None) -> Any:
    cut = {"truncation": True, "max_length": limit} if limit else {"truncation": False}
    return tokenizer(
        text,
        pair,
        add_special_tokens=specials,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,
        **cut,
    )


def _build(
    tokenizer: Any, text: str, pair: str | None, encoding: Any, ids: tuple[int, ...], pieces: list[str],
    marks: frozenset[int], n_total: int, limit: int,
) -> Tokens:  # fmt: skip
    special = tuple(number in marks for number in ids)
    segments = _segments(tokenizer, encoding, special)
    offsets = encoding["offset_mapping"] if tokenizer.is_fast else None
    style = piece_style(tokenizer)
    raw = [piece_bytes(piece, style, mark) for piece, mark in zip(pieces, special, strict=True)]
    texts = (text, pair or "")
    if offsets is None:
        offsets = reconstruct_offsets(raw, special, segments, texts)
    surfaces, labels = surfaces_and_labels(raw, special, segments, offsets, texts)
    word_ids, words = _word_groups(labels, special, segments, offsets, texts)
    notes = _notes(tokenizer, texts, ids, pieces, special, segments, offsets, n_total, limit)
    type_ids = encoding.get("token_type_ids")
    return Tokens(text, pair, ids, labels, surfaces, word_ids, words, special, segments,
                  tuple(type_ids) if type_ids is not None else None, notes, n_total, limit)  # fmt: skip


def _segments(tokenizer: Any, encoding: Any, special: Sequence[bool]) -> tuple[int, ...]:
    numbers = encoding.sequence_ids(0) if tokenizer.is_fast else (encoding.get("token_type_ids") or [0] * len(special))
    return tuple(-1 if mark or number is None else number for number, mark in zip(numbers, special, strict=True))


def _word_groups(
    labels: Sequence[str], special: Sequence[bool], segments: Sequence[int], offsets: Sequence[tuple[int, int]],
    texts: tuple[str, str],
) -> tuple[tuple[int, ...], tuple[str, ...]]:  # fmt: skip
    """Join pieces to words: a piece belongs to the word its first visible character lies in."""
    spans = [split_words(t) for t in texts]
    starts = [[start for start, _ in per_text] for per_text in spans]
    word_ids: list[int] = []
    words: list[str] = []
    previous: tuple[int, int] | None = None
    for label, mark, segment, (start, end) in zip(labels, special, segments, offsets, strict=True):
        word = None
        if not mark and segment >= 0:
            first = start + len(texts[segment][start:end]) - len(texts[segment][start:end].lstrip())
            number = bisect_right(starts[segment], first) - 1
            if number >= 0 and first < spans[segment][number][1]:
                word = (segment, number)
        if word is None or word != previous:
            words.append(label if word is None else visible(texts[word[0]][slice(*spans[word[0]][word[1]])]))
        word_ids.append(len(words) - 1)
        previous = word
    return tuple(word_ids), tuple(words)


def _notes(
    tokenizer: Any, texts: tuple[str, str], ids: tuple[int, ...], pieces: Sequence[str], special: Sequence[bool],
    segments: Sequence[int], offsets: Sequence[tuple[int, int]], n_total: int, limit: int,
) -> tuple[str, ...]:  # fmt: skip
    notes = []
    if n_total > len(ids):
        kept = max((end for (_, end), s in zip(offsets, segments, strict=True) if s == 0), default=0)
        rest = " ".join(texts[0][kept:].split())
        where = f', from "{rest[:40]}{"…" if len(rest) > 40 else ""}"' if rest else ""
        notes.append(
            f"The text is {n_total:,} tokens long and this model is run with at most {limit:,}: the first "
            f"{len(ids):,} are shown, {n_total - len(ids):,} are cut{where}."
        )
    marks = {*tokenizer.convert_ids_to_tokens(sorted(special_ids(tokenizer))), tokenizer.unk_token}
    notes.extend(_special_notes(texts, pieces, marks, offsets, tokenizer.is_fast))
    unknown = tokenizer.unk_token_id
    n_unknown = sum(number == unknown and not mark for number, mark in zip(ids, special, strict=True))
    if n_unknown:
        notes.append(
            f"{n_unknown} {'piece is' if n_unknown == 1 else 'pieces are'} unknown to this model and "
            f"became {tokenizer.unk_token}."
        )
    return tuple(notes)


def _special_notes(
    texts: tuple[str, str], pieces: Sequence[str], marks: Collection[str], offsets: Sequence[tuple[int, int]],
    has_offsets: bool,
) -> list[str]:  # fmt: skip
    """Say of each typed "[SEP]" and the like whether the model took it as its own mark."""
    # Marks that the model adds itself stand nowhere in the text; typed ones do.
    taken = {
        piece
        for piece, (start, end) in zip(pieces, offsets, strict=True)
        if piece in marks and (end > start or not has_offsets)
    }
    typed = dict.fromkeys(_LOOKS_SPECIAL.findall(" ".join(texts)))
    notes = [f"{mark} in the text was taken as this model's special token." for mark in typed if mark in taken]
    # One of the model's own that was not taken was cut off; the note on cutting says so.
    return notes + ordinary_notes(mark for mark in typed if mark not in marks)


def ordinary_notes(marks: Iterable[str]) -> list[str]:
    """That what looks like a special token is ordinary text for this model."""
    return [f"{mark} in the text is not a special token of this model; it was read as ordinary text." for mark in marks]


def typed_marks(text: str) -> list[str]:
    """What in a text looks like a special token, each once."""
    return list(dict.fromkeys(_LOOKS_SPECIAL.findall(text)))


def tokens_from_ids(tokenizer: Any, ids: Sequence[int], limit: int) -> Tokens:
    """Labels and words for ids that come from no text, such as a decoder's own output. Hold the tokenizer's lock."""
    pieces = tokenizer.convert_ids_to_tokens(list(ids))
    marks = special_ids(tokenizer)
    special = tuple(number in marks for number in ids)
    style = piece_style(tokenizer)
    raw = [piece_bytes(piece, style, mark) for piece, mark in zip(pieces, special, strict=True)]
    text, offsets = joined_text(raw, special)
    segments = tuple(-1 if mark else 0 for mark in special)
    surfaces, labels = surfaces_and_labels(raw, special, segments, offsets, (text, ""))
    word_ids, words = _word_groups(labels, special, segments, offsets, (text, ""))
    return Tokens(
        text, None, tuple(ids), labels, surfaces, word_ids, words, special, segments, n_total=len(ids), limit=limit
    )
