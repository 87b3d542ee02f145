"""`View`: one serialisable record of what is drawn, and how it travels.

A page makes a `View`; the canvas component draws it, Plotly draws it, every export writes it. It knows no
Streamlit and no model. Kinds that the browser's components draw (`overview` and `layer`: `assets/maps.js`):

`overview`: every head as a thumbnail.
    arrays: `maps` [layer, head, row, column] uint8 (0-255 for 0-1) or float32, already pooled to thumbnail
    size; `values` [layer, head] float32, optional, a measure that is drawn as a ring and said in the tooltip.
    meta: `id`, `alt`, `selected` [layer, head], `values_label`, `values_range` [low, high], `off` [[layer,
    head], ...], `range`, `scale`, `causal`, `site_prefix` (before a head's name, such as "enc.").

`layer`: every head of one layer side by side, on one colour scale.
    arrays: `maps` [head, query, key] float32 (exact, or pooled by `max_pool`).
    meta: `id`, `alt`, `query_labels`, `key_labels` (one per position of the text, also when the maps are pooled),
    `query_hovers`, `key_hovers` (the tooltip's names, where they differ), `block` [query, key] positions per cell
    ([1, 1]: exact), `titles` and `subtitles` per head, `selected_head`, `off` [head, ...], `range`, `scale`, `causal`,
    `caption` (instead of "rows look at columns").

`matrix`: one head's map, large and exact (`assets/matrix.js`).
    arrays: `map` [query, key] float32 or uint16 (see `scale_to`, `to_uint16`); NaN leaves a cell blank.
    meta: `query_labels`, `key_labels`, `query_hovers`, `key_hovers`, `query_positions` and `key_positions` (what to
    call the rows and columns, where some positions were left out; default 0, 1, ...), `mark` (the name under which
    `assets/mark.js` says which cell is chosen), `causal`, `off`, `diverging` (differences: the range is made symmetric
    around 0 and has two colours), `scale_to` (what uint16 stands for: [low, high], or high with a low of 0; default:
    `range`), `query_axis` and `key_axis` (the axes' names).

`text`: where every head of a layer looks from one token, in the text itself (`assets/text.js`).
    arrays: `maps` [head, query, key] float32; or, for long texts, `top_values` float32 and `top_keys` int32
    [head, query, k] (see `top_of_rows`; -1 for no key); optional `row_mass` [head, query] float32, what whole rows add
    up to (default 1).
    meta: `query_labels`, `key_labels` (default: the queries'), hovers and positions as above, `titles` of the rows,
    `row_selected`, `off` [row, ...], `query` (the token looked from; default the last), `locked` (whether it is
    locked), `cross` (queries and keys are two texts; default: whether their labels differ), `causal`, `sums_to_one`
    (whether what is not shown of a row can be stated; default: whether `unit` is an attention weight).

`lines`: heads as lines from queries to keys (`assets/lines.js`).
    arrays and meta as for `text`, without `query` and `locked`; `edges` (the most of one head, default 400),
    `edges_per_query` (the most of one query, default 8), `query_axis`, `key_axis`.

Common: `title` (of pictures and their files), `range` [low, high] (default [0, 1]), `scale` "linear" or "log" (from
`log_floor`, default 1e-4, to high), `unit` (default "attention weight"), `caption` and `note` (sentences in the legend;
`note` is also in pictures: say there what was hidden), `group` (views of one page with the same word show each other
the positions that are pointed at), `palette` (filled in by the component wrapper), `id` (any string; the component
reports it as `data-view` when painted).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mha_core.packing import ALIGN, decode, encode

_CHUNK = 1 << 16  # numbers worked on at a time: a quarter of a megabyte, which stays in the processor's cache


@dataclass(frozen=True, eq=False)
class View:
    """What is drawn: its kind, its numbers, how they are labelled, and where they came from.

    Attributes
    ----------
    kind:
        What sort of picture it is (`"overview"`, `"layer"`, ...); see the module's text.
    arrays:
        Name to array. Only uint8, uint16, int32 and float32 travel; `pack` narrows booleans, wider integers
        and floats.
    meta:
        JSON-able: labels, ranges, titles, what is selected. Labels are untrusted text and are never markup.
    provenance:
        JSON-able: text, model and file hash, head, interventions, index base, versions. Every export writes
        it.
    """

    kind: str
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The record as one bytes object.

        Layout: header length (4 bytes, little-endian, unsigned, padding included), the header (UTF-8 JSON:
        `kind`, `meta`, `provenance`, `arrays`: [{name, dtype, shape, offset, ...}]) padded with spaces to 4 bytes,
        then the arrays, each starting at a multiple of 4 bytes, as `mha_core.packing` writes them. Offsets count from
        the end of the header.

        Raises
        ------
        TypeError
            When an array is neither boolean, integer nor real, or meta is not JSON-able.
        ValueError
            When an integer does not fit into 32 bits, or meta holds NaN or infinity (JSON has neither).
        """
        entries: list[dict[str, Any]] = []
        payload: list[bytes] = []
        offset = 0
        for name, array in self.arrays.items():
            entry, data = encode(name, np.asarray(array), causal=bool(self.meta.get("causal")))
            entries.append({"name": name, **entry, "offset": offset})
            payload.append(data)
            offset += len(data)
        # ensure_ascii (the default) also carries lone surrogates, which UTF-8 alone cannot
        header = json.dumps(
            {
                "kind": self.kind,
                "meta": dict(self.meta),
                "provenance": dict(self.provenance),
                "arrays": entries,
            },
            allow_nan=False,
            separators=(",", ":"),
        ).encode("utf-8")
        header += b" " * (-len(header) % ALIGN)
        return b"".join([struct.pack("<I", len(header)), header, *payload])

    @classmethod
    def unpack(cls, data: bytes) -> View:
        """The inverse of `pack`. Arrays are read-only and share memory with `data`.

        Raises
        ------
        ValueError
            When the bytes are not a packed view (too short, no JSON header, an array outside the data).
        """
        if len(data) < 4:
            raise ValueError(f"These {len(data)} bytes are too few for a packed view: it starts with 4.")
        (length,) = struct.unpack_from("<I", data)
        if 4 + length > len(data):
            raise ValueError(f"A packed view's header of {length} bytes does not fit into {len(data)} bytes.")
        try:
            header = json.loads(data[4 : 4 + length])
            entries = header["arrays"]
            kind, meta, provenance = header["kind"], header["meta"], header["provenance"]
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"These bytes have no readable view header: {error}.") from error
        arrays: dict[str, NDArray[Any]] = {}
        for entry in entries:
            arrays[entry["name"]] = decode(entry, data, 4 + length + entry["offset"])
        return cls(kind, arrays, meta, provenance)


