"""Matrices of a calculation, drawn by `assets/matrices.js`; some of them to be changed in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import streamlit as st

from mha_core import palette
from mha_core.lesson_edits import MAX_EDITS, Cell
from mha_core.lesson_panels import Panel
from mha_core.ui.mounting import component, event, index

_MOST_CELLS = 100
_MOST_TIME = 2**53


@dataclass(frozen=True)
class Typed:
    """What a visitor changed. cells: single numbers, as typed. paste: a matrix and the text for the whole of it.

    seq: the newest change that is contained.
    """

    cells: tuple[Cell, ...]
    paste: tuple[str, str] | None
    seq: int


def matrices(panel: Panel, *, key: str, ack: int = 0, on_edit: Callable[[Typed], None] | None = None) -> None:
    """Draw a panel.

    Args:
        key: the widget's name in the session.
        ack: the `seq` of the newest change that the numbers contain.
        on_edit: called with what was typed before the page runs again.
    """

    def handle() -> None:
        typed = read_typed(event(st.session_state.get(key), "edit"))
        if typed is not None and on_edit is not None:
            on_edit(typed)

    data = {**panel.data(), "palette": palette.for_browser(), "ack": ack}
    component("matrices")(key=key, data=data, on_edit_change=handle)


def read_typed(message: Mapping[str, object]) -> Typed | None:
    """What a browser sent, unchecked, as what was typed; None when it is nothing of ours."""
    seq, cells, paste = index(message.get("seq"), _MOST_TIME), message.get("cells"), message.get("paste")
    if seq is None or not isinstance(cells, list):
        return None
    read = [cell for cell in map(_cell, cells[:_MOST_CELLS]) if cell is not None]
    return Typed(tuple(read), _pasted(paste), seq)


def _cell(item: object) -> Cell | None:
    if not isinstance(item, list) or len(item) != 4:
        return None
    matrix, row, column, text = item
    row, column = index(row, 100), index(column, 100)
    if row is None or column is None or not isinstance(matrix, str) or not isinstance(text, str):
        return None
    return matrix[:10], row, column, text[:60]


def _pasted(item: object) -> tuple[str, str] | None:
    if not isinstance(item, Mapping):
        return None
    matrix, text = item.get("matrix"), item.get("text")
    return (matrix[:10], text[:MAX_EDITS]) if isinstance(matrix, str) and isinstance(text, str) else None
