"""An overview and one layer's maps, with known numbers and hostile labels; `?pooled`, `?causal`."""

from __future__ import annotations

import numpy as np
import streamlit as st

from mha_core.ui.components import layer_maps, overview
from mha_core.view import View, max_pool
from tests.browser.apps import synthetic

HOSTILE = "<img src=x onerror=alert(1)>"
LAYERS, HEADS = 3, 4

st.set_page_config(layout="wide")
st.session_state.setdefault("place", (1, 2))
pooled, causal = "pooled" in st.query_params, "causal" in st.query_params
n = 20 if pooled else 8
labels = [f"w{i}" for i in range(n)]
labels[3:6] = ["she", HOSTILE, "שלום"]
weights = synthetic.model(LAYERS, HEADS, n, causal=causal)
weights[:, :, 3, 4] = 0.12341
layer, head = st.session_state.place


def choose(chosen_layer: int, chosen_head: int) -> None:
    """Remember the head, as a page would."""
    st.session_state.place = (chosen_layer, chosen_head)


thumbnails, _ = max_pool(weights, 6)
overview(
    View(
        "overview",
        {"maps": thumbnails, "values": np.full((LAYERS, HEADS), 0.474, np.float32)},
        {
            "id": "overview",
            "alt": "All 12 heads",
            "selected": [layer, head],
            "values_label": "first token",
            "causal": causal,
        },
    ),
    key="overview",
    on_select=choose,
)
shown, block = max_pool(weights[layer], 5) if pooled else (weights[layer], (1, 1))
layer_maps(
    View(
        "layer",
        {"maps": shown},
        {
            "id": f"layer-{layer}",
            "alt": f"The heads of layer {layer}",
            "query_labels": labels,
            "key_labels": labels,
            "block": list(block),
            "titles": [f"H{i}" for i in range(HEADS - 1)] + [HOSTILE],
            "subtitles": ["0.47 first token"] * HEADS,
            "selected_head": head,
            "off": [1],
            "causal": causal,
        },
    ),
    key="layer",
    on_select=lambda chosen: choose(layer, chosen),
)
st.text(f"selected: L{layer}H{head}")
