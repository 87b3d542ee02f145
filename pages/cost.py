"""Cost: what attention costs, counted and measured, and how many heads a task needs."""

import streamlit as st

from mha_core.ui import cost_cards, cost_measured_card, experiment_card
from mha_core.ui.pages import require_app
from mha_core.ui.session import bind, current

SECTIONS = {
    "calculator": ("Calculator", cost_cards.calculator_section),
    "measured": ("Measured on this machine", cost_measured_card.measured_section),
    "experiment": ("How many heads?", experiment_card.experiment_section),
}

require_app()
st.title("Cost", anchor=False)
st.segmented_control(
    "Part", list(SECTIONS), format_func=lambda name: SECTIONS[name][0], required=True, label_visibility="collapsed",
    **bind("cost"),
)  # fmt: skip
SECTIONS[current().cost][1]()
