"""Lesson: multi-head attention step by step, with numbers that can be changed."""

import streamlit as st

from mha_core.paths import asset
from mha_core.ui import lesson_cards, lesson_more, lesson_steps
from mha_core.ui.pages import require_app
from mha_core.ui.session import bind, current

SECTIONS = {
    "steps": ("Step by step", lesson_steps.steps_section),
    "masks": ("Masks", lesson_cards.masks_section),
    "heads": ("Why several heads", lesson_cards.heads_section),
    "average": ("Not an average", lesson_more.average_section),
    "redundant": ("Heads that can go", lesson_more.redundant_section),
    "questions": ("Questions", lesson_more.questions_section),
}

require_app()
st.html(asset("print.css"))
st.title("Lesson", anchor=False)
st.caption(
    "What an attention layer calculates, number by number. Nothing here is a picture of a calculation: it is the "
    "calculation, by the same function that runs the models on the other pages."
)
st.segmented_control(
    "Part of the lesson", list(SECTIONS), format_func=lambda name: SECTIONS[name][0], required=True,
    label_visibility="collapsed", **bind("lesson"),
)  # fmt: skip
SECTIONS[current().lesson][1]()
