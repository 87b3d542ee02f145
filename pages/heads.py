"""Heads: every head of the model as a thumbnail, one layer side by side, one head large. Never averaged."""

import streamlit as st

from mha_core.ui import head_cards
from mha_core.ui.look import draw_look, look_of_state, maps_of, showable
from mha_core.ui.session import bind, current
from mha_core.ui.sidebar import chosen_site, shared
from mha_core.ui.try_this import try_this

run = shared()
model, trace = run.model, run.trace
site = chosen_site(trace)
st.title("Heads", anchor=False)
try_this()

if len(trace.sites) > 1:
    names = {"enc": "encoder self-attention", "dec": "decoder self-attention", "cross": "cross-attention"}
    st.segmented_control(
        "Attention", list(trace.sites), format_func=names.__getitem__, required=True, **bind("site", to_widget=site)
    )
if trace.source_tokens is not None:
    st.text(f"Target: {trace.tokens.text}")
    if site != "enc":
        st.caption("Each row is the token of the target that was read last; the next one is written from it.")
state = current()
draw_look(trace.site_tokens(site)[1])
maps = showable(maps_of(model, trace, site, state.layer, look_of_state()))

whole, focus = st.columns([5, 7], gap="medium")
with whole:
    head_cards.overview_card(model, trace, site)
with focus:
    head_cards.focus_card(maps, state.head)
    head_cards.why_card(maps, state.head)
head_cards.layer_card(maps, state.head)
if site != "cross":
    head_cards.rollout_card(model, trace, site)
