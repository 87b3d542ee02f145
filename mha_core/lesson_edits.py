"""Changed numbers of the worked example: typed into a cell, pasted as a block, or come by a link. Never trusted.

They travel as text, `X.0.1=3,Q1.2.0=-0.5`: matrix, row, column, counted from 0. What cannot be used gets a sentence,
and everything else is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from mha_core.lesson import TOY, LessonError, Matrices

MAX_EDITS = 4_000  # characters; all 72 numbers need 1,400
MAX_NUMBER = 1_000.0
_EDIT = re.compile(r"([A-Z][01]?)\.(\d{1,2})\.(\d{1,2})=(.{1,40})")
_NAMES = {"X": "X", "O": "W_O"} | {f"{name}{head}": f"W_{name} of H{head}" for name in "QKV" for head in (0, 1)}

Cell = tuple[str, int, int, str]
"""Matrix, row, column, what was typed."""


def matrix_name(matrix: str) -> str:
    """What a matrix of the worked example is called: "Q1" is "W_Q of H1"."""
    return _NAMES[matrix]


def read_number(text: str) -> float:
    """A number as people type it; a comma or a point before the decimals.

    Raises:
        LessonError: not a number, not finite, or too large to be shown.
    """
    shown = text.strip()[:30]
    typed = shown.replace("\N{MINUS SIGN}", "-")
    if re.fullmatch(r"[+-]?\d+,\d+", typed):
        typed = typed.replace(",", ".")
    if not shown:
        raise LessonError("The cell is empty. Type a number such as 0.5 or -2.")
    try:
        value = float(typed) if "_" not in typed else math.nan
    except ValueError:
        raise LessonError(f"“{shown}” is not a number. Type one such as 0.5 or -2.") from None
    if not math.isfinite(value):
        raise LessonError(f"“{shown}” is not a number to calculate with. Type one such as 0.5 or -2.")
    if abs(value) > MAX_NUMBER:
        raise LessonError(f"{shown} is too large to be shown here. Type a number from -1000 to 1000.")
    return value + 0.0  # -0.0 becomes 0.0


def matrices_of(edits: str) -> tuple[dict[str, tuple[tuple[float, ...], ...]], list[str]]:
    """The worked example's matrices with these edits, and a sentence for each edit that cannot be used."""
    problems = []
    if len(edits) > MAX_EDITS:
        problems.append(f"The link's numbers are longer than {MAX_EDITS:,} characters; only those are read.")
    cells: list[Cell] = []
    for part in filter(None, edits[:MAX_EDITS].split(",")):
        match = _EDIT.fullmatch(part)
        if match is None:
            problems.append(f"“{part[:30]}” names no cell. Write matrix, row, column and number, such as X.0.1=3.")
            continue
        matrix, row, column, typed = match.groups()
        cells.append((matrix, int(row), int(column), typed))
    changed, more = with_cells(TOY, cells)
    return changed, problems + more


def with_cells(matrices: Matrices, cells: Iterable[Cell]) -> tuple[dict[str, tuple[tuple[float, ...], ...]], list[str]]:
    """The matrices with some cells set, and a sentence for each cell that keeps its number."""
    rows = {name: [list(row) for row in matrix] for name, matrix in matrices.items()}
    problems = []
    for matrix, row, column, typed in cells:
        if matrix not in rows or not (0 <= row < len(rows[matrix]) and 0 <= column < len(rows[matrix][0])):
            problems.append(f"There is no cell {matrix[:10]}.{row}.{column}. {_shapes()}")
            continue
        try:
            rows[matrix][row][column] = read_number(typed)
        except LessonError as error:
            kept = number_text(rows[matrix][row][column])
            problems.append(f"{error} {matrix_name(matrix)}, row {row}, column {column} keeps {kept}.")
    return {name: tuple(tuple(row) for row in matrix) for name, matrix in rows.items()}, problems


def with_matrix(
    matrices: Matrices, matrix: str, text: str
) -> tuple[dict[str, tuple[tuple[float, ...], ...]], list[str]]:
    """The matrices with one of them replaced by typed or pasted text: a line per row, numbers apart by spaces, tabs,
    semicolons or commas (brackets of code are left out).

    A shape that does not fit, or a number that is none, gets a sentence and leaves the whole matrix as it was.
    """
    lines = [line for line in re.sub(r"[\[\](){}]", " ", text[:MAX_EDITS]).splitlines() if line.strip(" ,;\t")]
    typed = [[word for word in re.split(r"[\s,;]+", line) if word] for line in lines]
    n_rows, n_columns = shape_of(matrices, matrix)
    if len(typed) != n_rows or any(len(row) != n_columns for row in typed):
        return dict(matrices), [
            f"{matrix_name(matrix)} is {n_rows} × {n_columns} and {_size(typed)} given, so it stays as it was. "
            f"Type {n_rows} lines of {n_columns} numbers."
        ]
    cells = [(matrix, r, c, word) for r, row in enumerate(typed) for c, word in enumerate(row)]
    changed, problems = with_cells(matrices, cells)
    return (dict(matrices), problems) if problems else (changed, [])


def _size(rows: Sequence[Sequence[str]]) -> str:
    lengths = {len(row) for row in rows}
    if not rows:
        return "nothing was"
    if len(lengths) > 1:
        return f"rows of {' and '.join(map(str, sorted(lengths)))} numbers were"
    return f"{len(rows)} × {lengths.pop()} was"


def shape_of(matrices: Matrices, matrix: str) -> tuple[int, int]:
    """Rows and columns of a matrix."""
    return len(matrices[matrix]), len(matrices[matrix][0])


def _shapes() -> str:
    return "There are X (2 × 4), Q0, K0, V0, Q1, K1, V1 (4 × 2) and O (4 × 4), counted from 0."


def edits_of(matrices: Matrices) -> str:
    """The edits that lead from the original numbers to these."""
    return ",".join(
        f"{name}.{r}.{c}={number_text(value)}"
        for name, rows in matrices.items()
        for r, row in enumerate(rows)
        for c, value in enumerate(row)
        if value != TOY[name][r][c]
    )


def number_text(value: float) -> str:
    """A number as short as it can be said in six digits."""
    return f"{value:.6g}"


def matrix_text(matrices: Matrices, matrix: str) -> str:
    """A matrix as text that `with_matrix` takes: a line per row."""
    return "\n".join(" ".join(number_text(value) for value in row) for row in matrices[matrix])
