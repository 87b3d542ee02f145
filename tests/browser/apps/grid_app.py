"""A head grid on a page that can also set it, and that may be slow: `?slow=0.5`, `?layers=30&heads=9&group=3`."""

from __future__ import annotations

import time

import streamlit as st

from mha_core.ui.components import head_grid

st.session_state.setdefault("off", ["L0H1"])
layers = int(st.query_params.get("layers", "4"))
heads = int(st.query_params.get("heads", "6"))
group = int(st.query_params.get("group", "2"))


def preset() -> None:
    """What a preset button does: the page, not the browser, says which heads are off."""
    st.session_state.off = ["L2H2", "L2H3"]


st.button("preset", on_click=preset)
time.sleep(float(st.query_params.get("slow", "0")))
off = head_grid(
    key="grid",
    n_layers=layers,
    n_heads=heads,
    group=group,
    off=st.session_state.off,
    heat=[[layer * heads + head + 0.25 for head in range(heads)] for layer in range(layers)],
    heat_label="KL",
    disabled="disabled" in st.query_params,
)
st.session_state.off = off
st.session_state.runs = st.session_state.get("runs", 0) + 1
st.text(f"off: {','.join(off) or 'none'}")
st.text(f"runs: {st.session_state.runs}")
