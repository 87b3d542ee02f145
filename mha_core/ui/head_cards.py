"""The Heads page's cards: the whole model, one head in three ways, why a weight is what it is, the layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots
from streamlit.delta_generator import DeltaGenerator

from mha_core.maps import LayerMaps
from mha_core.metrics import MEASURES
from mha_core.model import Model
from mha_core.norms import rollout
from mha_core.palette import ACCENT, SELECTED
from mha_core.tokens import Tokens
from mha_core.trace import Trace
from mha_core.ui import components
from mha_core.ui.exports import export_menu
from mha_core.ui.overview import overview_of, ring_names, ring_values
from mha_core.ui.session import SLOW_TOKENS, Working, bind, current, update
from mha_core.ui.state import MODES, QUANTITIES
from mha_core.ui.stores import store
from mha_core.ui.text import plain
from mha_core.ui.theme import theme
from mha_core.view import View
from mha_core.views import head_measures, overview_view, provenance, top_keys, whole_words
from mha_core.why import WeightExplanation, explain_weight

_QUANTITY_NAMES = {"weights": "weights", "value": "value-weighted"}
_DIMENSIONS = "dimensions_open"


def _title_row() -> DeltaGenerator:
    """A card's title and what belongs beside it; on a narrow card below it, never cut."""
    return st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute")


def overview_card(model: Model, trace: Trace, site: str) -> None:
    """Every head of the site as a thumbnail; ringed and sorted by a measure."""
    state = current()
    shape = trace.sites[site]
    with st.container(border=True, key="overview_card"):
        with _title_row():
            st.subheader(f"All {shape.n_layers * shape.n_heads} heads", anchor=False, width="content")
            menu = st.container(width="content")
        st.caption("Thumbnails, not averages: layers down from L0, heads across from H0. Click one, or use the arrows.")
        overview = overview_of(model, trace, site)
        ring, values = _ring(model, trace, site)
        names = ring_names(model, overview, site)
        st.pills(
            "Ring and sort by", names, format_func=lambda name: MEASURES[name].name, required=True,
            **bind("ring", to_widget=ring),
        )  # fmt: skip
        place = {"layer": state.layer, "head": state.head}
        view = overview_view(overview, model, trace, site=site, ring=ring, values=values, **place)
        components.overview(view, key="overview", on_select=_choose)
        st.caption(plain(f"{MEASURES[ring].name}: {MEASURES[ring].definition}."))
        _strongest(values, ring, site)
        # What is folded away is not made, sent and drawn with every key that is typed: here and below.
        with st.expander("As a table: every head by every measure", key="heads_table", on_change="rerun") as opened:
            if opened.open:
                st.dataframe(
                    head_measures(overview, site, {ring: values}), hide_index=True, height=320,
                    alt="Every head by every measure; a click on a column's name sorts by it",
                )  # fmt: skip
        with menu:
            export_menu(view, f"all-heads-{ring}", "overview")


def _ring(model: Model, trace: Trace, site: str) -> tuple[str, np.ndarray]:
    """The measure that rings the heads, and its values [layer, head]."""
    overview = overview_of(model, trace, site)
    chosen = current().ring
    ring = chosen if chosen in ring_names(model, overview, site) else "first"
    return ring, ring_values(model, overview, site, ring)


def _choose(layer: int, head: int) -> None:
    update(layer=layer, head=head, key=-1)


def _strongest(values: np.ndarray, ring: str, site: str, count: int = 8) -> None:
    """The heads with the most of a measure, to click; the chosen one marked if it is among them."""
    n_heads = values.shape[1]
    places: list[int] = np.argsort(-values, axis=None)[:count].tolist()
    prefix = "" if site == "self" else f"{site}."
    key, chosen = "w_strongest", current().layer * n_heads + current().head
    shown = chosen if chosen in places else None
    if st.session_state.get(key) != shown:
        st.session_state[key] = shown

    def label(place: int) -> str:
        layer, head = divmod(place, n_heads)
        return f"{prefix}L{layer}H{head}  {MEASURES[ring].text(values[layer, head])}"

    def changed() -> None:
        place = st.session_state[key]
        if place is not None:  # None: the chosen one was clicked
            _choose(*divmod(place, n_heads))

    st.pills(
        f"The most of “{MEASURES[ring].name}”", places, format_func=label, key=key, on_change=changed,
        label_visibility="collapsed",
    )  # fmt: skip


