"""What is drawn for a step: lines of matrices with signs between them, as plain data for the browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from mha_core.lesson import Worked

MAX_SHOWN = 32  # rows and columns of a map; more could not be read as a step


@dataclass(frozen=True)
class Matrix:
    """A matrix to draw. values: None for minus infinity (or NaN). editable: its name for edits, "" for not.

    scale: "signed" (blue to orange around 0), "share" (0 to 1) or "plain" (no colour).
    marked: columns from … to that are outlined, for the block of one head. marked_row: a row that is outlined.
    """

    name: str
    values: tuple[tuple[float | None, ...], ...]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    shape: str = ""
    scale: str = "signed"
    editable: str = ""
    marked: tuple[int, int] | None = None
    marked_row: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Line:
    """Matrices (`Matrix`) and signs (`str`) in a row."""

    items: tuple[Matrix | str, ...]
    label: str = ""


@dataclass(frozen=True)
class Group:
    """Lines that belong together: a head, or a way of doing it."""

    title: str
    lines: tuple[Line, ...]
    note: str = ""
    quiet: bool = False


@dataclass(frozen=True)
class Panel:
    """A step's drawing."""

    groups: tuple[Group, ...] = field(default_factory=tuple)

    def data(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def matrices(self) -> list[Matrix]:
        """Every matrix that is drawn, in order."""
        lines = [line for group in self.groups for line in group.lines]
        return [item for line in lines for item in line.items if isinstance(item, Matrix)]


def matrix(
    name: str, values: Tensor, rows: Sequence[str] = (), columns: Sequence[str] | None = None, **more: Any
) -> Matrix:
    """A matrix from a tensor [row, column]. columns: None numbers them."""
    n_rows, n_columns = values.shape
    columns = [str(i) for i in range(n_columns)] if columns is None else columns
    numbers = tuple(tuple(_number(v) for v in row) for row in values.tolist())
    shape = more.pop("shape", f"{n_rows}×{n_columns}")
    return Matrix(name, numbers, tuple(rows), tuple(columns), shape, **more)


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def panel(worked: Worked, step: str, heads: Sequence[int], editable: bool = False) -> Panel:
    """The drawing of a step for these heads. editable: X and the projections can be changed in place."""
    makers = {"embed": _embed, "concat": _concat, "output": _output, "residual": _residual}
    if step in makers:
        return Panel(makers[step](worked, heads, editable))
    of_head = {
        "project": _project, "scores": _scores, "scale": _scale, "mask": _mask, "softmax": _softmax, "values": _values,
    }[step]  # fmt: skip
    groups = [Group(worked.heads[head], of_head(worked, head, editable)) for head in heads]
    if step == "softmax":  # every head's own map is always seen
        others = (head for head in range(len(worked.heads)) if head not in heads)
        groups += [_one(worked.heads[head], _map(worked, "A", worked.weights[head], scale="share")) for head in others]
    return Panel(tuple(groups))


def _embed(worked: Worked, heads: Sequence[int], editable: bool) -> tuple[Group, ...]:
    return (Group("", (Line((_x(worked, editable),)),)),)


def _x(worked: Worked, editable: bool) -> Matrix:
    assert worked.x is not None, "X is only known where the layer's input is"
    return matrix("X", worked.x, worked.queries, editable="X" if editable else "")


def _project(worked: Worked, head: int, editable: bool) -> tuple[Line, ...]:
    results = {"Q": (worked.query, worked.queries), "K": (worked.key, worked.keys), "V": (worked.value, worked.keys)}
    lines = []
    for name, (result, labels) in results.items():
        product = _rows(matrix(name, result[head][:MAX_SHOWN], labels[:MAX_SHOWN]), len(labels))
        if worked.layer is None:
            lines.append(Line((product,)))
            continue
        weight = getattr(worked.layer, f"W_{name}")[head]
        edit = f"{name}{head}" if editable else ""
        numbers = [str(i) for i in range(weight.shape[0])]
        factor = matrix(f"W_{name}", weight, numbers, editable=edit)
        lines.append(Line((_x(worked, editable), "×", factor, "=", product)))
    return tuple(lines)


def _rows(drawn: Matrix, n_rows: int) -> Matrix:
    """Say it when only the first rows are drawn."""
    if n_rows <= MAX_SHOWN:
        return drawn
    return Matrix(**{**vars(drawn), "note": f"the first {MAX_SHOWN} of {n_rows} positions"})


def _map(worked: Worked, name: str, values: Tensor, **more: Any) -> Matrix:
    """A [query, key] matrix with its labels; long ones are cut, and say so."""
    shown = values[:MAX_SHOWN, :MAX_SHOWN]
    n, m = values.shape
    note = "" if max(n, m) <= MAX_SHOWN else f"the first {MAX_SHOWN} positions; all {max(n, m)} are calculated with"
    labels = (worked.queries[:MAX_SHOWN], worked.keys[:MAX_SHOWN])
    return matrix(name, shown, *labels, shape=f"{n}×{m}", **{"note": note, **more})


def _scores(worked: Worked, head: int, editable: bool) -> tuple[Line, ...]:
    query = _rows(matrix("Q", worked.query[head][:MAX_SHOWN], worked.queries[:MAX_SHOWN]), len(worked.queries))
    key = matrix("Kᵀ", worked.key[head][:MAX_SHOWN].T, _numbers(worked.d_head), worked.keys[:MAX_SHOWN])
    return (Line((query, "×", key, "=", _map(worked, "S = QKᵀ", worked.products[head]))),)


def _numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def _scale(worked: Worked, head: int, editable: bool) -> tuple[Line, ...]:
    root = worked.d_head**-0.5
    by = f"÷ √{worked.d_head}" if math.isclose(worked.scale, root, rel_tol=1e-6) else f"× {worked.scale:.4g}"
    before = _map(worked, "S", worked.products[head])
    return (Line((before, by, "=", _map(worked, "scaled", worked.scaled[head]))),)


def _mask(worked: Worked, head: int, editable: bool) -> tuple[Line, ...]:
    closed = worked.closed[head]
    mask = torch.zeros(closed.shape, dtype=worked.scaled.dtype).masked_fill(closed, float("-inf"))
    return (
        Line(
            (_map(worked, "scaled", worked.scaled[head]), "+", _map(worked, "M", mask, scale="plain"), "=",
             _map(worked, "masked", worked.masked[head]))
        ),
    )  # fmt: skip


def _softmax(worked: Worked, head: int, editable: bool) -> tuple[Line, ...]:
    before = _map(worked, "masked", worked.masked[head])
    return (Line((before, "→", _map(worked, "A", worked.weights[head], scale="share"))),)


def _values(worked: Worked, head: int, editable: bool) -> tuple[Line, ...]:
    value = _rows(matrix("V", worked.value[head][:MAX_SHOWN], worked.keys[:MAX_SHOWN]), len(worked.keys))
    return (Line((_map(worked, "A", worked.weights[head], scale="share"), "×", value, "=", _z(worked, head))),)


def _z(worked: Worked, head: int) -> Matrix:
    shown = worked.head_outputs[head][:MAX_SHOWN]
    name = f"Z of {worked.heads[head]}"
    return _rows(matrix(name, shown, worked.queries[:MAX_SHOWN]), len(worked.queries))


def _concat(worked: Worked, heads: Sequence[int], editable: bool) -> tuple[Group, ...]:
    joined, labels = worked.joined[:MAX_SHOWN], worked.queries[:MAX_SHOWN]
    if worked.x is None:
        block = (worked.block, worked.block + worked.d_head)
        drawn = matrix("Z", joined, labels, marked=block, shape=f"{len(worked.queries)}×{joined.shape[1]}")
        return (_one("All heads of the layer side by side", _rows(drawn, len(worked.queries))),)
    parts: list[Matrix | str] = []
    for head in range(len(worked.heads)):
        parts += ["|", _z(worked, head)] if parts else [_z(worked, head)]
    total = worked.head_outputs.sum(dim=0)
    return (
        Group(
            "Side by side: what is done", (Line(tuple(parts)), Line((matrix("Z", joined, labels, _columns(worked)),)))
        ),
        _one("Summed: not what is done", matrix("sum", total, labels), quiet=True),
        _one("Averaged: not what is done", matrix("average", total / len(worked.heads), labels), quiet=True),
    )


def _one(title: str, drawn: Matrix, quiet: bool = False) -> Group:
    return Group(title, (Line((drawn,)),), quiet=quiet)


def _columns(worked: Worked) -> list[str]:
    """Names of the joined columns: head and dimension."""
    return [f"{name}.{i}" for name in worked.heads for i in range(worked.d_head)]


def _output(worked: Worked, heads: Sequence[int], editable: bool) -> tuple[Group, ...]:
    labels = worked.queries[:MAX_SHOWN]
    output = _rows(matrix("output", worked.output[:MAX_SHOWN], labels), len(worked.queries))
    if worked.layer is None:
        adds = _rows(matrix("z W_O", worked.contributions[0][:MAX_SHOWN], labels), len(worked.queries))
        return _one(f"What {worked.heads[0]} adds", adds), _one("What the whole layer writes", output, quiet=True)
    width = worked.layer.W_O.shape[-1]
    names = _columns(worked)
    weight = matrix("W_O", worked.layer.W_O.reshape(-1, width), names, editable="O" if editable else "")
    by_head: list[Matrix | str] = []
    for head, name in enumerate(worked.heads):
        by_head += ["+"] if by_head else []
        by_head.append(matrix(f"{name} adds", worked.contributions[head], labels))
    return (
        Group("All heads at once", (Line((matrix("Z", worked.joined, labels, names), "×", weight, "=", output)),)),
        Group("The same by head: contributions", (Line((*by_head, "=", output)),)),
    )


def _residual(worked: Worked, heads: Sequence[int], editable: bool) -> tuple[Group, ...]:
    assert worked.residual is not None, "only where X is known"
    output, after = (matrix(n, v, worked.queries) for n, v in (("output", worked.output), ("X′", worked.residual)))
    return (Group("", (Line((_x(worked, editable), "+", output, "=", after)),)),)
