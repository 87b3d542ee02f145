"""A view's numbers as CSV, JSON or NPZ, each with what made them. Pictures are exported elsewhere.

Tokens are untrusted text. A spreadsheet executes a cell that begins with = + - or @; in CSV such labels get a leading
apostrophe. Numbers are written as numbers.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.view import View

FORMATS = ("csv", "json", "npz")
_EXECUTED = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_DRAWING = ("palette", "id", "scale_to")  # of the picture, not of the numbers
_SPLITS = str.maketrans({",": "\\u002c", ";": "\\u003b"})  # what could end a spreadsheet's cell
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_UINT16 = 65535
_SAID = ("unit", "values_label", "block")  # of the drawing's description, what CSV must say too


def export_numbers(view: View, fmt: str) -> bytes:
    """The numbers of a view, exact where the view is exact, with its provenance.

    Args:
        view: of kind overview, layer, matrix, text, lines or table; others are written axis by axis.
        fmt: "csv", long, one row per cell, after lines that begin with # and hold the provenance. The first of them
            says how many they are (`pandas.read_csv(…, skiprows=17)`: labels may begin with # too).
            "json", with "kind", "provenance", "meta" and "arrays".
            "npz", the arrays, with "provenance" and "meta" as JSON text (`json.loads(str(file["provenance"]))`).

    Raises:
        ValueError: another format.
    """
    writers: dict[str, Callable[[View], bytes]] = {"csv": to_csv, "json": to_json, "npz": to_npz}
    if fmt not in writers:
        raise ValueError(f"Numbers are exported as {', '.join(FORMATS)}; {fmt!r} was asked for.")
    return writers[fmt](view)


def to_csv(view: View) -> bytes:
    """UTF-8 with a byte order mark, so that spreadsheets read every script. See `export_numbers`."""
    said = {name: view.meta[name] for name in _SAID if view.meta.get(name) is not None}
    lines = [f"# {name}: {_one_cell(value)}" for name, value in _flat({**view.provenance, "kind": view.kind, **said})]
    text = io.StringIO()
    text.write(f"# Headscope: {len(lines) + 1} lines before the table\r\n")
    text.writelines(f"{line}\r\n" for line in lines)
    columns, rows = _table(view)
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8-sig", "backslashreplace")


def to_json(view: View) -> bytes:
    """One object; numbers are the shortest that give the same float32 again. NaN and infinities become null."""
    record = {
        "kind": view.kind,
        "provenance": dict(view.provenance),
        "meta": _meta(view),
        "arrays": {name: _nested(array) for name, array in _arrays(view).items()},
    }
    return _json(record).encode("utf-8", "backslashreplace")


def to_npz(view: View) -> bytes:
    """A compressed NumPy archive without pickles."""
    buffer = io.BytesIO()
    texts = {"provenance": np.array(json.dumps(dict(view.provenance))), "meta": np.array(json.dumps(_meta(view)))}
    np.savez_compressed(buffer, **_arrays(view), **texts)  # type: ignore[arg-type]
    return buffer.getvalue()


def defused(text: str) -> str:
    """A label as a cell that no spreadsheet executes: with a leading apostrophe where it would."""
    return f"'{text}" if text.lstrip(" \u00a0")[:1] in _EXECUTED and text.strip(" ") else text


def _meta(view: View) -> dict[str, Any]:
    return {name: value for name, value in view.meta.items() if name not in _DRAWING}


def _arrays(view: View) -> dict[str, NDArray[Any]]:
    """The view's arrays as numbers: thumbnails and 16-bit maps are scaled back."""
    arrays = {}
    for name, given in view.arrays.items():
        array = np.asarray(given)
        if array.dtype == np.uint16 and "scale_to" in view.meta:
            ends = view.meta["scale_to"]
            low, high = ends if isinstance(ends, (list, tuple)) else (0.0, ends)
            array = (low + array / _UINT16 * (high - low)).astype(np.float32)
        elif array.dtype == np.uint8 and name in ("maps", "map"):
            array = (array / 255).astype(np.float32)
        elif array.dtype == np.float64:
            array = array.astype(np.float32)
        arrays[name] = array
    return arrays


def _table(view: View) -> tuple[list[str], Iterable[Sequence[object]]]:
    """Column names and rows of the long format."""
    arrays = _arrays(view)
    if view.kind == "overview" and "values" in arrays:
        return ["layer", "head", str(view.meta.get("values_label", "value"))], _long(arrays["values"])
    if view.kind == "table" or "rows" in view.meta:
        rows = list(view.meta.get("rows", ()))
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return [defused(c) for c in columns], ([_cell(row.get(name)) for name in columns] for row in rows)
    if "top_values" in arrays:
        return _strongest(view, arrays["top_values"], arrays["top_keys"])
    for name in ("maps", "map"):
        if name in arrays and arrays[name].ndim in (2, 3) and "key_labels" in view.meta:
            return _cells(view, arrays[name])
    if len(arrays) == 1:
        (array,) = arrays.values()
        return [*(f"axis {i}" for i in range(array.ndim)), "value"], _long(array)
    width = max((array.ndim for array in arrays.values()), default=0)
    columns = ["array", *(f"axis {i}" for i in range(width)), "value"]
    return columns, ([name, *_wide(row, width)] for name, array in arrays.items() for row in _long(array))


def _wide(row: Sequence[object], width: int) -> list[object]:
    """A row of `_long` with empty cells for the axes it does not have."""
    return [*row[:-1], *[""] * (width + 1 - len(row)), row[-1]]


def _cells(view: View, array: NDArray[Any]) -> tuple[list[str], Iterator[Sequence[object]]]:
    """Every cell of maps [head, query, key], or of one map [query, key]."""
    maps = array[None] if array.ndim == 2 else array
    block = view.meta.get("block", (1, 1))
    sides = []
    for axis, side in enumerate(("query", "key")):
        labels = [defused(str(label)) for label in view.meta.get(f"{side}_labels", ())]
        positions = list(view.meta.get(f"{side}_positions", range(len(labels))))
        starts = range(0, len(labels), int(block[axis]))
        sides.append([(positions[start], labels[start]) for start in starts])
    (queries, keys), heads = sides, _head_names(view, len(maps))

    def rows() -> Iterator[Sequence[object]]:
        for head, matrix in zip(heads, maps, strict=True):
            for (query, query_label), numbers in zip(queries, matrix, strict=True):
                texts = _shortest(numbers)
                for (key, key_label), number in zip(keys, texts, strict=True):
                    yield head, query, query_label, key, key_label, number

    return ["head", "query", "query label", "key", "key label", _value_name(view)], rows()


def _strongest(view: View, values: NDArray[Any], keys: NDArray[Any]) -> tuple[list[str], Iterator[Sequence[object]]]:
    """The strongest keys per query of a long text, [head, query, rank], strongest first."""
    labels = {side: [defused(str(label)) for label in view.meta.get(f"{side}_labels", ())] for side in ("query", "key")}
    places = {side: list(view.meta.get(f"{side}_positions", range(len(labels[side])))) for side in labels}
    heads = _head_names(view, len(values))

    def rows() -> Iterator[Sequence[object]]:
        for head, head_values, head_keys in zip(heads, values, keys, strict=True):
            for query, (numbers, columns) in enumerate(zip(head_values, head_keys, strict=True)):
                order = np.argsort(-numbers, kind="stable")
                for column, number in zip(columns[order].tolist(), _shortest(numbers[order]), strict=True):
                    yield (
                        head, places["query"][query], labels["query"][query], places["key"][column],
                        labels["key"][column], number,
                    )  # fmt: skip

    return ["head", "query", "query label", "key", "key label", _value_name(view)], rows()


def _head_names(view: View, count: int) -> list[str]:
    """The name of each map: from the provenance, the titles, or a number."""
    head = view.provenance.get("head")
    for names in (view.provenance.get("heads"), view.meta.get("titles"), [head] if head else None):
        if names is not None and len(names) == count and any(names):
            return [defused(str(name)) for name in names]
    title = view.meta.get("title")
    return [defused(str(title))] if title and count == 1 else [str(number) for number in range(count)]


def _value_name(view: View) -> str:
    quantity = str(view.provenance.get("quantity", view.meta.get("unit", "weight")))
    return "weight" if "weight" in quantity and "value-weighted" not in quantity else "value"


def _long(array: NDArray[Any]) -> Iterator[Sequence[object]]:
    """(index, ..., number as text) of every element."""
    for index, number in zip(np.ndindex(array.shape), _shortest(array), strict=True):
        yield (*index, number)


def _shortest(array: NDArray[Any]) -> list[str]:
    """Numbers as the shortest text that gives the same number again, in C order; NaN as an empty cell."""
    texts: list[str] = np.ravel(array).astype("U32").tolist()
    return ["" if text == "nan" else text for text in texts]


def _nested(array: NDArray[Any]) -> Any:
    """The array as lists, its floats as short as they can be."""
    if array.dtype.kind != "f":
        return array.tolist()
    flat = [float(text) if text not in ("", "inf", "-inf") else None for text in _shortest(array)]
    return np.array(flat, dtype=object).reshape(array.shape).tolist()


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested provenance as dotted names, so that every line holds one value."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _cell(value: object) -> object:
    return defused(value) if isinstance(value, str) else value


def _one_cell(value: Any) -> str:
    """A value as JSON whose strings hold nothing that could end a spreadsheet's cell."""
    return _STRING.sub(lambda match: match[0].translate(_SPLITS), _json(value))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
