"""Text to tokens: ids for the model, and labels, words and segments for the reader.

Positions and words count from 0. No page touches a tokenizer; everything it needs is in `Tokens`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any

_LOOKS_SPECIAL = re.compile(r"\[(?:CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]|</?s>|<(?:pad|unk|mask|bos|eos)>|<\|\w{1,40}\|>")
_BYTE_PIECE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\u200d": "⟨ZWJ⟩", "\ufe0f": "⟨VS16⟩", "\u00a0": "⍽"}
_JOINERS = "\u200d\ufe0f"
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


def visible(text: str) -> str:
    """`text` as a label: no leading space, white space and control characters made visible, never empty."""
    body = text[1:] if len(text) > 1 and text[0] == " " and text.strip() else text
    if not all(c in _JOINERS for c in body):  # inside an emoji they do their work unseen
        body = "".join(c if c in _JOINERS else _visible_character(c) for c in body)
    else:
        body = "".join(_visible_character(c) for c in body)
    return body.replace(" ", "␣") if not body.strip() else body


def readable(surface: str) -> str:
    """A piece for a sentence: its leading space kept, other white space and control characters made visible."""
    return f" {visible(surface[1:])}" if len(surface) > 1 and surface[0] == " " else visible(surface)


def _visible_character(character: str) -> str:
    if character in _VISIBLE:
        return _VISIBLE[character]
    if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs") and character != " ":
        return f"⟨U+{ord(character):04X}⟩"
    return character


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
        marks = _special_ids(tokenizer)
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


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of the marks, without the one for unknown text, which stands for something that was typed."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marks = set(tokenizer.all_special_ids) | {number for number, token in added.items() if token.special}
    # Byte-level tokenizers have a piece for every byte: their unknown token stands for nothing that was typed.
    if "bytes" not in _piece_style(tokenizer):
        marks.discard(tokenizer.unk_token_id)
    return frozenset(marks)


def _build(
    tokenizer: Any, text: str, pair: str | None, encoding: Any, ids: tuple[int, ...], pieces: list[str],
    marks: frozenset[int], n_total: int, limit: int,
) -> Tokens:  # fmt: skip
    special = tuple(number in marks for number in ids)
    segments = _segments(tokenizer, encoding, special)
    offsets = encoding["offset_mapping"] if tokenizer.is_fast else None
    style = _piece_style(tokenizer)
    raw = [_piece_bytes(piece, style, mark) for piece, mark in zip(pieces, special, strict=True)]
    texts = (text, pair or "")
    if offsets is None:
        offsets = _reconstruct_offsets(raw, special, segments, texts)
    surfaces, labels = _surfaces_and_labels(raw, special, segments, offsets, texts)
    word_ids, words = _word_groups(labels, special, segments, offsets, texts)
    notes = _notes(tokenizer, texts, ids, pieces, special, segments, offsets, n_total, limit)
    type_ids = encoding.get("token_type_ids")
    return Tokens(text, pair, ids, labels, surfaces, word_ids, words, special, segments,
                  tuple(type_ids) if type_ids is not None else None, notes, n_total, limit)  # fmt: skip


def _segments(tokenizer: Any, encoding: Any, special: Sequence[bool]) -> tuple[int, ...]:
    numbers = encoding.sequence_ids(0) if tokenizer.is_fast else (encoding.get("token_type_ids") or [0] * len(special))
    return tuple(-1 if mark or number is None else number for number, mark in zip(numbers, special, strict=True))


@lru_cache(maxsize=4)  # a description is as large as the vocabulary; a tokenizer never changes how it writes
def _piece_style(tokenizer: Any) -> frozenset[str]:
    """How this tokenizer writes its pieces, read from its own description: "bytes", "latin1", "##", "▁"."""
    if not tokenizer.is_fast:
        return _slow_piece_style(tokenizer)
    return _fast_piece_style(tokenizer.backend_tokenizer.to_str())


@lru_cache(maxsize=16)
def _slow_piece_style(tokenizer: Any) -> frozenset[str]:
    vocabulary = tokenizer.get_vocab()
    if any(piece.startswith("Ġ") for piece in vocabulary):
        return frozenset({"bytes"})
    # ByT5 writes each byte as the character of its number.
    single = all(chr(number) in vocabulary for number in range(0x20, 0x100))
    return frozenset({"latin1"} if single and "▁" not in vocabulary else {"▁"})


@lru_cache(maxsize=16)
def _fast_piece_style(description: str) -> frozenset[str]:
    parts = json.loads(description)
    text = json.dumps([parts.get("decoder"), parts.get("pre_tokenizer")])
    style = {"bytes"} if "ByteLevel" in text else set()
    if (parts.get("model") or {}).get("type") == "WordPiece":
        style.add((parts["model"].get("continuing_subword_prefix")) or "##")
    # Metaspace, or normalizers that put the mark in by replacement (Llama 2, Gemma)
    if "▁" in text or "Metaspace" in text or "▁" in json.dumps(parts.get("normalizer"), ensure_ascii=False):
        style.add("▁")
    return frozenset(style)


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """Byte-level tokenizers write each byte as one printable character: printable Latin-1 bytes as themselves, the
    others, in order, as the characters from U+0100 on (Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


def _piece_bytes(piece: str | None, style: frozenset[str], special: bool) -> bytes:
    """The UTF-8 bytes a piece stands for, with its leading space if it has one."""
    if piece is None:
        return "�".encode()  # an id beyond the vocabulary (padded embedding rows)
    if special:
        return piece.encode()
    if "bytes" in style and all(c in _byte_alphabet() for c in piece):
        return bytes(_byte_alphabet()[c] for c in piece)
    if "latin1" in style and len(piece) == 1 and ord(piece) < 0x100:
        return bytes([ord(piece)])
    if match := _BYTE_PIECE.match(piece):
        return bytes([int(match[1], 16)])
    if "▁" in style:
        piece = piece.replace("▁", " ")
    for prefix in style - {"bytes", "latin1", "▁"}:
        piece = piece.removeprefix(prefix)
    return piece.encode()


def piece_surface(tokenizer: Any, number: int) -> str:
    """One vocabulary entry as text with its leading space, for lists of next words."""
    piece = tokenizer.convert_ids_to_tokens([number])[0]
    return _piece_bytes(piece, _piece_style(tokenizer), number in _special_ids(tokenizer)).decode("utf-8", "replace")


def _surfaces_and_labels(
    raw: Sequence[bytes], special: Sequence[bool], segments: Sequence[int], offsets: Sequence[tuple[int, int]],
    texts: tuple[str, str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    surfaces = [data.decode("utf-8", "replace") for data in raw]
    labels = []
    for position, surface in enumerate(surfaces):
        label = visible(surface) or "∅"
        if "�" in surface and not special[position] and segments[position] >= 0:
            label = _half_character_label(position, segments, offsets, texts, surfaces, label)
        labels.append(label)
    return tuple(surfaces), tuple(labels)


def _half_character_label(
    position: int, segments: Sequence[int], offsets: Sequence[tuple[int, int]], texts: tuple[str, str],
    surfaces: Sequence[str], label: str,
) -> str:  # fmt: skip
    """`�東 2/3`: the second of three pieces that only together are 東."""
    segment = segments[position]
    whole = texts[segment][slice(*offsets[position])].lstrip(" ")
    if not whole:
        return label
    # A piece may bring the space before the character; the character's end is what its pieces share.
    end = offsets[position][1]
    near = range(max(0, position - 8), min(len(offsets), position + 9))
    same = [i for i in near if segments[i] == segment and offsets[i][1] == end and "�" in surfaces[i]]
    part = f" {same.index(position) + 1}/{len(same)}" if len(same) > 1 else ""
    return f"�{visible(whole)}{part}"


def _reconstruct_offsets(
    raw: Sequence[bytes], special: Sequence[bool], segments: Sequence[int], texts: tuple[str, str]
) -> list[tuple[int, int]]:
    """Where each piece stands in its text, for tokenizers that do not tell: found by reading along."""
    offsets: list[tuple[int, int]] = []
    at = [0, 0]
    part, parts = b"", 0  # bytes of a character that is not complete yet, and how many pieces they came in
    for data, mark, segment in zip(raw, special, segments, strict=True):
        if mark or segment < 0:
            offsets.append((0, 0))
            continue
        whole = _decoded(data)
        part, parts = (b"", 0) if whole is not None else (part + data, parts + 1)
        piece = whole if whole is not None else _decoded(part) or ""
        piece = piece.strip()
        start = texts[segment].find(piece, at[segment]) if piece else -1
        if start >= 0:
            at[segment] = start + len(piece)
        else:  # white space, an unknown piece, or half a character: it stands where the text goes on
            rest = texts[segment][at[segment] :]
            start = at[segment] + len(rest) - len(rest.lstrip())
        blank = whole is not None and not whole.strip()
        offsets.append((at[segment], at[segment]) if blank else (start, start + max(len(piece), 1)))
        if parts and piece:  # the character is complete: all its pieces stand where it does
            offsets[-parts:] = [offsets[-1]] * parts
            part, parts = b"", 0
    return offsets


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


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
    marks = {*tokenizer.convert_ids_to_tokens(sorted(_special_ids(tokenizer))), tokenizer.unk_token}
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
    marks = _special_ids(tokenizer)
    special = tuple(number in marks for number in ids)
    style = _piece_style(tokenizer)
    raw = [_piece_bytes(piece, style, mark) for piece, mark in zip(pieces, special, strict=True)]
    text, offsets = _joined_text(raw, special)
    segments = tuple(-1 if mark else 0 for mark in special)
    surfaces, labels = _surfaces_and_labels(raw, special, segments, offsets, (text, ""))
    word_ids, words = _word_groups(labels, special, segments, offsets, (text, ""))
    return Tokens(
        text, None, tuple(ids), labels, surfaces, word_ids, words, special, segments, n_total=len(ids), limit=limit
    )


def _joined_text(raw: Sequence[bytes], special: Sequence[bool]) -> tuple[str, list[tuple[int, int]]]:
    """The text that pieces make together, and where each stands in it: a character may need several pieces."""
    data = b"".join(b"" if mark else piece for piece, mark in zip(raw, special, strict=True))
    text, owner, at = "", [], 0  # owner: byte -> character
    while at < len(data):
        size = next((n for n in (1, 2, 3, 4) if len(_decoded(data[at : at + n]) or "") == 1), 1)
        owner += [len(text)] * size
        text += data[at : at + size].decode("utf-8", "replace")
        at += size
    offsets, start = [], 0
    for piece, mark in zip(raw, special, strict=True):
        end = start if mark else start + len(piece)
        offsets.append((owner[start], owner[end - 1] + 1) if end > start else (len(text), len(text)))
        start = end
    return text, offsets
