"""The three ways to look at a head, with known numbers and hostile labels.

`?kind=matrix|text|lines`, `?n=14`, `?heads=12`, `?keys=9` (cross-attention), `?causal`, `?top=16` (strongest keys
only), `?u16`, `?diverging`, `?log`, `?rtl`, `?silent` (nobody listens), `?pair` (two matrices that share what is
pointed at).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from mha_core.ui import components
from mha_core.view import View, to_uint16, top_of_rows
from tests.browser.apps import synthetic

ask = st.query_params
st.set_page_config(layout="wide")
kind, n = ask.get("kind", "text"), int(ask.get("n", "14"))
n_heads, n_keys = int(ask.get("heads", "12")), int(ask.get("keys", "0"))
causal = "causal" in ask
state = st.session_state
state.setdefault("head", 3)
state.setdefault("query", 9)
state.setdefault("cell", None)
state.runs = state.get("runs", 0) + 1

queries = synthetic.labels(n, rtl="rtl" in ask)
keys = synthetic.target_labels(n_keys) if n_keys else queries
maps = synthetic.viewer_maps(n_heads if kind != "matrix" else 1, n, n_keys or n, causal=causal)
meta: dict[str, Any] = {
    "id": f"{kind}-{state.head}",
    "title": "L4H3" if kind == "matrix" else "Layer 4",
    "query_labels": queries,
    "key_labels": keys,
    "causal": causal,
    "titles": [f"L4H{head}" for head in range(n_heads)],
    "row_selected": state.head,
    "scale": "log" if "log" in ask else "linear",
    "alt": f"The {kind} under test",
}
provenance = {
    "text": " ".join(queries[:300]), "model": "all-minilm-l6-v2", "model_sha256": "0123456789abcdef" * 4, "layer": 4,
    "interventions": "nothing changed", "index_base": 0, "versions": {"torch": "2.13.0"},
}  # fmt: skip


def choose(head: int) -> None:
    """Remember the head, as a page would."""
    state.head = head


def lock(query: int | None) -> None:
    """Remember the token, as a page would."""
    state.query = query


def pick(query: int, key: int) -> None:
    """Remember the cell, as a page would."""
    state.cell = (query, key)


if kind == "matrix":
    array: np.ndarray = maps[0]
    if "diverging" in ask:
        array = array - maps[0].T
        meta |= {"diverging": True, "range": [-0.5, 0.5]}
    if "u16" in ask:
        meta["scale_to"] = [-1, 1] if "diverging" in ask else [0, 1]
        array = to_uint16(array, tuple(meta["scale_to"]))
    meta |= {"id": "matrix"}
    if "pair" in ask:  # what is pointed at in one is marked in the other
        meta["group"] = "pair"
    components.matrix(
        View("matrix", {"map": array}, meta, {**provenance, "head": "L4H3"}),
        key="matrix",
        on_cell=None if "silent" in ask else pick,
        cell=state.cell,
    )
    if "pair" in ask:
        components.matrix(View("matrix", {"map": array[::-1]}, {**meta, "id": "second"}), key="second")
else:
    arrays: dict[str, np.ndarray] = {"maps": maps}
    if "top" in ask:
        values, places = top_of_rows(maps, int(ask["top"]))
        arrays = {"top_values": values, "top_keys": places}
    if kind == "text":
        components.text(
            View("text", arrays, {**meta, "query": 9 if state.query is None else state.query}, provenance),
            key="text",
            on_select=choose,
            on_query=None if "silent" in ask else lock,
        )
    else:
        components.lines(View("lines", arrays, meta, provenance), key="lines", on_select=choose)
st.text(f"head: {state.head}")
st.text(f"query: {state.query}")
st.text(f"cell: {state.cell}")
if kind == "matrix":
    st.button("another cell", on_click=pick, args=(3, 9))
    st.button("no cell", on_click=lambda: state.pop("cell"))
st.text(f"runs: {state.runs}")
