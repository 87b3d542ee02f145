"""Line charts of the Cost page: one look, both themes, told apart by dash and marker as well as by colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from mha_core.palette import series
from mha_core.ui.theme import theme

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x")


@dataclass(frozen=True)
class Line:
    """One line of a chart. low, high: a band around it."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def line_chart(
    lines: Mapping[str, Line], *, key: str, alt: str, x: str, y: str, log_x: bool = False, log_y: bool = False,
    ticks: Sequence[float] | None = None, mark: float | None = None, height: int = 330,
) -> None:  # fmt: skip
    """Draw lines with their names. x, y: titles of the axes, with units. mark: an x with a line through it."""
    colours = series(theme())
    figure = go.Figure()
    for number, (name, line) in enumerate(lines.items()):
        colour = colours[number % len(colours)]
        bars = None
        if line.low is not None and line.high is not None:
            up = [high - value for high, value in zip(line.high, line.y, strict=True)]
            down = [value - low for low, value in zip(line.low, line.y, strict=True)]
            bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3}
        figure.add_trace(go.Scatter(
            x=list(line.x), y=list(line.y), name=name, mode="lines+markers", error_y=bars,
            line={"color": colour, "dash": _DASHES[number % len(_DASHES)], "width": 2},
            marker={"symbol": _MARKERS[number % len(_MARKERS)], "size": 7},
        ))  # fmt: skip
    if mark is not None:
        figure.add_vline(x=mark, line_width=1, line_dash="dot")
    axis: dict[str, Any] = {"title": x, "type": "log" if log_x else "linear"}
    if ticks is not None:
        axis |= {"tickvals": list(ticks), "ticktext": [f"{tick:,}" for tick in ticks]}
    figure.update_layout(
        height=height, margin={"l": 8, "r": 8, "t": 8, "b": 8}, xaxis=axis, hovermode="x unified",
        yaxis={"title": y, "type": "log" if log_y else "linear", "rangemode": "normal" if log_y else "tozero"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
    )  # fmt: skip
    st.plotly_chart(figure, key=key, alt=alt, config={"displaylogo": False})
    with st.expander("As a table"):
        rows = [
            {x: across} | {name: line.y[list(line.x).index(across)] for name, line in lines.items() if across in line.x}
            for across in dict.fromkeys(value for line in lines.values() for value in line.x)
        ]
        st.dataframe(rows, hide_index=True, alt=alt)
