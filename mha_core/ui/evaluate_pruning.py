"""The Evaluate page's pruning curves: how many heads can go before the task breaks, and for which slice first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import streamlit as st

from mha_core.pruning import ORDERS, Pruning, pruning_steps
from mha_core.result_store import default_store
from mha_core.task_figures import curve_of, pruning_figure, pruning_slices_figure
from mha_core.task_sweep import TaskSweep
from mha_core.ui.evaluate_choice import Asked
from mha_core.ui.evaluate_growing import Place, errors_said, grow, require_means
from mha_core.ui.evaluate_plans import onto_ablate_page
from mha_core.ui.evaluate_results import CHART, metric_of, slice_choice
from mha_core.ui.session import Working, bind, current
from mha_core.ui.stores import store
from mha_core.ui.text import counted, plain
from mha_core.ui.theme import theme

_SOURCES = {"gradient": "gradient", "sweep": "exact sweep"}
_NAMES = {"ascending": "least important first", "recomputed": "recomputed", "reverse": "most important first",
          "random": "at random"}  # fmt: skip


def pruning_card(asked: Asked, sweep: TaskSweep | None) -> Pruning | None:
    """Measure the curves when that is asked for, and draw what is known. Gives it back for the export."""
    with st.container(border=True, key="evaluate_pruning"):
        st.subheader("Pruning curve", anchor=False)
        st.caption(
            "Heads are switched off together, a tenth more at each point, and the score is measured again: how many "
            "can go before the task breaks? Which heads go first is found on one half of the templates and the curve "
            "is measured on the other. Bands are 95 % intervals over templates; at random, the range of three draws."
        )
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.pills("Order", list(ORDERS), selection_mode="multi", format_func=_NAMES.__getitem__, wrap=True,
                     help="recomputed: least important first, where importance is computed again after every tenth.",
                     **bind("orders", convert=tuple, to_widget=list(current().orders)))  # fmt: skip
            st.segmented_control(
                "Importance from", list(_SOURCES), format_func=_SOURCES.__getitem__, required=True, wrap=True,
                help="gradient: Michel's score, an estimate from one backward pass per prompt. exact sweep: how much "
                "the score falls without each head, from the card above.", **bind("order_by"),
            )  # fmt: skip
            wanted = st.button("Remove heads step by step", key="prune", type="primary", icon=":material/play_arrow:",
                               disabled=not current().orders)  # fmt: skip
        st.caption(f"Switched off by: {current().way}, as chosen above the sweep.")
        by_sweep = current().order_by == "sweep"
        if by_sweep and sweep is None:
            st.info("Sweep every head first: the order comes from it.", icon=":material/info:")
            return None
        ranked_by = sweep if by_sweep else None
        key = pruning_key(asked, ranked_by)
        progress, place = st.container(), st.empty()
        if wanted:
            with progress:
                _prune(asked, ranked_by, key, place)
        pruning: Pruning | None = store().result(key)
        if pruning is not None:
            with place.container():
                _draw(pruning, "kept")
            _slices(pruning, key)
            _breaks(pruning, key)
            _open_point(pruning)
        return pruning


def pruning_key(asked: Asked, sweep: TaskSweep | None) -> tuple[Hashable, ...]:
    """What the curves are kept by."""
    return asked.key("pruning", asked.site, current().way, current().orders, None if sweep is None else sweep.done)


def _prune(asked: Asked, sweep: TaskSweep | None, key: tuple[Hashable, ...], place: Place) -> None:
    way = current().way
    with errors_said():
        require_means(asked.model, way)
        with Working("Removing heads", (key, "work"), asked=True) as working:
            steps = pruning_steps(
                asked.model, asked.task, orders=current().orders, importance=sweep, kind=way, site=asked.site,
                n=asked.n, seed=asked.seed, store=default_store(), progress=working.progress,
            )  # fmt: skip
            grow(steps, key, place, _draw)


def pruning_metric(pruning: Pruning) -> str:
    """The score that is drawn."""
    return metric_of(pruning.metrics)


def _draw(pruning: Pruning, part: str) -> None:
    metric = pruning_metric(pruning)
    st.write(plain(
        f"{pruning.n_points} of {pruning.total} points on {counted(len(pruning.questions), 'prompt')}. Importance: "
        f"{pruning.importance}."
    ))  # fmt: skip
    chart: dict[str, Any] = {"on_select": "rerun", "selection_mode": "points"} if part == "kept" else {}
    key = f"pruning_{part}"
    st.plotly_chart(pruning_figure(pruning, metric, theme=theme()), key=key, theme=None, config=CHART,
                    alt=f"{metric} against the number of heads switched off, by order", **chart)  # fmt: skip
    if part == "kept":
        _take_point(pruning, key)


def _take_point(pruning: Pruning, key: str) -> None:
    """A point that was clicked becomes the chosen one, once."""
    points = st.session_state.get(key, {}).get("selection", {}).get("points", [])
    found = points[0].get("customdata") if points else None
    if not isinstance(found, (list, tuple)) or len(found) != 2 or found == st.session_state.get("_pruning_point"):
        return
    st.session_state["_pruning_point"] = found
    order, point = found
    if order in current().orders and isinstance(point, int) and 0 <= point < len(pruning.counts):
        st.session_state["w_prune_order"], st.session_state["w_prune_point"] = order, pruning.counts[point]


def _slices(pruning: Pruning, key: Hashable) -> None:
    slices = pruning.slices()
    if not slices:
        return
    st.markdown("**By slice: for which prompts does it break first?**")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        orders = _orders(pruning)
        if st.session_state.get("w_prune_slices") not in orders:
            st.session_state["w_prune_slices"] = orders[0]
        order = st.selectbox("Heads go", orders, format_func=_NAMES.__getitem__, key="w_prune_slices", width=260)
        name = slice_choice(list(slices), "pruning")
    groups = dict(sorted(slices[name].items()))
    figure = pruning_slices_figure(pruning, order or orders[0], pruning_metric(pruning), groups, theme())
    st.plotly_chart(figure, key="pruning_slices", theme=None, config=CHART, alt="Pruning curve of each slice")


def _orders(pruning: Pruning) -> list[str]:
    return list(dict.fromkeys(curve.order for curve in pruning.curves))


def _breaks(pruning: Pruning, key: Hashable) -> None:
    """Where less than half of what is above guessing is left, for all prompts and each slice."""
    metric = pruning_metric(pruning)
    groups: list[tuple[str, Sequence[int] | None]] = [("all prompts", None)]
    groups += [(f"{name}: {value}", places) for name, values in pruning.slices().items()
               for value, places in sorted(values.items())]  # fmt: skip
    rows = [
        {"prompts": name}
        | {_NAMES[order]: pruning.breaks_at(curve_of(pruning, order), metric, places) for order in _orders(pruning)}
        for name, places in groups
    ]
    st.caption(plain(f"The number of heads off at which less than half of the {metric} above guessing is left; None: "
                     "not as far as measured, or it was never above guessing. At random: the first draw."))  # fmt: skip
    st.dataframe(rows, hide_index=True, alt="Where each curve breaks, overall and by slice")


def _open_point(pruning: Pruning) -> None:
    """Any point as a plan of the Ablate page."""
    st.markdown("**A point as a plan**")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        orders = _orders(pruning)
        if st.session_state.get("w_prune_order") not in orders:
            st.session_state["w_prune_order"] = orders[0]
        order = st.selectbox("Order", orders, format_func=_NAMES.__getitem__, key="w_prune_order", width=220)
        curve = curve_of(pruning, order or orders[0])
        counts = list(pruning.counts[1 : len(curve.rows)])
        if not counts:
            return
        if st.session_state.get("w_prune_point") not in counts:
            st.session_state["w_prune_point"] = counts[0]
        count = st.selectbox("Heads off", counts, key="w_prune_point", width=120)
        point = pruning.counts.index(count or counts[0])
        score = pruning.score(curve, point, pruning_metric(pruning))
        opened = st.button("Open on the Ablate page", key="prune_open", icon=":material/open_in_new:")
    st.caption(plain(f"{pruning_metric(pruning)} there: {score.mean:.3f}. Or click a point of the first plot."))
    if opened:
        onto_ablate_page(pruning.plan(curve, point), f"{_NAMES[curve.order]}, {count} off")
        st.switch_page("pages/ablate.py")
