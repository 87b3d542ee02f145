"""The Python side of the canvas components: thin, typed, and never trusting what a browser sends.

Views: `overview` (every head a thumbnail), `layer_maps` (one layer's heads side by side), `matrix` (one head's map,
large), `text` (a layer's heads in the sentence), `lines` (heads as lines). And `head_grid` (heads to switch off).
The drawing is in `assets/`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import streamlit as st
from numpy.typing import ArrayLike

from mha_core import palette
from mha_core.paths import asset
from mha_core.standalone import DRAWING, sources
from mha_core.view import View

Height = Literal["content", "stretch"] | int
_MOST_HEADS = 100_000  # more names than any model has heads; a longer message is not from our component
_MOST_CHANGES = 2**31


@cache
def _component(name: str) -> Callable[..., Any]:
    """The mounting command of one component, declared once a process (again would log a warning)."""
    css, js = sources(name) if name in DRAWING else (_text(f"{name}.css"), _text(f"{name}.js"))
    renderer: Callable[..., Any] = st.components.v2.component(f"headscope_{name}", css=css, js=js)
    return renderer


def _text(name: str) -> str:
    return asset(name).read_text(encoding="utf-8")


def _packed(view: View, listens: Sequence[str] | None = None) -> bytes:
    """The view and its colours as bytes, which stay bytes only when they are `data` itself.

    `listens`: the events that somebody waits for; the browser keeps the others to itself (None: it sends all).
    """
    more = {} if listens is None else {"listens": list(listens)}
    return replace(view, meta={"palette": palette.for_browser(), **view.meta, **more}).pack()


def _index(value: object, size: int) -> int | None:
    """A whole number in 0..size-1, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        return None
    return value


def _event(result: object, name: str) -> Mapping[str, Any]:
    """The event's value if it is a mapping, else an empty one."""
    value = result.get(name) if isinstance(result, Mapping) else None
    return value if isinstance(value, Mapping) else {}


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
        cell = chosen(st.session_state.get(key))
        if cell is not None and on_cell is not None:
            on_cell(*cell)

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


@dataclass(frozen=True)
class GridRecord:
    """What the session remembers of one head grid.

    `rev` is an opaque word that changes whenever Python sets the list itself; `seq` counts the browser's
    changes since then that are contained in `off`. Together they tell a new message from an old echo;
    assets/headgrid.js says how.
    """

    off: tuple[str, ...]
    rev: str
    seq: int


def reconcile(
    record: GridRecord | None,
    off: Sequence[str],
    message: object,
    names: Sequence[str],
) -> GridRecord:
    """Which heads are off now: what the page asks for, or what the browser says?

    Parameters
    ----------
    record:
        What the last run remembered; None in the first.
    off:
        What the page asks for: normally the last result, something else after a preset or a link.
    message:
        What the browser last sent, unchecked: `{"heads": [...], "seq": n, "rev": "..."}`.
    names:
        Every head of the grid, in order.

    Returns
    -------
    The new record. A page that asks for something new wins; otherwise a newer message with the same `rev`.
    """
    asked = _known(off, names)
    sent: GridRecord | None = None
    if record is not None and isinstance(message, Mapping):
        heads, seq, rev = message.get("heads"), message.get("seq"), message.get("rev")
        count = _index(seq, _MOST_CHANGES)
        if count is not None and count > record.seq and rev == record.rev and isinstance(heads, list):
            sent = GridRecord(_known(heads[:_MOST_HEADS], names), record.rev, count)
    if record is not None and sent is not None and asked in (record.off, sent.off):
        return sent
    if record is not None and asked == record.off:
        return record
    return GridRecord(asked, secrets.token_hex(4), 0)


def _known(off: Iterable[object], names: Sequence[str]) -> tuple[str, ...]:
    """The names that the grid has, each once, in the grid's order."""
    wanted = {name for name in off if isinstance(name, str)}
    return tuple(name for name in names if name in wanted)


