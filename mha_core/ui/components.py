"""The Python side of the canvas components: thin, typed, and never trusting what a browser sends.

Views: `overview` (every head a thumbnail), `layer_maps` (one layer's heads side by side), `matrix` (one head's map,
large), `text` (a layer's heads in the sentence), `lines` (heads as lines); the drawing is in `assets/`. Also from here:
`head_grid` (heads to switch off), which is `ui/head_grid.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import streamlit as st

from mha_core import palette
from mha_core.ui.head_grid import GridRecord, head_grid, reconcile
from mha_core.ui.mounting import component as _component
from mha_core.ui.mounting import event as _event
from mha_core.ui.mounting import index as _index
from mha_core.view import View

__all__ = ["GridRecord", "head_grid", "layer_maps", "lines", "matrix", "overview", "reconcile", "text"]

Height = Literal["content", "stretch"] | int


def _packed(view: View, listens: Sequence[str] | None = None) -> bytes:
    """The view and its colours as bytes, which stay bytes only when they are `data` itself.

    `listens`: the events that somebody waits for; the browser keeps the others to itself (None: it sends all).
    """
    more = {} if listens is None else {"listens": list(listens)}
    return replace(view, meta={"palette": palette.for_browser(), **view.meta, **more}).pack()


def overview(
    view: View,
    *,
    key: str,
    on_select: Callable[[int, int], None] | None = None,
    height: Height = "content",
) -> tuple[int, int] | None:
    """Every head of every layer as a thumbnail; a click (or Enter) chooses one.

    Parameters
    ----------
    view:
        Of kind `"overview"`: `maps` [layer, head, row, column], optional `values` [layer, head]; see
        `mha_core.view`.
    key:
        The widget's name in the session.
    on_select:
        Called with (layer, head) before the page runs again.
    height:
        `"content"`, `"stretch"` or pixels (more content then scrolls).

    Returns
    -------
    (layer, head) in the one run after a choice, otherwise None. Places outside the view are ignored.
    """
    n_layers, n_heads = np.shape(view.arrays["maps"])[:2]

    def chosen(result: object) -> tuple[int, int] | None:
        event = _event(result, "select")
        layer, head = _index(event.get("layer"), n_layers), _index(event.get("head"), n_heads)
        return None if layer is None or head is None else (layer, head)

    def handle() -> None:
        place = chosen(st.session_state.get(key))
        if place is not None and on_select is not None:
            on_select(*place)

    return chosen(_component("maps")(key=key, data=_packed(view), height=height, on_select_change=handle))


def layer_maps(
    view: View,
    *,
    key: str,
    on_select: Callable[[int], None] | None = None,
    height: Height = "content",
) -> int | None:
    """All heads of one layer side by side, on one colour scale; a click (or Enter) chooses a head.

    Parameters
    ----------
    view:
        Of kind `"layer"`: `maps` [head, query, key]; see `mha_core.view`.
    key:
        The widget's name in the session.
    on_select:
        Called with the head before the page runs again.
    height:
        `"content"`, `"stretch"` or pixels (more content then scrolls).

    Returns
    -------
    The head in the one run after a choice, otherwise None.
    """
    n_heads = np.shape(view.arrays["maps"])[0]

    def chosen(result: object) -> int | None:
        return _index(_event(result, "select").get("head"), n_heads)

    def handle() -> None:
        head = chosen(st.session_state.get(key))
        if head is not None and on_select is not None:
            on_select(head)

    return chosen(_component("maps")(key=key, data=_packed(view), height=height, on_select_change=handle))


def matrix(
    view: View,
    *,
    key: str,
    on_cell: Callable[[int, int], None] | None = None,
    cell: tuple[int, int] | None = None,
    height: Height = "content",
) -> tuple[int, int] | None:
    """One head's map, large and exact, to zoom, pan and walk through; a click (or Enter) chooses a cell.

    Parameters
    ----------
    view:
        Of kind `"matrix"`: `map` [query, key]; see `mha_core.view`.
    key:
        The widget's name in the session.
    on_cell:
        Called with (query, key), indices into the map, before the page runs again. Without it a click tells the server
        nothing.
    cell:
        (query, key) of the chosen cell, where `on_cell` listens; it travels apart from the map.
    height:
        `"content"`, `"stretch"` or pixels (more content then scrolls).

    Returns
    -------
    (query, key) in the one run after a choice, otherwise None.

    Raises
    ------
    ValueError
        When the view is of another kind or its map has not two axes.
    """
    shape = np.shape(_kind(view, "matrix").arrays["map"])
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"A matrix view needs a map [query, key] with at least one cell; its shape is {shape}.")

    def chosen(result: object) -> tuple[int, int] | None:
        event = _event(result, "cell")
        query, key_ = _index(event.get("query"), shape[0]), _index(event.get("key"), shape[1])
        return None if query is None or key_ is None else (query, key_)

    def handle() -> None:
        place = chosen(st.session_state.get(key))
        if place is not None and on_cell is not None:
            on_cell(*place)

    if on_cell:
        view = replace(view, meta={**view.meta, "mark": key})
        with st.container(key=f"unseen_{key}"):
            _component("mark")(key=f"{key}_mark", data={"name": key, "cell": None if cell is None else list(cell)})
    data = _packed(view, listens=["cell"] if on_cell else [])
    return chosen(_component("matrix")(key=key, data=data, height=height, on_cell_change=handle))


def text(
    view: View,
    *,
    key: str,
    on_select: Callable[[int], None] | None = None,
    on_query: Callable[[int | None], None] | None = None,
    height: Height = "content",
) -> int | None:
    """Where every head of a layer looks from one token, in the text itself. Pointing at tokens asks no server.

    Parameters
    ----------
    view:
        Of kind `"text"`: `maps` [head, query, key], or `top_values` and `top_keys` [head, query, k]; see
        `mha_core.view`.
    key:
        The widget's name in the session.
    on_select:
        Called with the row of a head whose name was clicked, before the page runs again.
    on_query:
        Called with the position that was locked, or None when it was freed, before the page runs again. Pass it back as
        `meta["query"]`, with `meta["locked"]` where it shall be locked also on a new visit.
    height:
        `"content"`, `"stretch"` or pixels (more content then scrolls).

    Returns
    -------
    The row in the one run after a head was chosen, otherwise None.

    Raises
    ------
    ValueError
        When the view is of another kind or its arrays do not fit together.
    """
    n_heads, n_queries = _rows(_kind(view, "text"))

    def chosen(result: object) -> int | None:
        return _index(_event(result, "select").get("head"), n_heads)

    def handle_select() -> None:
        head = chosen(st.session_state.get(key))
        if head is not None and on_select is not None:
            on_select(head)

    def handle_query() -> None:
        event = _event(st.session_state.get(key), "query")
        if on_query is None or "query" not in event:
            return
        query = _index(event["query"], n_queries)
        if query is not None or event["query"] is None:
            on_query(query)

    listens = [name for name, listener in (("select", on_select), ("query", on_query)) if listener]
    return chosen(
        _component("text")(
            key=key,
            data=_packed(view, listens=listens),
            height=height,
            on_select_change=handle_select,
            on_query_change=handle_query,
        )
    )


def lines(
    view: View,
    *,
    key: str,
    on_select: Callable[[int], None] | None = None,
    height: Height = "content",
) -> int | None:
    """Heads as lines from queries to the keys they look at, strongest edges only, with what they carry stated.

    Parameters
    ----------
    view:
        Of kind `"lines"`: arrays as for `text`; see `mha_core.view`.
    key:
        The widget's name in the session.
    on_select:
        Called with the row of a head whose chip was clicked (alone, not in an overlay of several), before the page runs
        again.
    height:
        `"content"`, `"stretch"` or pixels (more content then scrolls).

    Returns
    -------
    The row in the one run after a head was chosen, otherwise None.

    Raises
    ------
    ValueError
        When the view is of another kind or its arrays do not fit together.
    """
    n_heads, _ = _rows(_kind(view, "lines"))

    def chosen(result: object) -> int | None:
        return _index(_event(result, "select").get("head"), n_heads)

    def handle() -> None:
        head = chosen(st.session_state.get(key))
        if head is not None and on_select is not None:
            on_select(head)

    data = _packed(view, listens=["select"] if on_select else [])
    return chosen(_component("lines")(key=key, data=data, height=height, on_select_change=handle))


def _kind(view: View, kind: str) -> View:
    if view.kind != kind:
        raise ValueError(f"This widget draws views of kind {kind!r}; it was given one of kind {view.kind!r}.")
    return view


def _rows(view: View) -> tuple[int, int]:
    """Heads and queries of a view that carries a layer's rows, whole or only their strongest keys."""
    shapes = {name: np.shape(view.arrays[name]) for name in ("maps", "top_values", "top_keys") if name in view.arrays}
    given = shapes.get("maps") or shapes.get("top_values") or ()
    fits = len(given) == 3 and 0 not in given and ("maps" in shapes or shapes.get("top_keys") == given)
    if not fits:
        raise ValueError(
            f"A view of kind {view.kind!r} needs maps [head, query, key], or top_values and top_keys of one shape "
            f"[head, query, k], with at least one number; it has {shapes or 'neither'}."
        )
    return given[0], given[1]
