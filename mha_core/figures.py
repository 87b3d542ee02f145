"""Plotly figures of attention maps, for notebooks and pages.

    from mha_core import figures, load_model
    trace = load_model("all-minilm-l6-v2").run("The keys are on the table.")
    figures.show_heads(trace, layer=3)

or of attentions that you already have: `figures.show_head(outputs.attentions, layer=3, head=1, tokens=tokens)`.

Every map is one head's own. Tokens are untrusted text: Plotly renders a pseudo-HTML, so they are escaped, and they
never stand in a hover template.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from numpy.typing import ArrayLike, NDArray

from mha_core.palette import Theme, diverging, sequential, stops
from mha_core.pieces import visible
from mha_core.trace import Trace
from mha_core.view import max_pool

Attentions = Trace | Sequence[Any] | torch.Tensor | NDArray[Any]
Floats = NDArray[np.float32]
MAX_CELLS = 512  # positions a side that are drawn cell by cell; above, cells are the largest weight of a block
_NAMED_CELLS = 60_000  # cells that carry their tokens for the tooltip; above, positions, which are numbers, do
_MOST_LABELS = 40
_GAP = 1  # empty cells between tiles
_INK: dict[Theme, str] = {"light": "#1f2530", "dark": "#e6e9ef"}
_PAPER: dict[Theme, str] = {"light": "#ffffff", "dark": "#12161f"}


@dataclass(frozen=True, eq=False)
class _Maps:
    """Maps of one layer. weights: [head, query, key]. queries, keys: escaped labels. name: before a head's number."""

    weights: Floats
    queries: list[str]
    keys: list[str]
    name: str


