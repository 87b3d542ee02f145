"""Ablate: switch heads off and see what that does, beside what it was."""

import streamlit as st

from mha_core.effects import heads_of_model
from mha_core.interventions import HeadRef
from mha_core.ui import ablation, components
from mha_core.ui.session import current, update
from mha_core.ui.sidebar import chosen_site, shared
from mha_core.ui.text import plain
from mha_core.ui.try_this import try_this

run = shared()
model, trace = run.model, run.trace
site = chosen_site(trace)
st.title("Ablate", anchor=False)
proof = st.container()
try_this()
off, strangers = heads_of_model(current().off, model)
if strangers:
    st.warning(plain(f"This model has no {', '.join(strangers[:8])}; the other heads of the link are kept."))
    update(off=off)

grid, effects = st.columns([4, 9], gap="medium")
with grid, st.container(border=True, key="grid_card"):
    st.subheader("Heads", anchor=False)
    ablation.site_choice(trace, site)
    shape = trace.sites[site]
    here = [name for name in off if HeadRef.parse(name).site == site]
    chosen = components.head_grid(
        key=f"grid_{model.name}_{site}", n_layers=shape.n_layers, n_heads=shape.n_heads, group=shape.group, off=here,
        site_prefix="" if site == "self" else f"{site}.",
    )  # fmt: skip
    elsewhere = [name for name in off if name not in here]
    if chosen != here:
        off = (*elsewhere, *chosen)
        update(off=off)

with effects:
    kinds = ablation.kind_choice()
    runs = ablation.draw_effects(run, off, kinds)
with proof:
    ablation.proof_line(run, runs)