def focus_card(maps: LayerMaps, head: int) -> None:
    """One head, three ways, all from the same numbers."""
    state = current()
    queries, _ = maps.trace.site_tokens(maps.site)
    query = min(state.query, len(queries) - 1) if state.query >= 0 else len(queries) - 1
    with st.container(border=True, key="focus_card"):
        with _title_row():
            st.subheader(maps.name(head), anchor=False, width="content")
            st.segmented_control("Way", MODES, required=True, label_visibility="collapsed", **bind("mode"))
            st.segmented_control(
                "Quantity", QUANTITIES, required=True, label_visibility="collapsed",
                format_func=_QUANTITY_NAMES.__getitem__, **bind("quantity"),
            )  # fmt: skip
            menu = st.container(width="content")
        view = _draw_focus(maps, head, query)
        for note in maps.notes():
            st.caption(plain(note))
        with menu:
            exact = partial(maps.matrix_view, head, exact=True) if view.kind == "matrix" else view
            export_menu(exact, maps.name(head), "focus")
        with st.expander("As a table: where each token looks most", key="focus_table", on_change="rerun") as opened:
            if opened.open:
                _table(maps, head)


def _table(maps: LayerMaps, head: int) -> None:
    st.dataframe(
        top_keys(maps.trace, maps.site, maps.layer, head), hide_index=True, alt=f"Strongest keys of {maps.name(head)}"
    )
    st.caption("“shown” is the attention that the listed keys make up; the rest of each row goes elsewhere.")


def _choose_query(maps: LayerMaps, row: int | None) -> None:
    """Keep the token that is held; None lets go of it."""
    update(query=-1 if row is None else maps.frame.query_positions[row], key=-1)


def _draw_focus(maps: LayerMaps, head: int, query: int) -> View:
    mode = current().mode
    if mode == "text":
        view = maps.text_view(head, maps.query_index(query))
        components.text(
            view, key="text",
            on_select=lambda chosen: update(head=chosen, key=-1),
            on_query=lambda row: _choose_query(maps, row),
        )  # fmt: skip
    elif mode == "lines":
        view = maps.lines_view(head)
        components.lines(view, key="lines", on_select=lambda chosen: update(head=chosen))
    else:
        st.caption("Rows (queries) look at columns (keys). Point at a cell for its value; click one to see why.")
        view = maps.matrix_view(head)
        components.matrix(
            view, key="matrix", cell=_cell(maps), on_cell=lambda row, column: _choose_cell(maps, row, column)
        )  # fmt: skip
    return view


def _cell(maps: LayerMaps) -> tuple[int, int] | None:
    """The chosen cell among those drawn; None when there is none, or it is hidden."""
    state = current()
    queries, keys = maps.trace.site_tokens(maps.site)
    if not (0 <= state.query < len(queries) and 0 <= state.key < len(keys)):
        return None
    row = maps.frame.row_of(state.query, queries, maps.look.options.words)
    column = maps.frame.column_of(state.key, keys, maps.look.options.words)
    return None if row is None or column is None else (row, column)


def _choose_cell(maps: LayerMaps, row: int, column: int) -> None:
    st.session_state[_DIMENSIONS] = True
    update(query=maps.frame.query_positions[row], key=maps.frame.key_positions[column])


