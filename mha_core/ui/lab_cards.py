"""The Ablate page's grid card: heads to switch by clicking, typing or a preset."""

from __future__ import annotations

import numpy as np
import streamlit as st

from mha_core.interventions import HeadRef
from mha_core.sweep import HeadSweep
from mha_core.trace import Site
from mha_core.ui import components
from mha_core.ui.session import acted, held, update
from mha_core.ui.sidebar import Shared
from mha_core.ui.state import parse_heads
from mha_core.ui.sweep_choice import kept_sweep
from mha_core.ui.text import plain


def grid_card(shared: Shared, off: tuple[str, ...], site: str) -> tuple[str, ...]:
    """The grid of heads, coloured by the last sweep; a list to type; presets. Returns the heads that are off."""
    from mha_core.ui.ablation import site_choice

    model, trace = shared.model, shared.trace
    shape = trace.sites[site]
    with st.container(border=True, key="grid_card"):
        st.subheader("Heads", anchor=False)
        site_choice(trace, site)
        here = [name for name in off if HeadRef.parse(name).site == site]
        sweep = kept_sweep(shared, site, "zero")
        mine = held()
        chosen = components.head_grid(
            key=f"grid_{model.name}_{site}", n_layers=shape.n_layers, n_heads=shape.n_heads, group=shape.group,
            off=here,
            on_change=acted, site_prefix="" if site == "self" else f"{site}.",
            heat=None if sweep is None else np.abs(sweep.effects),
            heat_label="" if sweep is None else f"exact sweep, |{sweep.metric}|",
        )  # fmt: skip
        if chosen != here:
            off = (*[name for name in off if name not in here], *chosen)
            mine.change(off=off)
        _list_and_presets(off, site, shape, sweep)
    return off


def _list_and_presets(off: tuple[str, ...], site: str, shape: Site, sweep: HeadSweep | None) -> None:
    key, shown = "w_head_list", ", ".join(off)
    if st.session_state.get(key) != shown and not st.session_state.get("_head_list_wrong"):
        st.session_state[key] = shown

    def typed() -> None:
        names = [part for part in st.session_state[key].replace(";", ",").split(",") if part.strip()]
        wrong = [name.strip() for name in names if not parse_heads(name)]
        st.session_state["_head_list_wrong"] = wrong
        if not wrong:
            update(off=parse_heads(",".join(names)))

    st.text_input("As a list", key=key, on_change=typed, placeholder="L1H3, L1H5", max_chars=4000)
    wrong = st.session_state.get("_head_list_wrong")
    if wrong:
        st.warning(plain(f"Not a head: {', '.join(wrong[:4])}. Write heads like L1H3, separated by commas."))
    with st.popover("Presets"):
        count = st.number_input("How many heads", 1, shape.n_layers * shape.n_heads, 2, key="preset_count")
        seed = st.number_input("Seed of the random heads", 0, 999_999, 0, key="preset_seed")
        st.button("Random heads", on_click=_random_heads, args=(site, shape, int(count), int(seed)))
        st.button(
            "Strongest heads of the sweep", disabled=sweep is None, on_click=_strongest_heads, args=(sweep, int(count)),
            help="Sweep every head first, below." if sweep is None else None,
        )  # fmt: skip


def _random_heads(site: str, shape: Site, count: int, seed: int) -> None:
    every = [str(HeadRef(layer, head, site)) for layer in range(shape.n_layers) for head in range(shape.n_heads)]
    places = np.random.default_rng(seed).choice(len(every), size=count, replace=False)
    update(off=tuple(every[place] for place in sorted(places)))


def _strongest_heads(sweep: HeadSweep, count: int) -> None:
    update(off=tuple(str(ref) for ref, _ in sweep.ranking()[:count]))