def show_heads(
    attentions: Attentions,
    layer: int,
    heads: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
    site: str | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """All heads of a layer side by side on one colour scale from 0 to 1, each its own map, in one light heatmap.

    Args:
        attentions: a `Trace`, or per layer a [batch, head, query, key] (or [head, query, key]) array, as transformers
            gives with `output_attentions=True`, for a batch of one.
        layer: which. heads: which of its heads; None: all.
        tokens: the tokens of the keys, where `attentions` is no trace. None: positions.
        query_tokens: the tokens of the queries where they are others (cross-attention); None: `tokens`.
        site: of a trace: "self", or "enc", "dec", "cross" of an encoder-decoder; None: its main site.
        theme: "light" or "dark".

    Raises:
        ValueError: no such layer or head, arrays that are no attentions, or as many tokens as do not fit them.
    """
    maps = _maps(attentions, layer, tokens, query_tokens, site)
    chosen = list(range(len(maps.weights))) if heads is None else list(heads)
    for head in chosen:
        _require("head", head, len(maps.weights))
    if not chosen:
        raise ValueError("heads is empty; name at least one head, or leave it out for all of them.")
    columns = _columns(len(chosen))
    pooled, block = max_pool(maps.weights[chosen], max(8, MAX_CELLS // columns))
    grid, places = _tiled(pooled, columns)
    figure = go.Figure(_heatmap(grid, _tile_hover(maps, chosen, pooled, block, grid.shape, places), theme))
    for head, (row, column) in zip(chosen, places, strict=True):
        figure.add_annotation(
            x=column - 0.5, y=row - 0.5, text=f"{maps.name}H{head}", showarrow=False, xanchor="left", yanchor="bottom",
            font={"size": 12},
        )  # fmt: skip
    tall = grid.shape[0] / grid.shape[1]
    title = f"{maps.name}, {_count(len(chosen), 'head')}{_pooled_note(block)}"
    _finish(figure, title, theme, height=int(min(1400, max(240, 60 + 860 * tall))))
    figure.update_xaxes(visible=False, range=[-1, grid.shape[1]])
    figure.update_yaxes(visible=False, range=[grid.shape[0], -1.5 - 0.02 * grid.shape[0]])
    return figure


def show_head(
    attentions: Attentions,
    layer: int,
    head: int,
    tokens: Sequence[str] | None = None,
    site: str | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    own_range: bool = False,
    theme: Theme = "light",
) -> go.Figure:
    """One head's map: rows (queries) look at columns (keys), exact weights under the pointer.

    Above 512 positions a cell is the largest weight of its block, and the title says so. own_range: colours end at the
    largest weight instead of 1, which the title says. Other arguments and errors as in `show_heads`.
    """
    maps = _maps(attentions, layer, tokens, query_tokens, site)
    _require("head", head, len(maps.weights))
    top = float(maps.weights[head].max(initial=0.0)) if own_range else 1.0
    note = f", colours end at {top:.3g}" if own_range else ""
    return _matrix(
        maps.weights[head], maps.queries, maps.keys, f"{maps.name}H{head}{note}", "weight", (0.0, top or 1.0),
        stops(sequential(theme)), theme,
    )  # fmt: skip


def difference_figure(
    first: ArrayLike,
    second: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    title: str = "first − second",
    theme: Theme = "light",
) -> go.Figure:
    """Two maps [query, key] of the same tokens, first minus second: diverging colours, 0 in the middle.

    Raises:
        ValueError: the maps have different sizes, or are no maps; the tokens do not fit.
    """
    a, b = (np.asarray(_numbers(weights), dtype=np.float32) for weights in (first, second))
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(
            f"The maps have shapes {a.shape} and {b.shape}; two [query, key] maps of the same tokens are needed. Lay "
            "different texts over each other with mha_core.alignment first."
        )
    keys = _labels(tokens, a.shape[1], "tokens", "keys")
    queries = _labels(tokens if query_tokens is None else query_tokens, a.shape[0], "query_tokens", "queries")
    top = float(np.abs(a - b).max(initial=0.0)) or 1.0
    scale = stops(diverging(theme))
    return _matrix(a - b, queries, keys, escaped(title), "difference", (-top, top), scale, theme)


def _matrix(
    weights: Floats, queries: list[str], keys: list[str], title: str, unit: str, limits: tuple[float, float],
    scale: list[list[Any]], theme: Theme,
) -> go.Figure:  # fmt: skip
    block = (1, 1)
    if max(weights.shape) > MAX_CELLS:
        # The largest weight; of a difference, the one furthest from 0.
        highest, block = max_pool(weights, MAX_CELLS)
        lowest = -max_pool(-weights, MAX_CELLS)[0]
        weights = np.where(highest >= -lowest, highest, lowest)
    hover = _hover(queries, keys, weights.shape, block)
    figure = go.Figure(_heatmap(weights, hover, theme, scale, limits, unit))
    _finish(figure, title + _pooled_note(block), theme, height=int(np.clip(140 + 22 * weights.shape[0], 320, 900)))
    shown = [keys[:: block[1]], queries[:: block[0]]]
    for update, labels, words in ((figure.update_xaxes, shown[0], "key"), (figure.update_yaxes, shown[1], "query")):
        step = -(-len(labels) // _MOST_LABELS)
        update(
            title=words, tickmode="array", tickvals=np.arange(0, len(labels), step), ticktext=labels[::step],
            showgrid=False, zeroline=False,
        )  # fmt: skip
    figure.update_xaxes(side="top", tickangle=-60 if len(keys) > 8 else 0, constrain="domain")
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain")
    return figure


def _heatmap(
    grid: Floats, hover: tuple[NDArray[Any], str], theme: Theme, scale: list[list[Any]] | None = None,
    limits: tuple[float, float] = (0.0, 1.0), unit: str = "weight",
) -> go.Heatmap:  # fmt: skip
    customdata, places = hover
    return go.Heatmap(
        z=np.ascontiguousarray(grid, dtype=np.float32), zmin=limits[0], zmax=limits[1], customdata=customdata,
        colorscale=stops(sequential(theme)) if scale is None else scale, hoverongaps=False,
        hovertemplate=f"{places}<br>{unit} %{{z:.4f}}<extra></extra>",
        colorbar={"thickness": 12, "outlinewidth": 0, "title": {"text": unit, "side": "right"}},
    )  # fmt: skip


def _hover(
    queries: list[str], keys: list[str], shape: tuple[int, ...], block: tuple[int, int], n_maps: int = 1
) -> tuple[Any, str]:
    """Per cell what the tooltip says of its place: tokens, or in large maps positions only."""
    rows, columns = np.arange(shape[0]) * block[0], np.arange(shape[1]) * block[1]
    if n_maps * shape[0] * shape[1] > _NAMED_CELLS or block != (1, 1):
        places = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1)
        places = places.astype(np.int16 if max(shape) * max(block) < 2**15 else np.int32)
        start = "" if block == (1, 1) else "from "
        return places, f"query {start}%{{customdata[0]}} → key {start}%{{customdata[1]}}"
    names = np.empty((*shape, 2), dtype=object)
    names[..., 0] = np.array([f"{label} ({i})" for i, label in enumerate(queries)], dtype=object)[:, None]
    names[..., 1] = np.array([f"{label} ({i})" for i, label in enumerate(keys)], dtype=object)[None, :]
    return names, "%{customdata[0]} → %{customdata[1]}"


def _tile_hover(
    maps: _Maps, chosen: list[int], pooled: Floats, block: tuple[int, int], shape: tuple[int, ...],
    places: list[tuple[int, int]],
) -> tuple[Any, str]:  # fmt: skip
    """`_hover` of every tile, with the head in front."""
    size = pooled.shape[1:]
    one, template = _hover(maps.queries, maps.keys, size, block, len(chosen))
    data = np.full((*shape, 3), "" if one.dtype == object else -1, dtype=one.dtype)
    for head, (row, column) in zip(chosen, places, strict=True):
        tile = data[row : row + size[0], column : column + size[1]]
        tile[..., 0], tile[..., 1:] = head, one
    template = template.replace("customdata[1]", "customdata[2]").replace("customdata[0]", "customdata[1]")
    return data, f"{maps.name}H%{{customdata[0]}}<br>{template}"


def _columns(count: int) -> int:
    """How many tiles stand in a row: about 1.5 times as many as there are rows, with few places left empty."""
    wanted = max(1, round(math.sqrt(count * 1.5)))
    near = [n for n in range(max(1, wanted - 1), wanted + 3) if n <= count]
    return min(near, key=lambda n: (-count % n, abs(n - wanted)))


def _tiled(maps: Floats, columns: int) -> tuple[Floats, list[tuple[int, int]]]:
    """Maps [head, query, key] laid out in one array, with empty cells between, and where each begins."""
    n, n_queries, n_keys = maps.shape
    gap = max(_GAP, round(0.06 * max(n_queries, n_keys)))
    title = max(2, round(0.12 * n_queries))  # empty rows above each tile, for its name
    rows = -(-n // columns)
    grid = np.full(
        (rows * (n_queries + title) - title, columns * (n_keys + gap) - gap), np.nan, dtype=np.float32
    )  # fmt: skip
    places = []
    for number, weights in enumerate(maps):
        row, column = (number // columns) * (n_queries + title), (number % columns) * (n_keys + gap)
        grid[row : row + n_queries, column : column + n_keys] = weights
        places.append((row, column))
    return grid, places


def _finish(figure: go.Figure, title: str, theme: Theme, height: int) -> None:
    figure.update_layout(
        title={"text": title, "font": {"size": 15}}, height=height, paper_bgcolor=_PAPER[theme],
        plot_bgcolor=_PAPER[theme], font={"color": _INK[theme]}, margin={"l": 10, "r": 10, "t": 60, "b": 10},
    )  # fmt: skip
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)


def _maps(
    attentions: Attentions, layer: int, tokens: Sequence[str] | None, query_tokens: Sequence[str] | None,
    site: str | None,
) -> _Maps:  # fmt: skip
    """The layer's maps and labels, of a trace or of arrays."""
    if isinstance(attentions, Trace):
        site = attentions.main_site if site is None else site
        weights = np.asarray(attentions.weights(layer, site).numpy(), dtype=np.float32)
        queries, keys = attentions.site_tokens(site)
        name = f"{'' if site == 'self' else site + '.'}L{layer}"
        return _Maps(weights, [*map(escaped, queries.labels)], [*map(escaped, keys.labels)], name)
    weights = _of_arrays(attentions, layer)
    own = tokens if query_tokens is None else query_tokens
    return _Maps(
        weights, _labels(own, weights.shape[1], "query_tokens" if query_tokens else "tokens", "queries"),
        _labels(tokens, weights.shape[2], "tokens", "keys"), f"L{layer}",
    )  # fmt: skip


def _of_arrays(attentions: Sequence[Any] | torch.Tensor | NDArray[Any], layer: int) -> Floats:
    """One layer's [head, query, key] of what transformers gives as `attentions`."""
    if isinstance(attentions, (torch.Tensor, np.ndarray)) and attentions.ndim < 4:
        raise ValueError(
            f"attentions has shape {tuple(attentions.shape)}; give one array [batch, head, query, key] per layer, "
            "as in outputs.attentions."
        )
    if attentions is None or len(attentions) == 0:
        raise ValueError(
            "There are no attentions. transformers gives none under its default attention; load the model with "
            'attn_implementation="eager" and run it with output_attentions=True.'
        )
    _require("layer", layer, len(attentions))
    array = _numbers(attentions[layer])
    if array.ndim == 4 and array.shape[0] != 1:
        raise ValueError(
            f"The attentions hold a batch of {array.shape[0]} texts; choose one: tuple(a[0] for a in attentions)."
        )
    array = array[0] if array.ndim == 4 else array
    if array.ndim != 3:
        raise ValueError(f"Layer {layer}'s attentions have shape {array.shape}; [batch, head, query, key] is needed.")
    return array.astype(np.float32, copy=False)


def _numbers(array: Any) -> NDArray[Any]:
    """A tensor of any device and type, or an array, as NumPy."""
    if isinstance(array, torch.Tensor):
        return np.asarray(array.detach().float().cpu().numpy())
    return np.asarray(array)


def _labels(tokens: Sequence[str] | None, count: int, name: str, axis: str) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(count)]
    if len(tokens) != count:
        raise ValueError(f"{name} has {len(tokens)} entries and the map {count} {axis}; one per {axis[:-1]} is needed.")
    return [escaped(visible(str(token)) or "∅") for token in tokens]


def escaped(text: str) -> str:
    """Text that Plotly shows as it is: no tags, and no formula where a notebook has MathJax."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def _require(name: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise ValueError(f"{name} is {number}; there are {count}, numbered 0 to {count - 1}.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _pooled_note(block: tuple[int, int]) -> str:
    return "" if block == (1, 1) else f"; each cell is the largest value of {block[0]} × {block[1]} positions"
