"""`View`: one serialisable record of what is drawn, and how it travels.

A page makes a `View`; the canvas component draws it, Plotly draws it, every export writes it. It knows no
Streamlit and no model. Kinds that the canvas component (`assets/maps.js`) draws:

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

Common: `range` [low, high] (default [0, 1]), `scale` "linear" or "log" (from `log_floor`, default 1e-4, to
high), `palette` (filled in by the component wrapper), `id` (any string; the component reports it as
`data-view` when painted).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("<u1"),
    "int32": np.dtype("<i4"),
    "float32": np.dtype("<f4"),
}
_ALIGN = 4  # a browser's Float32Array must start at a multiple of four bytes


@dataclass(frozen=True, eq=False)
class View:
    """What is drawn: its kind, its numbers, how they are labelled, and where they came from.

    Attributes
    ----------
    kind:
        What sort of picture it is (`"overview"`, `"layer"`, ...); see the module's text.
    arrays:
        Name to array. Only uint8, int32 and float32 travel; `pack` narrows booleans, wider integers and
        floats.
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
        `kind`, `meta`, `provenance`, `arrays`: [{name, dtype, shape, offset}]) padded with spaces to 4 bytes,
        then the arrays, C order, little-endian, each starting at a multiple of 4 bytes. Offsets count from
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
            narrowed = _narrow(name, np.asarray(array))
            data = narrowed.tobytes(order="C")
            entries.append(
                {"name": name, "dtype": narrowed.dtype.name, "shape": list(narrowed.shape), "offset": offset}
            )
            data += b"\0" * (-len(data) % _ALIGN)
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
        header += b" " * (-len(header) % _ALIGN)
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
            dtype = _DTYPES.get(entry["dtype"])
            if dtype is None:
                raise ValueError(f"A view's arrays are {', '.join(_DTYPES)}; {entry['dtype']!r} was found.")
            shape = tuple(entry["shape"])
            count = int(np.prod(shape, dtype=np.int64))
            start = 4 + length + entry["offset"]
            if start + count * dtype.itemsize > len(data):
                raise ValueError(f"Array {entry['name']!r} of shape {shape} reaches beyond the packed data.")
            arrays[entry["name"]] = np.frombuffer(data, dtype, count, start).reshape(shape)
        return cls(kind, arrays, meta, provenance)


def _narrow(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array as one of the three types that travel."""
    kind = array.dtype.kind
    if array.dtype == np.uint8 or kind == "b":
        return array.astype(_DTYPES["uint8"], copy=False)
    if kind == "f":
        return array.astype(_DTYPES["float32"], copy=False)
    if kind in "iu":
        limits = np.iinfo(np.int32)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise ValueError(f"Array {name!r} holds integers beyond 32 bits; scale it or send floats.")
        return array.astype(_DTYPES["int32"], copy=False)
    raise TypeError(f"Array {name!r} is of type {array.dtype}; a view carries booleans, integers and reals.")


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
    blocks = []
    for axis in (-2, -1):  # the query axis first: it compares whole rows, and leaves less for the key axis
        length = array.shape[axis]
        block = max(1, -(-length // size))
        if block > 1:
            array = np.maximum.reduceat(array, np.arange(0, length, block), axis=axis)
        blocks.append(block)
    return array, (blocks[0], blocks[1])
