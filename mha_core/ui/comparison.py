"""The Compare page's parts: panels, what two of them differ in, and heads that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import streamlit as st

from mha_core.alignment import AlignedDifference, Alignment, align, aligned_difference
from mha_core.effects import heads_of_model, plan_for
from mha_core.maps import LayerMaps
from mha_core.model import Model
from mha_core.tokens import InputError, Tokens
from mha_core.trace import Trace
from mha_core.ui import components
from mha_core.ui.exports import export_menu
from mha_core.ui.look import look_of_state, maps_of, showable
from mha_core.ui.overview import clean_run
from mha_core.ui.session import current, run, update
from mha_core.ui.sidebar import Shared, load, model_title, model_titles
from mha_core.ui.state import DEFAULT_KINDS, MAX_NAME, MAX_PANELS, MAX_TEXT, QUANTITIES, WHOLE_LAYER, Panel, parse_heads
from mha_core.ui.stores import store
from mha_core.ui.text import plain
from mha_core.view import View, light_difference
from mha_core.views import provenance

MINIMAL_PAIR = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)


@dataclass(frozen=True, eq=False)
class DrawnPanel:
    """A panel with its run. maps: what it shows. head: WHOLE_LAYER for all."""

    panel: Panel
    model: Model
    maps: LayerMaps
    head: int

    @property
    def name(self) -> str:
        """What is in the panel, in a line."""
        what = f"layer {self.maps.layer}, all heads" if self.head == WHOLE_LAYER else self.maps.name(self.head)
        off = f" · {', '.join(self.panel.off[:4])} → {self.panel.kind}" if self.maps.trace.interventions else ""
        return f"{what} · {model_title(self.model.name)}{off}"


def panels_of_state() -> tuple[Panel, ...]:
    """The visitor's panels; at first the chosen head beside the next one of its layer."""
    state = current()
    if state.panels:
        return state.panels
    first = Panel(site=state.site, layer=state.layer, head=state.head)
    return first, replace(first, head=state.head + 1)


def set_panel(number: int, **changes: object) -> None:
    """Change one panel."""
    panels = list(panels_of_state())
    panels[number] = replace(panels[number], **changes)  # type: ignore[arg-type]
    update(panels=tuple(panels))


def move_panels(order: Sequence[int]) -> None:
    """Keep the panels named by `order`, in that order; a number twice is a duplicate."""
    panels = panels_of_state()
    update(panels=tuple(panels[number] for number in order)[:MAX_PANELS])


def show_minimal_pair() -> None:
    """The two classic sentences, one head beside itself."""
    state = current()
    both = [Panel(text=text, site=state.site, layer=state.layer, head=state.head) for text in MINIMAL_PAIR]
    update(panels=tuple(both))


def presenting() -> bool:
    """Whether controls are folded away for a lecture hall."""
    return current().present


def panel_buttons() -> None:
    """Add a panel, or begin with a well-known pair of sentences."""
    panels = panels_of_state()
    with st.container(horizontal=True):
        st.button("Add a panel", icon=":material/add:", disabled=len(panels) >= MAX_PANELS, on_click=move_panels,
                  args=([*range(len(panels)), len(panels) - 1],))  # fmt: skip
        st.button("Minimal pair: tired / wide", on_click=show_minimal_pair)
        st.button("Begin again", on_click=update, kwargs={"panels": ()})


def run_panel(panel: Panel, shared: Shared) -> DrawnPanel:
    """The run a panel asks for. Raises `InputError` where it has no text.

    A layer or head that its model does not have becomes the nearest one that it has.
    """
    model = load(panel.model) if panel.model and panel.model != current().model else shared.model
    trace = _panel_trace(panel, model, shared)
    site = panel.site if panel.site in trace.sites else trace.main_site
    shape = trace.sites[site]
    layer = min(max(panel.layer, 0), shape.n_layers - 1)
    head = WHOLE_LAYER if panel.head == WHOLE_LAYER else min(panel.head, shape.n_heads - 1)
    look = replace(look_of_state(), quantity=panel.quantity)
    return DrawnPanel(panel, model, showable(maps_of(model, trace, site, layer, look)), head)


def _panel_trace(panel: Panel, model: Model, shared: Shared) -> Trace:
    if not panel.text and model is shared.model and not panel.off:
        return shared.trace
    pair = panel.pair or ("" if panel.text else current().pair)
    tokens = store().tokens(model, panel.text or current().text, pair if model.takes_pairs else None)
    clean = clean_run(model, tokens, pair or None if model.kind == "seq2seq" else None)
    off, _ = heads_of_model(panel.off, model)
    target = clean.tokens if clean.source_tokens is not None else None
    return run(model, tokens, plan_for(off, panel.kind), target=target) if off else clean


