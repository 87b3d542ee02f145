"""Headscope: page config, navigation, and the sidebar that every page shares."""

import streamlit as st

from mha_core.ui.session import adopt_url, write_url
from mha_core.ui.sidebar import draw_sidebar

st.set_page_config(
    page_title="Headscope",
    page_icon=":material/center_focus_strong:",
    layout="wide",
    menu_items={"About": "Headscope: see each attention head's own map, switch heads off, and see what changes."},
)
pages = [
    st.Page("pages/heads.py", title="Heads", icon=":material/grid_view:", default=True),
    st.Page("pages/ablate.py", title="Ablate", icon=":material/toggle_off:"),
]
page = st.navigation(pages)
adopt_url()
draw_sidebar()
page.run()
write_url()
