"""Plotly figures of what is measured on a task: dots with intervals, maps of heads, pruning curves.

Names of plans, slices and their values are untrusted text: they are escaped, and never stand in a hover template.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from mha_core.evaluation import Comparison, Evaluation
from mha_core.figures import escaped
from mha_core.paired import Interval
from mha_core.palette import Theme, diverging, series, stops
from mha_core.pruning import ORDERS, Curve, Pruning

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_INK: dict[Theme, str] = {"light": "#1f2530", "dark": "#e6e9ef"}
_GRID: dict[Theme, str] = {"light": "#dfe3ea", "dark": "#2f3746"}
_QUIET: dict[Theme, str] = {"light": "#6b7280", "dark": "#9aa3b2"}
_WIDTH = 26  # letters of a line of a name
Numbers = NDArray[np.float64]


def plans_figure(
    result: Evaluation, metric: str, names: Sequence[str], compared: Sequence[Comparison], theme: Theme = "light"
) -> go.Figure:
    """What each plan changes on all prompts, with its interval, and what sets of random heads change: small marks
    below. names: of the plans. compared: `result.compared(metric)`.
    """
    figure = go.Figure()
    colour = series(theme)[0]
    places = list(range(len(compared)))
    drawn = [(place + 0.28, effect) for place in places for effect in result.control_effects(place, metric)]
    if drawn:
        figure.add_trace(go.Scatter(
            x=[effect for _, effect in drawn], y=[place for place, _ in drawn], mode="markers", name="random heads",
            marker={"symbol": "circle-open", "size": 7, "color": _QUIET[theme], "line": {"width": 1.5}},
            hovertemplate="random heads: %{x:+.4f}<extra></extra>",
        ))  # fmt: skip
    figure.add_trace(_dots([item.difference for item in compared], places, "plan", colour, "circle"))
    _rows_layout(figure, [_named(name) for name in names], f"change in {metric}", theme)
    figure.update_layout(showlegend=bool(drawn))
    return figure


def slices_figure(
    compared: Sequence[Comparison], metric: str, names: Sequence[str], theme: Theme = "light"
) -> go.Figure:
    """What each plan changes in each slice, with intervals. compared: `Evaluation.by_slice(metric)`, or a part."""
    figure = go.Figure()
    values = list(dict.fromkeys((item.slice, item.value) for item in compared))
    plans = list(dict.fromkeys(item.plan for item in compared))
    step = min(0.22, 0.7 / max(1, len(plans)))
    for number, plan in enumerate(plans):
        mine = [item for item in compared if item.plan == plan]
        places = [values.index((item.slice, item.value)) + step * (number - (len(plans) - 1) / 2) for item in mine]
        figure.add_trace(
            _dots([item.difference for item in mine], places, _named(names[plan]),
                  series(theme)[number % 5], SYMBOLS[number % 6])
        )  # fmt: skip
    counts = {(item.slice, item.value): item.difference.n for item in compared}
    labels = [f"{_named(f'{name}: {value}', 34)} ({counts[name, value]})" for name, value in values]
    _rows_layout(figure, labels, f"change in {metric}", theme, row=34 + 9 * len(plans))
    figure.update_layout(showlegend=True)
    return figure


def map_figure(
    values: ArrayLike, rows: Sequence[str], columns: Sequence[str], unit: str, theme: Theme = "light",
    axes: tuple[str, str] = ("layer", "head"),
) -> go.Figure:  # fmt: skip
    """Effects as a map, 0 in the middle of two colours. values: [row, column]. axes: what rows and columns are."""
    grid = np.asarray(values, dtype=np.float32)
    top = float(np.nanmax(np.abs(grid), initial=0.0)) or 1e-6
    figure = go.Figure(go.Heatmap(
        z=grid, zmin=-top, zmax=top, colorscale=stops(diverging(theme)), xgap=1, ygap=1,
        hovertemplate=f"%{{y}}, %{{x}}<br>{unit} %{{z:+.4f}}<extra></extra>",
        colorbar={"thickness": 12, "outlinewidth": 0, "title": {"text": unit, "side": "right"}},
    ))  # fmt: skip
    _look(figure, theme, height=int(np.clip(110 + 20 * grid.shape[0], 220, 900)))
    for update, labels, title in ((figure.update_yaxes, rows, axes[0]), (figure.update_xaxes, columns, axes[1])):
        update(title=title, tickvals=np.arange(len(labels)), ticktext=[_named(label, 34) for label in labels],
               showgrid=False, zeroline=False)  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    return figure


def estimate_figure(
    estimates: ArrayLike, exact: ArrayLike, heads: Sequence[str], unit: str, theme: Theme = "light"
) -> go.Figure:
    """Each head's first-order estimate against its exact effect; on the dotted line both are the same."""
    x, y = np.ravel(np.asarray(estimates, dtype=float)), np.ravel(np.asarray(exact, dtype=float))
    low, high = float(min(x.min(), y.min(), 0)), float(max(x.max(), y.max(), 0))
    figure = go.Figure(go.Scatter(
        x=[low, high], y=[low, high], mode="lines", hoverinfo="skip", line={"dash": "dot", "color": _QUIET[theme]},
    ))  # fmt: skip
    figure.add_trace(go.Scatter(
        x=x, y=y, mode="markers", customdata=list(heads), marker={"color": series(theme)[0], "size": 6, "opacity": 0.7},
        hovertemplate="%{customdata}<br>estimate %{x:+.4f}<br>exact %{y:+.4f}<extra></extra>",
    ))  # fmt: skip
    _look(figure, theme, height=320)
    figure.update_xaxes(title=f"estimate, {unit}", **_lines(theme))
    figure.update_yaxes(title=f"exact, {unit}", **_lines(theme))
    return figure


