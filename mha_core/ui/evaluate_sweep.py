"""The Evaluate page's sweep: every head on every prompt, an estimate first, then exactly, better with every prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import streamlit as st
from scipy import stats

from mha_core.report import sweep_provenance
from mha_core.result_store import default_store
from mha_core.task_figures import estimate_figure
from mha_core.task_gradient import TaskGradient, task_gradient_steps
from mha_core.task_maps import HeadMap, SliceEffects, head_map, held_out, slice_effects
from mha_core.task_sweep import TaskSweep, task_sweep_steps
from mha_core.ui import components
from mha_core.ui.evaluate_choice import Asked
from mha_core.ui.evaluate_growing import Place, errors_said, grow, require_means
from mha_core.ui.evaluate_maps import (
    chosen_head,
    click_choice,
    effects_view,
    found_columns,
    layer_labels,
    on_head,
)
from mha_core.ui.evaluate_results import CHART, metric_of, slice_choice, so_far
from mha_core.ui.exports import export_menu
from mha_core.ui.session import Working, bind, current
from mha_core.ui.state import DEFAULT_KINDS
from mha_core.ui.stores import store
from mha_core.ui.text import counted, plain
from mha_core.ui.theme import theme

GRADIENT_PROMPTS = 8
ALPHA = 0.05
_TOP, _MOST_ROWS = 12, 16  # heads and slices of a map that can be read at once
_PARTS = ("by slice", "other half", "estimate beside exact")


def sweep_key(asked: Asked) -> tuple[Hashable, ...]:
    """What the sweep is kept by."""
    return asked.key("task sweep", asked.site, current().way)


def sweep_card(asked: Asked) -> TaskSweep | None:
    """Sweep when that is asked for, and draw what is known. Gives it back for the cards below."""
    key = sweep_key(asked)
    with st.container(border=True, key="evaluate_sweep"):
        st.subheader("Every head on the task", anchor=False)
        st.caption(
            "Each head is switched off alone, on every prompt; its colour is how much the score changes on average "
            "(blue: it falls, the head helps; orange: it rises). First an estimate, then the exact map, which gets "
            "better with every prompt while you watch."
        )
        with st.container(horizontal=True, vertical_alignment="bottom"):
            st.segmented_control("Switched off by", DEFAULT_KINDS, required=True, **bind("way"))
            click_choice()
            wanted = st.button("Sweep every head", key="sweep_task", type="primary", icon=":material/play_arrow:")
        progress, place = st.container(), st.empty()
        if wanted:
            with progress:
                _sweep(asked, key, place)
        sweep: TaskSweep | None = store().result(key)
        gradient: TaskGradient | None = store().result((*key, "gradient"))
        if sweep is None and gradient is not None:
            with place.container():
                _draw_estimate(gradient, "kept")
        if sweep is not None:
            with place.container():
                _draw(sweep, key, "kept")
            chosen_head(asked.model, sweep.site, sweep.measured)
            _more(sweep, gradient, key)
        return sweep


def _sweep(asked: Asked, key: tuple[Hashable, ...], place: Place) -> None:
    way, model = current().way, asked.model
    with errors_said():
        require_means(model, way)
        if store().result((*key, "gradient")) is None:
            _estimate(asked, key, place)
        with Working(f"Head × prompt runs, {way}", (key, "work"), asked=True) as working:
            steps = task_sweep_steps(
                model, asked.task, kind=way, site=asked.site, n=asked.n, seed=asked.seed, store=default_store(),
                progress=working.progress,
            )  # fmt: skip
            grow(steps, key, place, lambda step, part: _draw(step, key, part))


def _estimate(asked: Asked, key: tuple[Hashable, ...], place: Place) -> None:
    """The first-order estimates of all heads on the first prompts, drawn when they are there."""
    n = min(asked.n, GRADIENT_PROMPTS)
    found: TaskGradient | None = None
    with Working("Estimating every head", (key, "estimate"), asked=True) as working:
        for found in task_gradient_steps(asked.model, asked.task, kind=current().way, site=asked.site, n=n,
                                         seed=asked.seed):  # fmt: skip
            working.progress(found.n, found.total)
    if found is not None:
        store().keep_result((*key, "gradient"), found)
        with place.container():
            _draw_estimate(found, "live")


def _draw_estimate(gradient: TaskGradient, part: str) -> None:
    """Two readings of the gradients, under their own label until the exact numbers are there."""
    metric = metric_of(tuple(gradient.estimates))
    values = gradient.estimates[metric].mean(axis=0)
    rows, columns = layer_labels(values.shape)
    made = {"method": gradient.method, "kind": gradient.kind, "site": gradient.site, "prompts": gradient.n}
    st.write(plain(f"Estimate, not exact: first {gradient.n} prompts, {gradient.seconds:.1f} s."))
    left, right = st.columns(2, gap="medium")
    with left:
        st.caption(plain(f"Estimated change in {metric}"))
        view = effects_view(values, rows, columns, title="estimate", unit=metric, made=made)
        components.matrix(view, key=f"task_estimate_{part}")
    with right:
        st.caption("Michel's score: mean size of the estimated change, whatever its sign")
        view = effects_view(gradient.importance, rows, columns, title="Michel's score", unit="score", made=made)
        components.matrix(view, key=f"task_michel_{part}")


def mapped(sweep: TaskSweep, key: Hashable, metric: str) -> HeadMap:
    """The map with intervals and p-values, kept for the next look."""
    found: HeadMap = store().small((key, "map", sweep.n, metric), lambda: head_map(sweep, metric))
    return found


def sweep_metric(sweep: TaskSweep) -> str:
    """The score that is drawn: usually a graded one, since few prompts say little about accuracy."""
    return metric_of(sweep.metrics, usual=1)


def _draw(sweep: TaskSweep, key: Hashable, part: str) -> None:
    """The exact map and its ranking so far. Only the kept one listens to clicks: they would end the work."""
    metric = sweep_metric(sweep)
    found = mapped(sweep, key, metric)
    speed = f", {sweep.runs_per_second:,.0f} head × prompt runs a second" if sweep.runs_per_second else ", from disk"
    st.write(
        plain(f"Exact, {sweep.kind}. {so_far(sweep.n, sweep.total)}{speed}. Unchanged: {metric} {found.clean:.3f}.")
    )
    st.write(plain(reading(sweep, found)))
    rows, columns = layer_labels(sweep.shape)
    title = f"Effect of each head on the task, {sweep.kind}, {sweep.n} of {sweep.total} prompts"
    view = effects_view(
        found.mean, rows, columns, title=title, unit=f"change in {metric}", made=sweep_provenance(sweep)
    )
    left, right = st.columns([6, 5], gap="medium")
    with left:
        components.matrix(view, key=f"task_sweep_{part}", on_cell=on_head(sweep.site) if part == "kept" else None)
        if part == "kept":
            export_menu(view, f"task-sweep-{sweep.kind}-{metric}", "task_sweep")
    with right:
        _ranked(sweep, found, 60 if part == "kept" else _TOP)


def reading(sweep: TaskSweep, found: HeadMap) -> str:
    """What the map says, in a sentence that is counted."""
    strong = [place for _, place in found.ranking(sweep.heads) if found.p_adjusted.ravel()[place] < ALPHA]
    if not strong:
        return (f"No head stands out from chance yet (p corrected for all {len(sweep.heads)} heads, "
                f"{counted(found.n_clusters, 'template')}).")  # fmt: skip
    first = ", ".join(f"{sweep.heads[place]} {found.mean.ravel()[place]:+.3f}" for place in strong[:3])
    return (f"{counted(len(strong), 'head')} of {len(sweep.heads)} "
            f"{'changes' if len(strong) == 1 else 'change'} {found.metric} beyond chance (corrected p below {ALPHA}); "
            f"the strongest: {first}.")  # fmt: skip


def _ranked(sweep: TaskSweep, found: HeadMap, top: int) -> None:
    flat = {"mean": found.mean, "low": found.low, "high": found.high, "p": found.p, "p (max-T)": found.p_adjusted}
    st.dataframe(
        [
            {"head": str(head), **{name: float(values.ravel()[place]) for name, values in flat.items()}}
            for head, place in found.ranking(sweep.heads, top)
        ],
        hide_index=True, column_config=found_columns(), height=330,
        alt="Heads by the size of their mean effect, with intervals and p-values",
    )  # fmt: skip
    st.caption("low and high: 95 % interval. p: of this head alone; p (max-T): corrected for all heads.")


def _more(sweep: TaskSweep, gradient: TaskGradient | None, key: Hashable) -> None:
    """More readings of the same sweep, one at a time."""
    metric = sweep_metric(sweep)
    part = st.segmented_control("More", _PARTS, key="w_task_more", help="More readings of the same numbers.")
    if part == "by slice":
        _by_slice(sweep, metric, key)
    elif part == "other half":
        _halves(sweep, metric)
    elif part == "estimate beside exact":
        _beside(sweep, gradient, metric)


def slice_grid(
    sweep: TaskSweep, found: HeadMap, parts: Sequence[SliceEffects]
) -> tuple[np.ndarray, list[str], list[int]]:  # fmt: skip
    """Mean effects of the strongest heads by slice [slice, head], the slices' names, and the heads' places."""
    places = [place for _, place in found.ranking(sweep.heads, _TOP)]
    names = [f"{part.value} · {part.slice} ({part.n})" for part in parts]
    return np.array([part.mean[places] for part in parts]), names, places


def _by_slice(sweep: TaskSweep, metric: str, key: Hashable) -> None:
    parts = store().small((key, "heads by slice", sweep.n, metric), lambda: slice_effects(sweep, metric))
    if not parts:
        st.caption("This task has no slices.")
        return
    if len(parts) > _MOST_ROWS:
        chosen = slice_choice(list(sweep.slices()), "sweep")
        parts = [part for part in parts if part.slice == chosen]
    grid, names, places = slice_grid(sweep, mapped(sweep, key, metric), parts)
    heads = [sweep.heads[place] for place in places]
    st.caption(f"The {len(heads)} strongest heads (columns) in each slice (rows; in brackets its prompts).")
    view = effects_view(grid, names, [str(head) for head in heads], title="Heads by slice", unit=f"change in {metric}",
                        made=sweep_provenance(sweep), axes=("slice", "head"))  # fmt: skip
    click = on_head(sweep.site)
    components.matrix(view, key="task_slices", on_cell=lambda _, head: click(heads[head].layer, heads[head].head))
    export_menu(view, f"heads-by-slice-{metric}", "task_slices")


def _halves(sweep: TaskSweep, metric: str) -> None:
    found = held_out(sweep, metric)
    if not found:
        st.caption("There are too few templates for two halves.")
        return
    st.caption("The strongest heads of one half of the templates (found) and what they do on the other half (again), "
               "with its interval. A head that was found by luck falls back to 0 there.")  # fmt: skip
    st.dataframe(
        [{"head": str(item.head), "found": item.found, "again": item.again.mean, "low": item.again.low,
          "high": item.again.high} for item in found],
        hide_index=True, column_config=found_columns(), alt="Heads found on one half, measured again on the other",
    )  # fmt: skip


def _beside(sweep: TaskSweep, gradient: TaskGradient | None, metric: str) -> None:
    """Estimate against exact, on the same prompts."""
    if gradient is None:
        st.caption("The estimate is made when the sweep is; sweep again to see it.")
        return
    if metric not in gradient.estimates:
        metric = next(iter(gradient.estimates))
    shared = min(gradient.n, sweep.n)
    known: Sequence[int] = [place for place, number in enumerate(sweep.done) if number < shared]
    if not known:
        st.caption("The sweep has not measured the estimate's prompts yet.")
        return
    exact = sweep.effects(metric, known).mean(axis=0)
    estimate = gradient.estimates[metric][[sweep.done[place] for place in known]].mean(axis=0).ravel()
    score = gradient.importance.ravel()
    agree, michel = stats.spearmanr(estimate, exact).statistic, stats.spearmanr(score, np.abs(exact)).statistic
    st.caption(plain(
        f"On the same {counted(len(known), 'prompt')}: rank correlation of estimate and exact effect in {metric} "
        f"{agree:.2f}; of Michel's score and the exact effect's size {michel:.2f} (Spearman; 1: the same order)."
    ))  # fmt: skip
    heads = [str(head) for head in sweep.heads]
    left, right = st.columns(2, gap="medium")
    with left:
        st.plotly_chart(estimate_figure(estimate, exact, heads, metric, theme()), key="task_beside", theme=None,
                        config=CHART, alt="Estimated against exact effect of each head")  # fmt: skip
    with right:
        order = np.argsort(-np.abs(exact), kind="stable")[:60].tolist()
        st.dataframe(
            [{"head": heads[place], "exact": float(exact[place]), "estimate": float(estimate[place]),
              "Michel's score": float(score[place])} for place in order],
            hide_index=True, column_config=found_columns(), height=300, alt="Exact effect and estimates of each head",
        )  # fmt: skip