def draw_panels(shared: Shared) -> list[DrawnPanel]:
    """All panels side by side, on one colour scale per quantity."""
    panels = panels_of_state()
    drawn: list[DrawnPanel | None] = []
    for panel in panels:
        try:
            drawn.append(run_panel(panel, shared))
        except InputError:
            drawn.append(None)
    tops = _common_tops([item for item in drawn if item is not None])
    columns = st.columns(len(panels) if len(panels) < 4 else 2, gap="small")
    for number, item in enumerate(drawn):
        with columns[number % len(columns)], st.container(border=True):
            _panel_header(number, len(panels), panels[number], item)
            if item is None:
                st.info("This panel has no text; give it one under Edit.", icon=":material/info:")
            else:
                _draw_panel(number, replace(item, maps=replace(item.maps, top=tops.get(item.maps.look.quantity))))
    return [item for item in drawn if item is not None]


def _common_tops(drawn: Sequence[DrawnPanel]) -> dict[str, float]:
    tops: dict[str, float] = {}
    for item in drawn:
        quantity = item.maps.look.quantity
        tops[quantity] = max(tops.get(quantity, 0.0), item.maps.range[1])
    return tops


def _draw_panel(number: int, item: DrawnPanel) -> None:
    st.text(item.maps.trace.site_tokens(item.maps.site)[0].text[:160])
    if item.head == WHOLE_LAYER:
        view = item.maps.grid_view(-1, "first")
        view = replace(view, meta={**view.meta, "group": "compare"})
        components.layer_maps(view, key=f"view_{number}_layer", on_select=lambda head: set_panel(number, head=head))
    else:
        view = item.maps.matrix_view(item.head)
        view = replace(view, meta={**view.meta, "group": "compare"})
        components.matrix(view, key=f"view_{number}_matrix")
    for note in item.maps.notes():
        st.caption(plain(note))
    if not presenting():
        export_menu(view, item.name, f"panel_{number}")


def _panel_header(number: int, count: int, panel: Panel, item: DrawnPanel | None) -> None:
    st.subheader(f"{number + 1} · " + (plain(item.name) if item else "no text"), anchor=False)
    if presenting():
        return
    others = [i for i in range(count) if i != number]
    swapped = list(range(count))
    if number + 1 < count:
        swapped[number], swapped[number + 1] = swapped[number + 1], swapped[number]
    with st.container(horizontal=True, gap="small"):
        # Drawn when it is opened: a browser makes these fields only then, and one that a run of the page had set before
        # would report itself empty.
        with st.popover("Edit", key=f"edit_{number}", on_change="rerun") as opened:
            if opened.open:
                _edit_panel(number, panel, item)
        st.button("Duplicate", key=f"duplicate_{number}", disabled=count >= MAX_PANELS,
                  on_click=move_panels, args=([*range(number + 1), *range(number, count)],))  # fmt: skip
        st.button("Swap →", key=f"swap_{number}", disabled=number + 1 >= count, on_click=move_panels, args=(swapped,))
        st.button("Remove", key=f"remove_{number}", disabled=count <= 1, on_click=move_panels, args=(others,))


def _edit_panel(number: int, panel: Panel, item: DrawnPanel | None) -> None:
    """The panel's own choices. Each widget is set from the panel when the panel says something else."""
    titles = {"": "the sidebar's", **model_titles()}
    options = [*titles, *([panel.model] if panel.model not in titles else [])]
    st.selectbox("Model", options, format_func=lambda name: titles.get(name, name), accept_new_options=True,
                 **_bound(number, "model", panel, lambda value: str(value or "")[:MAX_NAME]))  # fmt: skip
    st.text_input("Sentence", placeholder="the sidebar's", max_chars=MAX_TEXT, **_bound(number, "text", panel))
    if item is None:
        return
    shape = item.maps.trace.sites[item.maps.site]
    if len(item.maps.trace.sites) > 1:
        st.segmented_control("Attention", list(item.maps.trace.sites), required=True,
                             **_bound(number, "site", replace(panel, site=item.maps.site)))  # fmt: skip
    if shape.n_layers > 1:
        st.slider("Layer", 0, shape.n_layers - 1, **_bound(number, "layer", replace(panel, layer=item.maps.layer)))
    heads = [WHOLE_LAYER, *range(shape.n_heads)]
    st.selectbox("Head", heads, format_func=lambda head: "all of the layer" if head == WHOLE_LAYER else f"H{head}",
                 **_bound(number, "head", replace(panel, head=item.head)))  # fmt: skip
    st.segmented_control("Quantity", QUANTITIES, required=True, **_bound(number, "quantity", panel),
                         format_func={"weights": "weights", "value": "value-weighted"}.__getitem__)  # fmt: skip
    off = _bound(number, "off", panel, parse_heads, ", ".join(panel.off))
    st.text_input("Heads switched off", placeholder="L1H3, L1H5", max_chars=2000, **off)
    if panel.off:
        st.segmented_control("Replace by", DEFAULT_KINDS, required=True, **_bound(number, "kind", panel))