def why_card(maps: LayerMaps, head: int) -> None:
    """Why this weight: q, k, their product, the row's softmax, and what the value brings."""
    state = current()
    queries, keys = maps.trace.site_tokens(maps.site)
    with st.container(border=True, key="why_card"):
        st.subheader("Why this weight", anchor=False)
        from_side, to_side = st.columns(2)
        with from_side:
            _choose_token("From token (query)", "query", queries, "the last token")
        with to_side:
            _choose_token("To token (key)", "key", keys, "where it looks most")
        query = state.query if 0 <= state.query < len(queries) else len(queries) - 1
        key = state.key if 0 <= state.key < len(keys) else None
        why = explain_weight(maps.trace, maps.layer, head, query, key, maps.site)
        st.text(f"{whole_words(queries, why.query)} → {whole_words(keys, why.key)}")
        st.text(_why_line(why))
        dimensions = st.expander(
            "Dimension by dimension", expanded=state.key >= 0, key=_DIMENSIONS, on_change="rerun"
        )  # fmt: skip
        if dimensions.open:
            with dimensions:
                _why_figures(why, keys.labels)
        if st.button("Follow this head step by step", key="to_lesson", icon=":material/school:"):
            update(lesson="steps", given="head", step="scores", head=head)
            st.switch_page("pages/lesson.py")


def _choose_token(label: str, field: str, tokens: Tokens, without: str) -> None:
    """A list of a text's tokens, and first what is taken when none of them is chosen.

    That has a place of its own, which is the same for every text. As the token it happens to be it would be another
    with each letter typed, and a browser that sends what it had before would seem to choose it.
    """
    chosen = getattr(current(), field)
    st.selectbox(
        label, range(-1, len(tokens)), format_func=lambda i: whole_words(tokens, i) if i >= 0 else without,
        **bind(field, convert=_position, to_widget=chosen if chosen < len(tokens) else -1),
    )  # fmt: skip


def _position(value: object) -> int:
    """A token that was chosen. A browser may still send one as it was listed for another text: then none."""
    return value if isinstance(value, int) else -1


def _why_line(why: WeightExplanation) -> str:
    """The arithmetic of one score in a line."""
    parts = [f"q·k = {why.dot:.3f}", f"× scale {why.scale:.4g} = {why.scaled:.3f}"]
    if why.softcapped is not None:
        parts.append(f"softcap → {why.softcapped:.3f}")
    if why.bias:
        parts.append(f"+ bias {why.bias:.3f}")
    if why.mask:
        parts.append(f"+ mask {why.mask:.3g}")
    parts.append(f"softmax over the row → α = {why.weight:.4f}" if why.allowed else "closed by the mask → α = 0")
    value = (
        f"‖v‖ = {why.value_norm:.3f} → through W_O ‖v W_O‖ = {why.value_out_norm:.3f} → this key adds "
        f"‖α v W_O‖ = {why.contribution_norm:.4f}"
    )
    return "\n".join([" · ".join(parts), value, *why.notes])


def _why_figures(why: WeightExplanation, labels: tuple[str, ...]) -> None:
    parts = {"q": why.q, "k": why.k, "q × k per dimension (sums to q·k)": why.product}
    st.plotly_chart(
        _bars({name: np.asarray(values) for name, values in parts.items()}), config={"displaylogo": False},
        key="why_dimensions", alt=f"{', '.join(parts)}: {len(why.q)} dimensions each",
    )  # fmt: skip
    order = np.argsort(-np.asarray(why.row_weights))[:16]
    order = order[np.asarray(why.row_weights)[order] > 0]  # not what a mask has closed, whose scores are no numbers
    st.caption("The row's strongest keys after the softmax; all keys together sum to 1 (less with sinks).")
    st.dataframe(
        {
            "key": [f"{labels[i]} ({i})" for i in order.tolist()],
            "score": np.asarray(why.row_scores)[order].round(4),
            "weight": np.asarray(why.row_weights)[order].round(4),
        },
        hide_index=True, alt="Scores and weights of the row",
    )  # fmt: skip