def head_grid(
    *,
    key: str,
    n_layers: int,
    n_heads: int,
    off: Sequence[str],
    group: int = 1,
    heat: ArrayLike | None = None,
    heat_label: str = "",
    heat_range: tuple[float, float] | None = None,
    site_prefix: str = "",
    disabled: bool = False,
    on_change: Callable[[], None] | None = None,
) -> list[str]:
    """A grid of heads to switch off: click, drag, shift-click, layers, heads, KV groups; all by keyboard too.

    The grid is controlled: pass as `off` what it returned last time (keep it in the session, right after the
    call), or something else to set it, for example after a preset or a link.

        st.session_state.off = head_grid(key="grid", n_layers=6, n_heads=12, off=st.session_state.off)

    Parameters
    ----------
    key:
        The widget's name in the session.
    n_layers, n_heads:
        The grid's size, both at least 1; heads are query heads.
    off:
        Names of the heads that are off, such as `"L1H3"` (or `"enc.L1H3"` with `site_prefix="enc."`). Others
        are ignored.
    group:
        Query heads per key/value head; 1 where every head has its own.
    heat:
        [layer, head], a measure that colours the heads; NaN leaves a head uncoloured.
    heat_label, heat_range:
        What `heat` is, and the values at the ends of the scale (default: 0 to its maximum, or symmetric
        around 0 when some are negative, on the diverging scale).
    site_prefix:
        Stands before every name: `""`, `"enc."`, `"dec."` or `"cross."`.
    disabled:
        Shown, not changeable.
    on_change:
        Called, before the page runs again, when the browser changed something.

    Returns
    -------
    The names that are off, in the order of layers and heads.

    Raises
    ------
    ValueError
        When a size or `heat` does not fit.
    """
    if n_layers < 1 or n_heads < 1 or group < 1:
        raise ValueError(f"A head grid needs sizes of at least 1; got {n_layers} × {n_heads} in groups of {group}.")
    names = [f"{site_prefix}L{layer}H{head}" for layer in range(n_layers) for head in range(n_heads)]
    values, low, high = _heat(heat, heat_range, n_layers, n_heads)
    slot = f"_head_grid_{key}"
    held = st.session_state.get(slot)
    component_state = st.session_state.get(key)
    message = component_state.get("off") if isinstance(component_state, Mapping) else None
    record = reconcile(held if isinstance(held, GridRecord) else None, off, message, names)
    _component("headgrid")(
        key=key,
        data={
            "n_layers": n_layers,
            "n_heads": n_heads,
            "group": group,
            "off": list(record.off),
            "rev": record.rev,
            "seq": record.seq,
            "site_prefix": site_prefix,
            "heat": values,
            "heat_label": heat_label,
            "heat_range": [low, high],
            "disabled": disabled,
            "palette": palette.for_browser(),
        },
        on_off_change=on_change or _nothing,
    )
    # Only after mounting: a rerun that interrupts the mount must find the message still unread.
    st.session_state[slot] = record
    return list(record.off)


def _nothing() -> None:
    """A state value is only kept for the page when something listens to it."""


def _heat(
    heat: ArrayLike | None, heat_range: tuple[float, float] | None, n_layers: int, n_heads: int
) -> tuple[list[list[float | None]] | None, float, float]:
    """The measure as JSON can carry it (None for what is not finite), and the ends of its scale."""
    if heat is None:
        return None, 0.0, 1.0
    values = np.asarray(heat, dtype=np.float64)
    if values.shape != (n_layers, n_heads):
        raise ValueError(f"heat must have the shape ({n_layers}, {n_heads}), not {values.shape}.")
    finite = values[np.isfinite(values)]
    if heat_range is not None:
        low, high = map(float, heat_range)
    else:
        high = float(np.abs(finite).max()) if finite.size else 1.0
        low = -high if finite.size and finite.min() < 0 else 0.0
    rows = [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in values]
    return rows, low, high
