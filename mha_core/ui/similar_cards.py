"""Heads that look alike: the nearest of a chosen head, and the whole model's redundancy map."""

from __future__ import annotations

import numpy as np
import streamlit as st

from mha_core.divergence import HeadDistances, cluster_order, head_distances, nearest_heads
from mha_core.interventions import HeadRef
from mha_core.model import Model
from mha_core.trace import Trace
from mha_core.ui import components
from mha_core.ui.exports import export_menu
from mha_core.ui.session import Working, current, update
from mha_core.ui.state import MAX_PANELS, Panel
from mha_core.ui.stores import store
from mha_core.ui.text import plain
from mha_core.view import View
from mha_core.views import provenance


def similar_card(model: Model, trace: Trace, site: str) -> None:
    """Nearest heads of the chosen head, and the map of all pairs, computed when it is opened."""
    with st.expander("Similar heads", key="similar", on_change="rerun") as opened:
        if not opened.open:
            return
        state = current()
        shape = trace.sites[site]
        names = [str(HeadRef(i, j, site)) for i in range(shape.n_layers) for j in range(shape.n_heads)]
        distances = _distances(model, trace, site)
        chosen = state.layer * shape.n_heads + state.head
        st.caption(
            f"{distances.note} Distance: Jensen–Shannon divergence of two heads' rows, in nats, on this sentence; "
            "0 means the same map, ln 2 = 0.693 nothing in common."
        )
        nearest, whole = st.columns([1, 2], gap="medium")
        with nearest:
            _nearest(names, distances, chosen, site)
        with whole:
            _redundancy(model, trace, site, names, distances)


def _distances(model: Model, trace: Trace, site: str) -> HeadDistances:
    tokens = trace.site_tokens(site)
    key = ("distances", model.name, tokens[0].ids, tokens[1].ids, trace.interventions, site)

    def make() -> HeadDistances:
        with Working("Comparing every pair of heads", key) as working:
            return head_distances(trace, site, progress=working.progress)

    result: HeadDistances = store().small(key, make)
    return result


def _nearest(names: list[str], distances: HeadDistances, chosen: int, site: str) -> None:
    st.write(plain(f"Nearest to {names[chosen]}"))
    for place in nearest_heads(distances, chosen, 8):
        st.button(
            f"{names[place]}  {distances.matrix[chosen, place]:.3f}", key=f"near_{place}", type="tertiary",
            on_click=_side_by_side, args=([names[chosen], names[place]],), help="Open both side by side",
        )  # fmt: skip


def _side_by_side(names: list[str]) -> None:
    """Put heads into the Compare page's panels."""
    heads = [HeadRef.parse(name) for name in names[:MAX_PANELS]]
    update(panels=tuple(Panel(site="" if h.site == "self" else h.site, layer=h.layer, head=h.head) for h in heads))


def _redundancy(model: Model, trace: Trace, site: str, names: list[str], distances: HeadDistances) -> None:
    most = min(12, len(names) - 1)
    n_clusters = st.slider("Clusters", 2, most, min(6, most), key="n_clusters") if most > 2 else 2
    order, labels = cluster_order(distances, n_clusters)
    array = np.asarray(distances, dtype=np.float32)[np.ix_(order, order)]
    ordered = [names[place] for place in order]
    top = max(float(array.max()), 1e-6)
    meta = {
        "id": f"redundancy|{site}|{hash((trace.tokens.ids, n_clusters)) & 0xFFFFFFFF:x}",
        "alt": f"Distance of every pair of the {len(names)} heads, alike heads next to each other",
        "title": "all pairs of heads, alike ones together", "query_labels": ordered, "key_labels": ordered,
        "range": [0, top], "scale": "linear", "causal": False, "unit": "JS divergence, nats",
    }  # fmt: skip
    view = View("matrix", {"map": array}, meta, provenance(model, trace, site=site, quantity="JS divergence of heads"))
    components.matrix(
        view, key="redundancy", on_cell=lambda row, column: _side_by_side([ordered[row], ordered[column]])
    )
    st.caption("Click a cell to open the two heads side by side, or open a cluster's first heads:")
    with st.container(horizontal=True, gap="small"):
        for cluster in dict.fromkeys(np.asarray(labels)[order].tolist()):
            members = [names[place] for place in order if labels[place] == cluster]
            st.button(
                f"{len(members)} heads: {', '.join(members[:2])} …" if len(members) > 2 else ", ".join(members),
                key=f"cluster_{n_clusters}_{cluster}", on_click=_side_by_side, args=(members,),
                disabled=len(members) < 2,
            )  # fmt: skip
    export_menu(view, "similar-heads", "redundancy")
