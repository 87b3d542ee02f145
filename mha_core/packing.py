"""How one array travels to a browser: little-endian, C order, and a long map in few bytes.

Two things shorten a map of thousands of positions, and `assets/common.js` or `decode` undoes them. Of a causal one,
which has one number above its diagonal (`above`: usually 0), the rest alone is written, row by row (`lower`). Of one in
16 bits, whose numbers are nearly all close together, each is one byte, counted from `least`; where that is 255, the
number is the next of those that stand in 16 bits after all the bytes (`small`: how many do not). A map of 2,048
positions is 2.3 MB then instead of 8.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGN = 4  # a browser's Float32Array must start at a multiple of four bytes
_DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("<u1"),
    "uint16": np.dtype("<u2"),
    "int32": np.dtype("<i4"),
    "float32": np.dtype("<f4"),
}
_LONG = 512  # positions from which a map is worth shortening
_ESCAPE = 255


def encode(name: str, array: NDArray[Any], *, causal: bool = False) -> tuple[dict[str, Any], bytes]:
    """An array's entry in the header (dtype, shape, and what was left out), and its bytes, to a multiple of four.

    causal: of a long square map, what is above the diagonal may be left out.

    Raises:
        TypeError: neither boolean, integer nor real.
        ValueError: an integer does not fit into 32 bits.
    """
    values = _narrow(name, array)
    entry: dict[str, Any] = {"dtype": values.dtype.name, "shape": list(values.shape)}
    if causal and _is_long_triangle(values):
        entry |= {"lower": True, "above": values[0, -1].item()}
        values = np.concatenate([row[: number + 1] for number, row in enumerate(values)])
    if values.dtype == np.uint16 and values.size >= _LONG**2 // 2:
        usual = int(np.median(values.reshape(-1)[::997]))
        least = 0 if usual < _ESCAPE else usual - _ESCAPE // 2
        steps = values - np.uint16(least)  # what is below becomes very large
        large = values[steps >= _ESCAPE]
        if 2 * len(large) < values.size:
            entry |= {"small": values.size - len(large), "least": least}
            small = np.minimum(steps, _ESCAPE).astype(np.uint8).tobytes()
            return entry, _padded(small) + _padded(large.tobytes())
    return entry, _padded(values.tobytes(order="C"))


def decode(entry: Mapping[str, Any], data: bytes, start: int) -> NDArray[Any]:
    """The array whose bytes begin at `start` of the data; read-only, and where nothing was left out, a view of them.

    Raises:
        ValueError: an unknown type, or an array that reaches beyond the data.
    """
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"A view's arrays are {', '.join(_DTYPES)}; {entry['dtype']!r} was found.")
    shape = tuple(entry["shape"])
    count = shape[0] * (shape[0] + 1) // 2 if entry.get("lower") else int(np.prod(shape, dtype=np.int64))
    if "small" in entry:
        steps = _part(entry, data, start, _DTYPES["uint8"], count)
        values, large = steps.astype(dtype) + dtype.type(entry["least"]), steps == _ESCAPE
        n_large = count - int(entry["small"])
        if int(large.sum()) != n_large:
            raise ValueError(f"Array {entry['name']!r} promises {n_large} large numbers and has {int(large.sum())}.")
        values[large] = _part(entry, data, start + count + -count % ALIGN, dtype, n_large)
        values.flags.writeable = False
    else:
        values = _part(entry, data, start, dtype, count)
    return _whole(values, shape[0], entry["above"]) if entry.get("lower") else values.reshape(shape)


def _part(entry: Mapping[str, Any], data: bytes, start: int, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    if start + count * dtype.itemsize > len(data):
        raise ValueError(f"Array {entry['name']!r} of shape {entry['shape']} reaches beyond the packed data.")
    return np.frombuffer(data, dtype, count, start)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGN)


def _is_long_triangle(array: NDArray[Any]) -> bool:
    """Whether it is a large square with one number everywhere above the diagonal."""
    if array.ndim != 2 or array.shape[0] != array.shape[1] or len(array) < _LONG:
        return False
    above = array[0, -1]
    return all((row[number + 1 :] == above).all() for number, row in enumerate(array))


def _whole(values: NDArray[Any], size: int, above: float) -> NDArray[Any]:
    """The square whose rows up to the diagonal are `values`."""
    square = np.full((size, size), above, dtype=values.dtype)
    square[np.tri(size, dtype=bool)] = values
    return square


def _narrow(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array as one of the four types that travel."""
    kind = array.dtype.kind
    if array.dtype == np.uint8 or kind == "b":
        return array.astype(_DTYPES["uint8"], copy=False)
    if array.dtype == np.uint16:
        return array.astype(_DTYPES["uint16"], copy=False)
    if kind == "f":
        return array.astype(_DTYPES["float32"], copy=False)
    if kind in "iu":
        limits = np.iinfo(np.int32)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise ValueError(f"Array {name!r} holds integers beyond 32 bits; scale it or send floats.")
        return array.astype(_DTYPES["int32"], copy=False)
    raise TypeError(f"Array {name!r} is of type {array.dtype}; a view carries booleans, integers and reals.")
