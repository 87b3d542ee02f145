"""Headscope: page config, navigation, and the sidebar that every page shares."""

import streamlit as st

from mha_core.paths import asset
from mha_core.ui.pages import navigation, needs_model
from mha_core.ui.session import adopt_url, held, write_url
from mha_core.ui.sidebar import draw_sidebar
from mha_core.ui.stores import store

st.set_page_config(
    page_title="Headscope",
    page_icon=str(asset("favicon.svg")),
    layout="wide",
    initial_sidebar_state=340,
    menu_items={"About": "Headscope: see each attention head's own map, switch heads off, and see what changes."},
)
st.logo(str(asset("logo.svg")), size="large")
st.html(asset("app.css"))
page = navigation()
held().on_page(page.title)
adopt_url()
draw_sidebar(load_model=needs_model(page))
page.run()
write_url()
store().settle()
