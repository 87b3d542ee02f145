"""Pieces of a vocabulary as a reader sees them: their bytes, their place in a text, and labels.

Tokenizers write the same text in many ways: bytes as characters, marks for spaces, prefixes of word pieces.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_BYTE_PIECE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\u200d": "⟨ZWJ⟩", "\ufe0f": "⟨VS16⟩", "\u00a0": "⍽"}
_JOINERS = "\u200d\ufe0f"


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


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of the marks, without the one for unknown text, which stands for something that was typed."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marks = set(tokenizer.all_special_ids) | {number for number, token in added.items() if token.special}
    # Byte-level tokenizers have a piece for every byte: their unknown token stands for nothing that was typed.
    if "bytes" not in piece_style(tokenizer):
        marks.discard(tokenizer.unk_token_id)
    return frozenset(marks)


@lru_cache(maxsize=4)  # a description is as large as the vocabulary; a tokenizer never changes how it writes
def piece_style(tokenizer: Any) -> frozenset[str]:
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


def piece_bytes(piece: str | None, style: frozenset[str], special: bool) -> bytes:
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
    return piece_bytes(piece, piece_style(tokenizer), number in special_ids(tokenizer)).decode("utf-8", "replace")


def surfaces_and_labels(
    raw: Sequence[bytes], special: Sequence[bool], segments: Sequence[int], offsets: Sequence[tuple[int, int]],
    texts: tuple[str, str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:  # fmt: skip
    """Pieces as text, with their leading spaces, and as labels.

    raw: each piece's bytes. special: the model's own marks. segments, offsets: where in the texts each stands.
    """
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


def reconstruct_offsets(
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


def joined_text(raw: Sequence[bytes], special: Sequence[bool]) -> tuple[str, list[tuple[int, int]]]:
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
