"""Compare: up to four panels side by side, what two of them differ in, and heads that look alike."""

import streamlit as st

from mha_core.paths import asset
from mha_core.ui import comparison
from mha_core.ui.look import draw_look
from mha_core.ui.session import bind
from mha_core.ui.sidebar import chosen_site, shared
from mha_core.ui.similar_cards import similar_card

run = shared()
title, present = st.columns([4, 1], vertical_alignment="center")
title.title("Compare", anchor=False)
with present:
    st.toggle("Present", help="Large type, controls folded away, for a lecture hall.", **bind("present"))
if comparison.presenting():
    st.html(asset("present.css"))
else:
    draw_look(run.tokens)
    comparison.panel_buttons()
drawn = comparison.draw_panels(run)
comparison.draw_difference(drawn)
if not comparison.presenting():
    similar_card(run.model, run.trace, chosen_site(run.trace))