def _bound(number: int, field: str, panel: Panel, convert=lambda value: value, shown=None):  # type: ignore[no-untyped-def]
    """Arguments that tie a widget to one field of one panel, like `session.bind`."""
    key = f"panel_{number}_{field}"
    value = getattr(panel, field) if shown is None else shown
    if st.session_state.get(key) != value:
        st.session_state[key] = value

    def changed() -> None:
        if st.session_state[key] is not None:  # as in `session.bind`
            set_panel(number, **{field: convert(st.session_state[key])})

    return {"key": key, "on_change": changed}


def draw_difference(drawn: Sequence[DrawnPanel]) -> None:
    """The difference of two panels that show one head each, over the tokens they share."""
    single = [(number, item) for number, item in enumerate(drawn) if item.head != WHOLE_LAYER]
    if len(single) < 2:
        return
    with st.container(border=True):
        st.subheader("Difference of two panels", anchor=False)
        numbers = [number for number, _ in single]
        left, right, _ = st.columns([1, 1, 3])
        one_based = {number: str(number + 1) for number in numbers}
        first = left.selectbox("Panel", numbers, 1, format_func=one_based.__getitem__, key="difference_first")
        second = right.selectbox("minus panel", numbers, 0, format_func=one_based.__getitem__, key="difference_second")
        _difference_of(dict(single)[first], dict(single)[second])


def _shared_note(pairs: Alignment, key_pairs: Alignment, site: str) -> str:
    """What the two panels share; in cross-attention queries and keys are of different texts."""
    return f"Queries: {pairs.note} Keys: {key_pairs.note}" if site == "cross" else pairs.note


def _aligned(first: Tokens, second: Tokens) -> Alignment:
    """`align`, from the store or made now: for texts of thousands of tokens it takes seconds."""
    result: Alignment = store().small(("aligned", first, second), lambda: align(first, second))
    return result


def _difference(first: DrawnPanel, second: DrawnPanel, pairs: Alignment, key_pairs: Alignment) -> AlignedDifference:
    """The two panels' heads over the tokens they share, from the store or made now."""
    both = [(item.maps.trace.serial, item.maps.site, item.maps.layer, item.head) for item in (first, second)]
    key = (*both, first.maps.look.quantity, "difference")

    def make() -> AlignedDifference:
        one, other = (item.maps.numbers_of(item.head) for item in (first, second))
        return aligned_difference(one, other, pairs, key_pairs)

    return store().drawn(key, make)


def _difference_of(first: DrawnPanel, second: DrawnPanel) -> None:
    tokens = [item.maps.trace.site_tokens(item.maps.site) for item in (first, second)]
    if (first.maps.site == "cross") != (second.maps.site == "cross"):
        st.info("One panel shows cross-attention and the other self-attention; their keys are of different texts.")
        return
    if first.maps.look.quantity != second.maps.look.quantity:
        st.info("One panel shows weights and the other value-weighted maps; choose the same quantity for both.")
        return
    pairs, key_pairs = (_aligned(one, other) for one, other in zip(*tokens, strict=True))
    if not len(pairs) or not len(key_pairs):
        st.info("The two sentences share no token, so that there is nothing to subtract.")
        return
    result = _difference(first, second, pairs, key_pairs)
    shared_labels = [tokens[0][0].labels[i] for i, _ in pairs]
    shared_keys = [tokens[0][1].labels[i] for i, _ in key_pairs]
    array = np.asarray(result.difference, dtype=np.float32)
    top = max(float(np.abs(array).max(initial=0.0)), 1e-6)
    meta = {
        "id": f"difference|{first.name}|{second.name}|{hash((tokens[0][0].ids, tokens[1][0].ids)) & 0xFFFFFFFF:x}",
        "alt": f"{first.name} minus {second.name} over {len(pairs)} shared tokens",
        "title": f"{first.name} − {second.name}",
        "query_labels": shared_labels, "key_labels": shared_keys,
        "range": [-top, top], "scale": "linear", "diverging": True, "causal": first.maps.causal and second.maps.causal,
        "unit": "difference", "group": "compare",
    }  # fmt: skip
    made = provenance(first.model, first.maps.trace, head=first.name)
    made["minus"] = provenance(second.model, second.maps.trace, head=second.name)
    view = View("matrix", {"map": array}, meta, made)
    map_side, row_side = st.columns([3, 2], gap="medium")
    with map_side:
        components.matrix(light_difference(view), key="difference_map")
        export_menu(view, "difference", "difference")
    with row_side:
        st.caption(plain(
            f"{_shared_note(pairs, key_pairs, first.maps.site)} Orange where the first panel has more, blue where the "
            "second has. Per query: Jensen–Shannon divergence of the two rows in nats, 0 when they are equal and "
            "ln 2 = 0.693 at most. Attention to tokens that are not shared is left out and stated."
        ))  # fmt: skip
        st.dataframe(
            {
                "query": shared_labels,
                "JS divergence": np.asarray(result.divergence).round(4),
                "unshared, first": np.asarray(result.hidden_first).round(3),
                "unshared, second": np.asarray(result.hidden_second).round(3),
            },
            hide_index=True, height=420, alt="Jensen–Shannon divergence per query",
        )  # fmt: skip
