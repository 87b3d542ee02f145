"""The "Show" controls: how maps are shown, the same on every page that has maps."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from mha_core.layer_numbers import Look
from mha_core.maps import LayerMaps
from mha_core.model import Model
from mha_core.pooling import DisplayError, MapOptions
from mha_core.tokens import Tokens
from mha_core.trace import Trace
from mha_core.ui.session import bind, current, update
from mha_core.ui.state import PAIR_PARTS
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_SWITCHES = {
    "words": "words",
    "special": "hide special tokens",
    "first": "hide first token",
    "log": "log colour",
    "own_range": "own range",
}
_HELP = (
    "words: pieces joined; attention to a word sums over its pieces, attention from a word averages over them. "
    "Hiding never renormalises: how much of each row is hidden is said. log colour: shows small weights. "
    "own range: colours end at the layer's largest value instead of 1."
)


def look_of_state() -> Look:
    """The look that the visitor chose."""
    state = current()
    return Look(state.quantity, MapOptions(state.words, state.hide, state.part), state.log, state.own_range)


def maps_of(model: Model, trace: Trace, site: str, layer: int, look: Look | None = None) -> LayerMaps:
    """A layer's maps; what is made of them is kept for the page's next run."""
    return LayerMaps(model, trace, site, layer, look or Look(), keep=store().drawn)


def showable(maps: LayerMaps) -> LayerMaps:
    """The maps as the visitor wants them; shown whole, with a sentence, where that would leave nothing to see."""
    try:
        _ = maps.selection
        return maps
    except DisplayError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return replace(maps, look=replace(maps.look, options=MapOptions()))


def draw_look(tokens: Tokens) -> None:
    """Draw the switches, and the pair filter where there are two segments."""
    state = current()
    on = [name for name in _SWITCHES if name == state.hide or getattr(state, name, False) is True]
    key = "w_look"
    if st.session_state.get(key) != on:
        st.session_state[key] = on

    def changed() -> None:
        chosen = set(st.session_state[key])
        hide = chosen & {"special", "first"}
        if len(hide) > 1:  # one hides the other: the newer choice counts
            hide -= {current().hide}
        update(words="words" in chosen, log="log" in chosen, own_range="own_range" in chosen, hide=next(iter(hide), ""))

    st.pills(
        "Show", list(_SWITCHES), selection_mode="multi", format_func=_SWITCHES.__getitem__, key=key,
        on_change=changed, help=_HELP,
    )  # fmt: skip
    if 1 in tokens.segments:
        st.segmented_control(
            "Which pairs of sentences", PAIR_PARTS, required=True, **bind("part"),
            format_func=lambda part: f"{part[0]}→{part[1]}" if part else "all",
        )  # fmt: skip
