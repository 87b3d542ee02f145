"""The Evaluate page's plans: each beside the unchanged model and beside random heads, overall and by slice."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any

import streamlit as st

from mha_core.evaluation import Comparison, Evaluation, evaluation_steps
from mha_core.interventions import Interventions
from mha_core.result_store import default_store
from mha_core.scores import METRICS
from mha_core.task_figures import plans_figure, slices_figure
from mha_core.ui.ablation import measure_reference
from mha_core.ui.evaluate_choice import Asked, refused_table
from mha_core.ui.evaluate_growing import Place, errors_said
from mha_core.ui.session import Working, current, update
from mha_core.ui.stores import store
from mha_core.ui.text import counted, plain
from mha_core.ui.theme import theme

FIRST = 12  # prompts of the first result: within seconds, and enough templates for an interval
_NUMBER = st.column_config.NumberColumn(format="%.4f")


def metric_of(available: Sequence[str], usual: int = 0) -> str:
    """The chosen score where a result has it, else the usual one."""
    chosen = current().measure
    return chosen if chosen in available else available[min(usual, len(available) - 1)]


def results_card(asked: Asked) -> Evaluation | None:
    """Measure the plans when that is asked for, and draw what is known. Gives it back for the cards below."""
    key = evaluation_key(asked)
    with st.container(border=True, key="evaluate_plans"):
        st.subheader("Plans on the task", anchor=False)
        st.caption(
            "Each dot is how much a plan changes the score, averaged over prompts: left of the line it falls. The bar "
            "is a 95 % interval over templates (prompts of one pattern count as one); where it crosses the line, the "
            "change may be chance. Small marks: as many other heads, taken at random."
        )
        label = "Measure the plans" if asked.plans else "Measure the unchanged model"
        wanted = st.button(label, key="measure_plans", type="primary", icon=":material/play_arrow:")
        progress, place = st.container(), st.empty()
        if wanted:
            with progress:
                _measure(asked, key, place)
        result: Evaluation | None = store().result(key)
        if result is not None:
            with place.container():
                draw_result(result, list(asked.plans), key, "kept")
            _slices(result, list(asked.plans), key)
        elif (first := store().result((key, "first"))) is not None:  # stopped before the means were there
            with place.container():
                draw_result(first, list(_without_mean(asked.plans)), (key, "first"), "kept")
        return result


def evaluation_key(asked: Asked) -> tuple[Hashable, ...]:
    """What the plans' result is kept by."""
    return asked.key("evaluation", tuple(asked.plans.values()))


def _measure(asked: Asked, key: Hashable, place: Place) -> None:
    """Measure, drawing what is known so far; what was done stays when it is stopped.

    The first mean on a model takes a while of its own: plans without one are asked a few prompts before that.
    """
    with errors_said():
        missing = [reference for reference in _references(asked.plans) if not asked.model.has_means(reference)]
        soon = _without_mean(asked.plans)
        if missing and soon:
            with Working("Asking the first prompts", (key, "first"), asked=True) as working:
                first = next(_steps(asked, soon, working))
            store().keep_result((key, "first"), first)
            with place.container():
                draw_result(first, list(soon), (key, "first"), "first")
        for reference in missing:
            measure_reference(asked.model, reference)
        with Working("Asking prompts", (key, "work"), asked=True) as working:
            for number, step in enumerate(_steps(asked, asked.plans, working)):
                store().keep_result(key, step)
                if not step.finished:
                    with place.container():
                        draw_result(step, list(asked.plans), key, f"step_{number}")


def _steps(asked: Asked, plans: Mapping[str, Interventions], working: Working) -> Generator[Evaluation]:
    return evaluation_steps(
        asked.model, asked.task, tuple(plans.values()), n=asked.n, seed=asked.seed, first=FIRST,
        store=default_store(), progress=working.progress,
    )  # fmt: skip


def _without_mean(plans: Mapping[str, Interventions]) -> dict[str, Interventions]:
    """Plans that need no mean outputs."""
    return {name: plan for name, plan in plans.items() if not _references({name: plan})}


def _references(plans: Mapping[str, Interventions]) -> list[str | tuple[str, ...]]:
    """Sentences whose mean outputs the plans need."""
    items = [item for plan in plans.values() for item in plan.ablations]
    wanted = (item.reference for item in items if item.kind == "mean" and item.reference != "sentence")
    return list(dict.fromkeys(wanted))