def pruning_figure(
    pruning: Pruning, metric: str, places: Sequence[int] | None = None, theme: Theme = "light"
) -> go.Figure:
    """Score against heads switched off, a line per order, on all prompts or some. Bands: 95 % intervals over templates;
    of random orders the range over their draws. customdata of a point: order and point.
    """
    figure = go.Figure()
    orders = list(dict.fromkeys(curve.order for curve in pruning.curves))
    for order in orders:
        number = tuple(ORDERS).index(order)
        line = order_line(pruning, order, metric, places)
        name = ORDERS[order].split(",")[0] + (", recomputed" if order == "recomputed" else "")
        _add_line(figure, pruning, line, name, number, order, theme)
    _pruning_layout(figure, pruning, metric, theme)
    return figure


def pruning_slices_figure(
    pruning: Pruning, order: str, metric: str, groups: Mapping[str, Sequence[int]], theme: Theme = "light"
) -> go.Figure:
    """One order of removal, a line per slice value: for whom does it break first? groups: value -> its prompts."""
    figure = go.Figure()
    for number, (value, places) in enumerate(groups.items()):
        line = order_line(pruning, order, metric, places)
        _add_line(figure, pruning, line, f"{_named(value)} ({len(places)})", number, order, theme)
    _pruning_layout(figure, pruning, metric, theme)
    return figure


def order_line(
    pruning: Pruning, order: str, metric: str, places: Sequence[int] | None = None
) -> list[tuple[float, float, float]]:
    """Mean, low and high of each point of an order, as far as all of its draws are measured."""
    curves = [curve for curve in pruning.curves if curve.order == order]
    n_points = min(len(curve.rows) for curve in curves)
    found = []
    for point in range(n_points):
        scores = [pruning.score(curve, point, metric, places) for curve in curves]
        means = [score.mean for score in scores]
        ends = (min(means), max(means)) if order == "random" else (scores[0].low, scores[0].high)
        found.append((float(np.mean(means)), *ends))
    return found


def curve_of(pruning: Pruning, order: str) -> Curve:
    """The (first) curve of an order."""
    return next(curve for curve in pruning.curves if curve.order == order)


