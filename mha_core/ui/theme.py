"""The visitor's theme, for figures that are coloured on the server."""

from __future__ import annotations

import streamlit as st

from mha_core.palette import Theme


def theme() -> Theme:
    """What the page is shown in: "light" or "dark"."""
    return "dark" if st.context.theme.type == "dark" else "light"
