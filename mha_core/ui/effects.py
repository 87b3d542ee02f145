"""What switching heads off does to words: a table of next words with bars, and tokens with a number each.

Both are one component, drawn as ordinary text by `assets/effects.js`; the browser gets numbers and words, never markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import streamlit as st

from mha_core import palette
from mha_core.palette import Theme
from mha_core.ui.components import _component, _event, _index

Format = Literal["signed", "plain"]

SERIES: dict[Theme, tuple[str, ...]] = {
    "light": ("#2769ab", palette.ACCENT["light"], "#0a8472", "#8447b0", "#5b6472"),
    "dark": ("#619fdb", palette.ACCENT["dark"], "#3fc7ab", "#c08ff0", "#a3adbd"),
}
"""Bars: solid blue, hatched orange, outlined teal, striped violet, dotted grey; all 3 to 1 or more against the page."""

_STYLES = {"clean": 0, "zero": 1, "ablated": 1, "mean": 2}
"""A column that has a usual name keeps its colour and pattern on every page."""


@dataclass(frozen=True)
class WordRow:
    """A word that may come next, its probability in every column (None: not known), and a short remark about it."""

    word: str
    values: Sequence[float | None]
    note: str = ""


def next_words(
    *,
    key: str,
    columns: Sequence[str],
    rows: Sequence[WordRow],
    alt: str,
    view_id: str = "",
) -> None:
    """A table of words that may come next: their probabilities as numbers and as bars on one scale from 0 to 1.

        next_words(key="next", columns=["clean", "zero"], rows=[WordRow(" Mary", [0.923, 0.056])], alt="Next words")

    Parameters
    ----------
    key:
        The widget's name in the session.
    columns:
        What the probabilities are of. "clean", "zero" (or "ablated") and "mean" have a colour and pattern of their own
        everywhere; other names take those that are left, at most five in all.
    rows:
        One word each, in the order to show; a leading space is part of the word and is shown.
    alt:
        The table's caption, read aloud, not shown.
    view_id:
        What is shown, in the browser as `data-view`: tests wait for it.

    Raises
    ------
    ValueError
        When there are no columns or more than five, or a row has not one value for every column.
    """
    if not 1 <= len(columns) <= len(SERIES["light"]):
        raise ValueError(f"A table of next words has 1 to {len(SERIES['light'])} columns; got {len(columns)}.")
    for row in rows:
        if len(row.values) != len(columns):
            raise ValueError(f"{row.word!r} has {len(row.values)} values; there are {len(columns)} columns.")
    _component("effects")(
        key=key,
        data={
            "kind": "words",
            "id": view_id,
            "alt": alt,
            "columns": [{"name": name, "style": style} for name, style in zip(columns, _styles(columns), strict=True)],
            "rows": [
                {"word": row.word, "values": [_number(value) for value in row.values], "note": row.note} for row in rows
            ],
            "series": {theme: list(colours) for theme, colours in SERIES.items()},
        },
    )


def token_strip(
    *,
    key: str,
    labels: Sequence[str],
    values: Sequence[float | None],
    unit: str,
    alt: str,
    limit: float | None = None,
    hovers: Sequence[str] | None = None,
    view_id: str = "",
    fmt: Format = "signed",
    selected: int | None = None,
    on_select: Callable[[int], None] | None = None,
) -> int | None:
    """Tokens in a line that wraps like text, each with a number below it and coloured by it.

    Parameters
    ----------
    key:
        The widget's name in the session.
    labels, values:
        One of each per position. A token without a value (None, or not finite) stands there plainly.
    unit:
        Of the values, such as "nats"; stands in the legend and in what is read aloud.
    alt:
        What the strip shows, read aloud.
    limit:
        The value at the end of the scale; the other end is its negative ("signed") or 0 ("plain"). Default: the largest
        magnitude. Values beyond it have the end's colour, and the legend says so.
    hovers:
        Per position one more line for the tooltip; "" for none.
    view_id:
        What is shown, in the browser as `data-view`: tests wait for it.
    fmt:
        "signed": +3.2 on the diverging scale, orange above 0, blue below; "plain": 3.2 on the sequential scale from 0.
    selected:
        The position that is chosen; None, or a position that is not there, for none.
    on_select:
        With it, tokens are buttons; called with the position before the page runs again.

    Returns
    -------
    The position in the one run after a choice, otherwise None. Positions that are not there are ignored.

    Raises
    ------
    ValueError
        When the lengths differ, `limit` is not a positive number, or `fmt` is neither of the two.
    """
    n = len(labels)
    if len(values) != n or (hovers is not None and len(hovers) != n):
        counts = f"{n} labels, {len(values)} values" + ("" if hovers is None else f", {len(hovers)} hovers")
        raise ValueError(f"A token strip needs one value (and one hover text) per label; got {counts}.")
    if fmt not in ("signed", "plain"):
        raise ValueError(f"fmt must be 'signed' or 'plain'; got {fmt!r}.")
    numbers = [_number(value) for value in values]

    def chosen(result: object) -> int | None:
        return _index(_event(result, "select").get("position"), n)

    slot = f"_token_strip_{key}"

    def handle() -> None:
        # The browser marks a choice at once. Data that differ make it draw what the page decided,
        # also where that is what it was before.
        st.session_state[slot] = st.session_state.get(slot, 0) + 1
        position = chosen(st.session_state.get(key))
        if position is not None and on_select is not None:
            on_select(position)

    listening: dict[str, Any] = {} if on_select is None else {"on_select_change": handle}
    result = _component("effects")(
        key=key,
        data={
            "kind": "strip",
            "id": view_id,
            "alt": alt,
            "labels": list(labels),
            "values": numbers,
            "hovers": None if hovers is None else list(hovers),
            "unit": unit,
            "limit": _limit(limit, numbers),
            "fmt": fmt,
            "selected": None if selected is None else _index(int(selected), n),
            "selectable": on_select is not None,
            "answer": st.session_state.get(slot, 0),
            "palette": palette.for_browser(),
        },
        **listening,
    )
    return None if on_select is None else chosen(result)


def _number(value: float | None) -> float | None:
    """As JSON can carry it: None for what is not finite, nine digits for the rest."""
    return float(f"{value:.9g}") if value is not None and math.isfinite(value) else None


def _limit(limit: float | None, numbers: Sequence[float | None]) -> float:
    """The end of the scale, positive also when every value is 0."""
    if limit is None:
        return max((abs(number) for number in numbers if number is not None), default=0.0) or 1.0
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"limit must be a positive number; got {limit}.")
    return float(limit)


def _styles(columns: Sequence[str]) -> list[int]:
    """Which colour and pattern each column has: the usual one for a usual name, the next unused for the others."""
    styles: list[int | None] = []
    for name in columns:
        usual = _STYLES.get(name)
        styles.append(None if usual in styles else usual)
    free = iter([style for style in range(len(SERIES["light"])) if style not in styles])
    return [next(free) if style is None else style for style in styles]
