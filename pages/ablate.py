"""Ablate: switch heads off and see what that does, beside what it was."""

import streamlit as st

from mha_core.effects import heads_of_model
from mha_core.ui import ablation, lab_cards, lab_more
from mha_core.ui.session import current, update
from mha_core.ui.sidebar import chosen_site, shared
from mha_core.ui.sweep_card import sweep_card
from mha_core.ui.sweep_choice import kept_sweep
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

base = ablation.base_run(run)
grid, effects = st.columns([4, 9], gap="medium")
with grid:
    off = lab_cards.grid_card(base, off, site)
    ablation.knockout_controls(model, base.trace, site)
with effects:
    ablation.kind_controls(base, site)
    runs = ablation.draw_effects(base, off, site)
    lab_more.continuation_card(base, runs)
    lab_more.downstream_card(base, runs, site)
    lab_more.direct_card(base, site, kept_sweep(base, site, "zero"))
    lab_more.plans_card(base, ablation.plans_on_page(off, site))
with proof:
    ablation.proof_line(base, runs)
sweep_card(base, site)