def _bars(parts: Mapping[str, np.ndarray]) -> go.Figure:
    """Vectors under each other, as bars. One figure: a browser takes three times as long for one each."""
    figure = make_subplots(rows=len(parts), cols=1, subplot_titles=list(parts), vertical_spacing=0.12)
    for row, values in enumerate(parts.values(), start=1):
        colours = np.where(values >= 0, SELECTED[theme()], ACCENT[theme()])
        hover = "dimension %{x}: %{y:.4f}<extra></extra>"
        bars = go.Bar(x=np.arange(len(values)), y=values, marker_color=colours, hovertemplate=hover, showlegend=False)
        figure.add_trace(bars, row=row, col=1)
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    figure.update_layout(height=430, margin={"l": 40, "r": 8, "t": 26, "b": 24}, bargap=0.15)
    return figure


def layer_card(maps: LayerMaps, head: int) -> None:
    """All heads of the layer side by side, and what averaging them would hide."""
    ring, measured = _ring(maps.model, maps.trace, maps.site)
    values = measured[maps.layer]
    shape = maps.trace.sites[maps.site]
    with st.container(border=True, key="layer_card"):
        title, choice, menu = st.columns([4, 4, 1], vertical_alignment="center")
        title.subheader(f"Layer {maps.layer}, all {shape.n_heads} heads side by side", anchor=False)
        if shape.n_layers > 1:
            with choice:
                st.slider("Layer", 0, shape.n_layers - 1, label_visibility="collapsed", **bind("layer"))
        view = maps.grid_view(head, ring, values)
        components.layer_maps(view, key="layer", on_select=lambda chosen: update(head=chosen, key=-1))
        with menu:
            export_menu(partial(maps.grid_view, head, ring, values, exact=True), f"layer-{maps.layer}", "layer")
        with st.expander("What averaging hides", key="averaging", on_change="rerun") as opened:
            if opened.open:
                _averaging(maps)


def _averaging(maps: LayerMaps) -> None:
    """The layer's mean beside its heads' distance from it. The only place with a mean over heads."""
    st.caption(
        "The average of the layer's heads is a map that no head has. Beside it, how far each head is from it: the "
        "Jensen–Shannon divergence of its rows from the average's, in nats (0: equal; ln 2 = 0.693: nothing shared)."
    )
    left, right = st.columns([3, 2], gap="medium")
    with left:
        components.matrix(maps.average_view(), key="average")
    with right:
        divergence = maps.averaged[1]
        order = np.argsort(-divergence, kind="stable").tolist()
        # A few rows, the farthest first: as HTML, which a browser has sooner than a canvas that sorts.
        st.table(
            {
                "head": [maps.name(head) for head in order],
                "JS divergence from the average, nats": [f"{divergence[head]:.4f}" for head in order],
            }
        )


def rollout_card(model: Model, trace: Trace, site: str) -> None:
    """Attention rollout: one labelled map for the whole model, and what it is not."""
    with st.expander("Attention rollout: the whole model in one map", key="rollout_open", on_change="rerun") as opened:
        if not opened.open:
            return
        st.caption(
            "Attention rollout (Abnar & Zuidema 2020): the average over heads, half of it replaced by the residual "
            "connection, multiplied through all layers. An estimate of mixing, not a head's map: it ignores values "
            "and what the feed-forward layers do."
        )
        tokens = trace.site_tokens(site)[0]
        key = ("rollout", model.name, tokens.ids, trace.interventions, site)

        def make() -> np.ndarray:
            with Working("Multiplying through the layers", key, show=len(tokens) > SLOW_TOKENS) as working:
                return np.asarray(rollout(trace, site, progress=working.progress), dtype=np.float32)

        array = store().small(key, make)
        meta = {
            "id": f"rollout|{hash(key) & 0xFFFFFFFF:x}", "alt": "Attention rollout over all layers", "title": "rollout",
            "query_labels": list(tokens.labels), "key_labels": list(tokens.labels), "range": [0, float(array.max())],
            "scale": "linear", "causal": trace.sites[site].causal, "unit": "rollout (averages over heads)",
        }  # fmt: skip
        view = View("matrix", {"map": array}, meta, provenance(model, trace, site=site, quantity="attention rollout"))
        components.matrix(view, key="rollout")
        export_menu(view, "rollout", "rollout")
