"""Rows of a CSV or JSON file, whatever program wrote it; a row that is none is the reason why."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mha_core.tasks import TaskError

MAX_BYTES, MAX_ROWS, MAX_SLICES, MAX_CHARACTERS = 2_000_000, 5_000, 20, 10_000
Row = Mapping[str, str]
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True)
class Table:
    """Rows by column; in place of a row that cannot be read, the reason. notes: sentences about the whole file."""

    columns: tuple[str, ...]
    rows: tuple[Row | str, ...]
    notes: tuple[str, ...] = ()


def read_rows(data: bytes, file_name: str, known: Sequence[str]) -> Table:
    """The rows of a file. known: columns that are found in capitals too; the first two are needed.

    Raises:
        TaskError: too large, not text, or not a table with these columns.
    """
    if len(data) > MAX_BYTES:
        raise TaskError(f"{file_name} has {len(data):,} bytes; at most {MAX_BYTES:,} are taken. Split it.")
    try:
        text = data.decode(_MARKS.get(data[:2], "utf-8-sig"))
    except UnicodeDecodeError:
        raise TaskError(
            f"{file_name} is neither UTF-8 nor UTF-16 text. Save it as CSV UTF-8 (in Excel: “CSV UTF-8”) or JSON lines."
        ) from None
    ending = file_name.lower().rpartition(".")[2]
    notes: list[str] = []
    if ending in ("jsonl", "ndjson", "json"):
        found = _json_rows(text, known)
    else:
        header, lines, notes = _csv_header(text, known)
        found = _csv_rows(lines, header)
    rows: list[Row | str] = []
    for row in found:
        rows.append(row)
        if len(rows) > MAX_ROWS:
            raise TaskError(f"{file_name} has more than {MAX_ROWS:,} rows. Split it.")
    columns = dict.fromkeys(name for row in rows if not isinstance(row, str) for name in row)
    return Table(tuple(columns), tuple(rows), tuple(notes))


def _csv_header(text: str, known: Sequence[str]) -> tuple[list[str], Iterator[list[str]], list[str]]:
    """Columns, the lines after them, and notes. Whichever of comma, semicolon and tab finds the needed columns."""
    for separator in (",", ";", "\t"):
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        header = [_named(column, known) for column in _first(lines)]
        if set(known[:2]) <= set(header):
            named = [column for column in header if column]
            twice = sorted({column for column in named if named.count(column) > 1})
            if twice:
                raise TaskError(f"The first line names {', '.join(twice)[:200]} more than once; name each column once.")
            unnamed = len(header) - len(named)
            return header, lines, [f"{unnamed} columns have no name and are not used."] if unnamed else []
    first = text.lstrip().split("\n", 1)[0].strip()
    raise TaskError(
        f"The first line names the columns {first[:200] or 'nothing'}; {known[0]} and {known[1]} must be among them, "
        "with commas, semicolons or tabs between them."
    )


def _first(lines: Iterator[list[str]]) -> list[str]:
    try:
        return next((line for line in lines if any(cell.strip() for cell in line)), [])
    except csv.Error as error:
        raise TaskError(f"This is no CSV: {error}.") from None


def _named(column: str, known: Sequence[str]) -> str:
    name = column.strip()
    return name.lower() if name.lower() in known else name


def _csv_rows(lines: Iterator[list[str]], header: Sequence[str]) -> Iterator[Row | str]:
    try:
        for line in lines:
            if len(line) > len(header) and any(line[len(header) :]):
                yield f"It has {len(line)} cells and the header {len(header)}; put cells with separators in quotes."
            elif line:
                cells = [*line, *[""] * (len(header) - len(line))]
                yield {name: cell for name, cell in zip(header, cells, strict=False) if name}
    except csv.Error as error:
        raise TaskError(f"This is no CSV: {error}.") from None


def _json_rows(text: str, known: Sequence[str]) -> Iterator[Row | str]:
    """Of one object a line, or of one list of objects."""
    if text.lstrip().startswith("["):
        try:
            records: list[Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"This is no JSON: {error}.") from None
        yield from (_json_row(record, known) for record in records)
        return
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield f"It is not JSON: {error}."
            continue
        yield _json_row(record, known)


def _json_row(record: Any, known: Sequence[str]) -> Row | str:
    if not isinstance(record, dict):
        return "It is not a JSON object; write one object a line."
    if any(isinstance(value, (dict, list)) for value in record.values()):
        return "It holds a list or an object; every value must be a text, a number, true, false or null."
    return {_named(str(name), known): "" if value is None else str(value) for name, value in record.items()}
