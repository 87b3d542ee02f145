"""Heads to switch off: a grid of buttons (`assets/headgrid.js`), and who is right when both sides change it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import streamlit as st
from numpy.typing import ArrayLike

from mha_core import palette
from mha_core.ui.mounting import component, index

_MOST_HEADS = 100_000  # more names than any model has heads; a longer message is not from our component
_MOST_CHANGES = 2**31


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
        count = index(seq, _MOST_CHANGES)
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
    # One mutable holder: saved in place, so that no newer click can end the run between saving and returning.
    records: dict[str, object] = st.session_state.setdefault("_head_grids", {})
    held = records.get(slot)
    component_state = st.session_state.get(key)
    message = component_state.get("off") if isinstance(component_state, Mapping) else None
    record = reconcile(held if isinstance(held, GridRecord) else None, off, message, names)
    component("headgrid")(
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
    records[slot] = record
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