def _add_line(
    figure: go.Figure, pruning: Pruning, line: Sequence[tuple[float, float, float]], name: str, number: int,
    order: str, theme: Theme,
) -> None:  # fmt: skip
    colour = series(theme)[number % 5]
    x = list(pruning.counts[: len(line)])
    mean, low, high = zip(*line, strict=True)
    if not any(math.isnan(value) for value in (*low, *high)):
        figure.add_trace(go.Scatter(
            x=[*x, *reversed(x)], y=[*high, *reversed(low)], fill="toself", fillcolor=_faint(colour), hoverinfo="skip",
            line={"width": 0}, mode="lines", showlegend=False, legendgroup=str(number),
        ))  # fmt: skip
    figure.add_trace(go.Scatter(
        x=x, y=list(mean), name=name, mode="lines+markers", legendgroup=str(number),
        customdata=[[order, point] for point in range(len(x))],
        line={"color": colour, "dash": _DASHES[number % 5], "width": 2},
        marker={"symbol": SYMBOLS[number % 6], "size": 8}, hovertemplate="%{x} heads off: %{y:.4f}",
    ))  # fmt: skip


def _pruning_layout(figure: go.Figure, pruning: Pruning, metric: str, theme: Theme) -> None:
    _look(figure, theme, height=360)
    figure.update_layout(showlegend=True, clickmode="event+select")
    figure.update_xaxes(title=f"heads switched off, of {pruning.counts[-1]}", **_lines(theme))
    figure.update_yaxes(title=metric, **_lines(theme))
    chance = pruning.chance(metric)
    if chance:
        figure.add_hline(y=chance, line_dash="dot", line_width=1, line_color=_QUIET[theme], annotation_text="guessing")


def _dots(found: Sequence[Interval], places: Sequence[float], name: str, colour: str, symbol: str) -> go.Scatter:
    """Means with their intervals; hollow where there is no interval."""
    known = [not math.isnan(item.low) for item in found]
    ends = [(item.high - item.mean, item.mean - item.low) if ok else (0.0, 0.0)
            for item, ok in zip(found, known, strict=True)]  # fmt: skip
    said = [f"{item.low:+.4f} to {item.high:+.4f}" if ok else "no interval: under 5 templates"
            for item, ok in zip(found, known, strict=True)]  # fmt: skip
    return go.Scatter(
        x=[item.mean for item in found], y=list(places), mode="markers", name=name, customdata=said,
        error_x={"type": "data", "symmetric": False, "array": [up for up, _ in ends],
                 "arrayminus": [down for _, down in ends], "thickness": 2, "width": 5, "color": colour},
        marker={"color": colour, "size": 10, "symbol": [symbol if ok else f"{symbol}-open" for ok in known]},
        hovertemplate="%{x:+.4f}<br>%{customdata}<extra></extra>",
    )  # fmt: skip


def _rows_layout(figure: go.Figure, labels: Sequence[str], title: str, theme: Theme, row: int = 52) -> None:
    _look(figure, theme, height=100 + row * max(1, len(labels)))
    figure.update_yaxes(
        tickvals=np.arange(len(labels)), ticktext=list(labels), range=[len(labels) - 0.5, -0.5], showgrid=False,
        zeroline=False,
    )  # fmt: skip
    ends = [0.0]
    for trace in figure.data:
        bars = trace.error_x
        up, down = (np.zeros(len(trace.x)) if bar is None else np.asarray(bar) for bar in (bars.array, bars.arrayminus))
        ends += [*(np.asarray(trace.x) + up).tolist(), *(np.asarray(trace.x) - down).tolist()]
    room = 0.05 * (max(ends) - min(ends)) or 0.05
    figure.update_xaxes(title=title, range=[min(ends) - room, max(ends) + room], **_lines(theme))
    figure.add_vline(x=0, line_width=1, line_color=_INK[theme])


def _look(figure: go.Figure, theme: Theme, height: int) -> None:
    clear = "rgba(0,0,0,0)"
    figure.update_layout(
        height=height, paper_bgcolor=clear, plot_bgcolor=clear, font={"color": _INK[theme]}, showlegend=False,
        margin={"l": 8, "r": 12, "t": 30, "b": 8}, template="none",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
    )  # fmt: skip
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)


def _lines(theme: Theme) -> dict[str, Any]:
    return {"gridcolor": _GRID[theme], "zerolinecolor": _QUIET[theme], "linecolor": _GRID[theme]}


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _named(text: str, width: int = _WIDTH) -> str:
    """A name in up to three lines: its end often is what tells it from another."""
    return "<br>".join(map(escaped, textwrap.wrap(text, width, max_lines=3, placeholder=" …")))
