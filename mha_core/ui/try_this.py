"""The "try this" card: three steps that do what they say."""

from __future__ import annotations

import streamlit as st

from mha_core.catalogue import MINILM, SMOLLM2, is_allowed
from mha_core.ui.session import current, update
from mha_core.ui.state import DEFAULT_TEXT

IT_TEXT = "The animal crossed the road because it was frightened."
IT_POSITION = 7  # [CLS] the animal crossed the road because it
HEADS = ("L1H3", "L1H5")


def try_this() -> None:
    """Draw the card. Each step sets the choices it names; the steps on heads lead to the Ablate page."""
    if not (is_allowed(MINILM.info.name) and is_allowed(SMOLLM2.info.name)):
        return
    with st.expander("Try this: three steps", icon=":material/explore:", expanded=current() == type(current())()):
        st.markdown(
            "Headscope runs your sentence through a real model and shows **each attention head's own map**. "
            "Type in the sidebar, or take these three steps:"
        )
        with st.container(horizontal=True):
            if st.button("1 · See where each head of a layer looks from “it”", key="try_it"):
                update(model=MINILM.info.name, text=IT_TEXT, pair="", site="", layer=4, head=10, query=IT_POSITION)
                _go("pages/heads.py")
            if st.button("2 · Switch off L1H3 and L1H5 and watch “ Mary” go", key="try_zero"):
                _mary(("zero",))
            if st.button("3 · Replace them by their mean and watch it return", key="try_mean"):
                _mary(("mean",))


def _mary(kinds: tuple[str, ...]) -> None:
    update(model=SMOLLM2.info.name, text=DEFAULT_TEXT, pair="", off=HEADS, kinds=kinds, layer=1, head=3)
    _go("pages/ablate.py")


def _go(page: str) -> None:
    """To a page, with the new choices. A switch to the page one is on would lose the URL; that is a plain rerun."""
    st.switch_page(page)