def so_far(n: int, total: int) -> str:
    """How much of a measurement is there."""
    return f"All {total:,} prompts" if n == total else f"First {n:,} of {total:,} prompts"


def draw_result(result: Evaluation, names: Sequence[str], key: Hashable, part: str) -> None:
    """Clean score, plot and table of what is measured so far."""
    metric = metric_of(result.metrics)
    score = result.clean_score(metric)
    st.write(plain(
        f"{so_far(result.n, result.total)}, {counted(len(set(result.clusters)), 'template')}. Unchanged model: "
        f"{metric} {score.mean:.3f}{interval_words(score.low, score.high)}."
    ))  # fmt: skip
    st.caption(plain(f"{metric}: {METRICS[metric]}."))
    if result.refused:
        with st.expander(f"{counted(len(result.refused), 'prompt')} cannot be given to this model"):
            refused_table(result.refused)
    if not names:
        return
    compared: list[Comparison] = store().small(
        (key, "compared", result.n, metric), lambda: result.compared(metric)
    )  # fmt: skip
    st.plotly_chart(plans_figure(result, metric, names, compared, theme()), key=f"plans_{part}", theme=None,
                    alt=f"Change in {metric} under each plan, with 95 % intervals", config=CHART)  # fmt: skip
    st.dataframe([_plan_row(result, item, names) for item in compared], hide_index=True, column_config=_columns(),
                 alt="Every plan: clean, changed, difference with interval, p-values, random heads")  # fmt: skip


CHART = {"displaylogo": False}


def _slices(result: Evaluation, names: Sequence[str], key: Hashable) -> None:
    """The same by slice: for which prompts does it matter?"""
    slices = list(result.slices())
    if not slices or not names:
        return
    metric = metric_of(result.metrics)
    st.markdown("**By slice**")
    st.caption("A slice is a part of the prompts, such as those with a plural subject. In brackets: how many prompts.")
    chosen = slice_choice(slices, "plans")
    found: list[Comparison] = store().small((key, "slices", result.n, metric), lambda: result.by_slice(metric))
    shown = [item for item in found if item.slice == chosen]
    st.plotly_chart(slices_figure(shown, metric, names, theme()), key="slices_kept", theme=None, config=CHART,
                    alt=f"Change in {metric} in each slice under each plan, with 95 % intervals")  # fmt: skip
    st.dataframe(
        [{"slice": item.slice, "value": item.value, **_plan_row(result, item, names, overall=False)} for item in shown],
        hide_index=True, column_config=_columns(), alt="Every plan in every slice",
    )  # fmt: skip


def slice_choice(slices: Sequence[str], part: str) -> str:
    """The slice that is drawn: one choice for the whole page, with a control in each part that has slices.

    part: names the control.
    """
    chosen = current().part_of if current().part_of in slices else slices[0]
    key = f"w_part_of_{part}"
    if st.session_state.get(key) != chosen:
        st.session_state[key] = chosen
    st.selectbox("Slice", list(slices), key=key, width=260,
                 on_change=lambda: update(part_of=st.session_state[key]))  # fmt: skip
    return chosen


def _plan_row(result: Evaluation, item: Comparison, names: Sequence[str], overall: bool = True) -> dict[str, Any]:
    row: dict[str, Any] = {
        "plan": names[item.plan], "clean": item.clean, "changed": item.changed, "difference": item.difference.mean,
        "low": item.difference.low, "high": item.difference.high,
    }  # fmt: skip
    if not overall:
        return row | {"prompts": item.difference.n, "templates": item.difference.n_clusters}
    controls = result.control_effects(item.plan, item.metric)
    ends = f"{min(controls):+.3f} to {max(controls):+.3f}" if controls else "not yet" if result.controls_due else "none"
    return row | {"p": item.p, "p (Holm)": item.p_holm, "random heads": ends}


def _columns() -> dict[str, Any]:
    numbers = dict.fromkeys(("clean", "changed", "difference", "low", "high", "p", "p (Holm)"), _NUMBER)
    return {**numbers, "plan": st.column_config.TextColumn(width="medium")}


def interval_words(low: float, high: float) -> str:
    """An interval in a sentence; that there is none where there are too few templates."""
    return (
        f" (95 % interval {low:.3f} to {high:.3f})"
        if low == low and high == high
        else " (too few templates for an interval)"
    )
