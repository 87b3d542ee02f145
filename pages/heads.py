"""Heads: every head of the model as a thumbnail, one layer side by side, one head large. Never averaged."""

import streamlit as st

from mha_core.metrics import MEASURES
from mha_core.ui import components
from mha_core.ui.overview import overview_of
from mha_core.ui.session import bind, current, update
from mha_core.ui.sidebar import chosen_site, shared
from mha_core.ui.text import plain
from mha_core.ui.try_this import try_this
from mha_core.views import layer_view, overview_view, token_view, top_keys, whole_words

run = shared()
model, trace = run.model, run.trace
site = chosen_site(trace)
state = current()
st.title("Heads", anchor=False)
try_this()

if len(trace.sites) > 1:
    names = {"enc": "encoder self-attention", "dec": "decoder self-attention", "cross": "cross-attention"}
    st.segmented_control(
        "Attention", list(trace.sites), format_func=names.__getitem__, required=True, **bind("site", to_widget=site)
    )
if trace.source_tokens is not None:
    st.text(f"Target: {trace.tokens.text}")
shape = trace.sites[site]
layer, head = state.layer, state.head
queries, keys = trace.site_tokens(site)

whole, focus = st.columns([5, 6], gap="medium")
with whole, st.container(border=True, key="overview_card"):
    st.subheader(f"All {shape.n_layers * shape.n_heads} heads", anchor=False)
    st.caption("Thumbnails, not averages: layers down from L0, heads across from H0. Click one.")
    overview = overview_of(model, trace, site)
    ring = state.ring if state.ring in overview.measures else "first"
    st.pills(
        "Ring", list(overview.measures), format_func=lambda name: MEASURES[name].name, required=True,
        **bind("ring", to_widget=ring),
    )  # fmt: skip
    components.overview(
        overview_view(overview, model, trace, site=site, ring=ring, layer=layer, head=head),
        key="overview",
        on_select=lambda layer, head: update(layer=layer, head=head),
    )
    st.caption(plain(f"{MEASURES[ring].name}: {MEASURES[ring].definition}."))

with focus, st.container(border=True, key="focus_card"):
    prefix = "" if site == "self" else f"{site}."
    st.subheader(f"{prefix}L{layer}H{head}", anchor=False)
    st.caption("This head's own map: rows (queries) look at columns (keys); each row sums to 1. Point at a cell.")
    components.layer_maps(
        layer_view(model, trace, site=site, layer=layer, heads=[head], selected=head, ring=ring), key="focus"
    )
    with st.expander("As a table: where each token looks most"):
        st.dataframe(top_keys(trace, site, layer, head), hide_index=True, alt=f"Strongest keys of L{layer}H{head}")
        st.caption("“shown” is the attention that the listed keys make up; the rest of each row goes elsewhere.")

with focus, st.container(border=True, key="token_card"):
    positions = range(len(queries))
    query = min(state.query, len(queries) - 1) if state.query >= 0 else len(queries) - 1
    title, choice = st.columns([3, 2], vertical_alignment="center")
    with title:
        st.subheader(f"Layer {layer}: where every head looks from one token", anchor=False)
    with choice:
        st.selectbox(
            "From token", positions, format_func=lambda position: whole_words(queries, position),
            **bind("query", to_widget=query),
        )  # fmt: skip
    components.layer_maps(token_view(model, trace, site=site, layer=layer, query=query), key="token")

with st.container(border=True, key="layer_card"):
    title, choice = st.columns([3, 2], vertical_alignment="center")
    with title:
        st.subheader(f"Layer {layer}, all {shape.n_heads} heads side by side", anchor=False)
    with choice:
        st.slider(
            "Layer", 0, shape.n_layers - 1, **bind("layer"), label_visibility="collapsed"
        ) if shape.n_layers > 1 else None
    components.layer_maps(
        layer_view(model, trace, site=site, layer=layer, selected=head, ring=ring),
        key="layer",
        on_select=lambda head: update(head=head),
    )
