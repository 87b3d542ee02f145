"""The app's pages."""

from __future__ import annotations

import streamlit as st
from streamlit.navigation.page import Page

_IN_APP = "_in_app"
_WITHOUT_MODEL = ("Lesson", "Cost")


def navigation() -> Page:
    """Declare the pages and give the one that is open. Called by app.py at every run."""
    pages = [
        st.Page("pages/heads.py", title="Heads", default=True),
        st.Page("pages/compare.py", title="Compare"),
        st.Page("pages/ablate.py", title="Ablate"),
        st.Page("pages/evaluate.py", title="Evaluate"),
        st.Page("pages/lesson.py", title="Lesson"),
        st.Page("pages/cost.py", title="Cost"),
    ]
    st.session_state[_IN_APP] = True
    return st.navigation(pages)


def needs_model(page: Page) -> bool:
    """Whether a page is about the sidebar's model; others do not wait for it."""
    return page.title not in _WITHOUT_MODEL


def require_app() -> None:
    """Run app.py when a page was run without it.

    Streamlit takes a folder named `pages` for its older kind of app until `st.navigation` has been called once in the
    server's life. The first visitor of a fresh server who opens a link to a page therefore gets the bare page: declare
    the pages, and begin again.
    """
    if not st.session_state.get(_IN_APP):
        navigation()
        st.rerun()