def max_pool(weights: ArrayLike, size: int) -> tuple[NDArray[Any], tuple[int, int]]:
    """Shrink the last two axes to at most `size` cells each, every cell the maximum of its block.

    The maximum (never the mean) keeps a single strong weight visible in a thumbnail. Blocks at the end may be
    smaller.

    Parameters
    ----------
    weights:
        [..., query, key], any leading axes; the last two need be neither equal nor a multiple of anything.
    size:
        The most cells an axis may have afterwards, at least 1.

    Returns
    -------
    pooled, block
        [..., ceil(query / block[0]), ceil(key / block[1])] and the positions per cell; a block of (1, 1)
        returns the input itself, exact.

    Raises
    ------
    ValueError
        When `size` is below 1 or there are fewer than two axes.
    """
    array = np.asarray(weights)
    if size < 1:
        raise ValueError(f"max_pool needs a size of at least 1; {size} was given.")
    if array.ndim < 2:
        raise ValueError(f"max_pool needs a query and a key axis; the array has {array.ndim} axes.")
    block = (max(1, -(-array.shape[-2] // size)), max(1, -(-array.shape[-1] // size)))
    if block == (1, 1):
        return array, block
    # Several times faster than NumPy's own; torch takes no steps backwards and nothing that is read-only.
    if array.dtype == np.float32 and array.size and array.flags.writeable and min(array.strides) >= 0:
        return block_maximum(torch.from_numpy(array), block).numpy(), block
    for axis, length in zip((-2, -1), block, strict=True):
        array = np.maximum.reduceat(array, np.arange(0, array.shape[axis], length), axis=axis)
    return array, block


def block_maximum(maps: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """[..., query, key] with one cell per block of positions, the largest of it; blocks at the end may be smaller.

    Rows first, which lie side by side in memory: half the time of `max_pool2d`.
    """
    if block == (1, 1):
        return maps
    n_queries, n_keys = maps.shape[-2:]
    whole = n_queries // block[0] * block[0]
    rows = maps[..., :whole, :].unflatten(-2, (-1, block[0])).amax(-2)
    if whole < n_queries:
        rows = torch.cat([rows, maps[..., whole:, :].amax(-2, keepdim=True)], dim=-2)
    return torch.from_numpy(np.maximum.reduceat(rows.numpy(), np.arange(0, n_keys, block[1]), axis=-1))


def to_uint16(values: ArrayLike, scale_to: tuple[float, float] = (0.0, 1.0)) -> NDArray[np.uint16]:
    """Numbers in 65,536 even steps: half the bytes of float32, for maps of thousands of positions.

    Parameters
    ----------
    values:
        Any shape, between the two ends (others are cut to them).
    scale_to:
        (low, high), what 0 and 65,535 stand for; goes into `meta["scale_to"]`. The error is at most
        (high - low) / 131,070: 7.6e-6 for weights.

    Raises
    ------
    ValueError
        When the ends are not in order, or a value is NaN (uint16 has no such thing).
    """
    low, high = scale_to
    if not low < high:
        raise ValueError(f"to_uint16 needs a low end below the high one; got {low} and {high}.")
    array = np.asarray(values, dtype=np.float32)
    if np.isnan(array).any():
        raise ValueError("to_uint16 cannot carry NaN; send float32, where NaN leaves a cell blank.")
    steps = np.empty(array.shape, dtype=np.uint16)
    flat, into = array.reshape(-1), steps.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        scaled = flat[start : start + _CHUNK] - np.float32(low)
        scaled *= np.float32(65535 / (high - low))
        into[start : start + _CHUNK] = np.rint(scaled.clip(0, 65535, out=scaled), out=scaled)
    return steps


def light_difference(view: View, least: int = 256) -> View:
    """A difference (`map`, `range` [-top, top]) in 16 bits, where it has more than `least` positions a side.

    No difference stays no difference: 0 is one of the steps.
    """
    array = np.asarray(view.arrays["map"])
    if max(array.shape) <= least or np.isnan(array).any():
        return view
    step = view.meta["range"][1] / 32767
    ends = (-32768 * step, 32767 * step)
    return replace(view, arrays={"map": to_uint16(array, ends)}, meta={**view.meta, "scale_to": list(ends)})


def top_of_rows(weights: ArrayLike, k: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Each row's k largest numbers and where they stand, largest first: what `text` and `lines` take for long texts.

    Parameters
    ----------
    weights:
        [..., query, key].
    k:
        How many, at least 1; at most as many as there are keys are returned.

    Returns
    -------
    top_values, top_keys
        Both [..., query, k].

    Raises
    ------
    ValueError
        When `k` is below 1.
    """
    if k < 1:
        raise ValueError(f"top_of_rows needs a k of at least 1; {k} was given.")
    array = np.asarray(weights, dtype=np.float32)
    values, places = torch.from_numpy(np.ascontiguousarray(array)).topk(min(k, array.shape[-1]), dim=-1)
    return values.numpy(), places.numpy().astype(np.int32)
