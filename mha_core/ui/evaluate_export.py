"""Taking the Evaluate page's results away: tables, one HTML report, and a paragraph on what was done."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import streamlit as st

from mha_core import evaluation_report, report
from mha_core.evaluation import Evaluation
from mha_core.pruning import Pruning
from mha_core.report_html import report_html
from mha_core.task_figures import map_figure, plans_figure, pruning_figure, pruning_slices_figure, slices_figure
from mha_core.task_maps import head_map, slice_effects
from mha_core.task_sweep import TaskSweep
from mha_core.ui.evaluate_maps import layer_labels
from mha_core.ui.evaluate_pruning import pruning_metric
from mha_core.ui.evaluate_results import metric_of
from mha_core.ui.evaluate_sweep import slice_grid, sweep_metric

Figures = list[tuple[str, go.Figure, str]]


def export_card(
    evaluation: Evaluation | None, names: Sequence[str], sweep: TaskSweep | None, pruning: Pruning | None
) -> None:  # fmt: skip
    """Downloads of all that is measured, each with what made it."""
    result = evaluation or sweep or pruning
    if result is None:
        return
    with st.container(border=True, key="evaluate_export"):
        st.subheader("Take it away", anchor=False)
        st.caption("Each file says what made it: model and file hash, task, seed, plans, statistics, versions.")
        stem = f"headscope-{re.sub(r'[^A-Za-z0-9-]+', '-', result.task.name).strip('-') or 'task'}"
        with st.container(horizontal=True):
            if evaluation is not None:
                _pair("Plans", f"{stem}-plans", lambda: evaluation_report.to_csv(evaluation),
                      lambda: evaluation_report.to_json(evaluation))  # fmt: skip
            if sweep is not None:
                _pair("Heads", f"{stem}-heads", lambda: report.sweep_csv(sweep), lambda: report.sweep_json(sweep))
            if pruning is not None:
                _pair("Pruning", f"{stem}-pruning", lambda: report.pruning_csv(pruning),
                      lambda: report.pruning_json(pruning))  # fmt: skip

            def whole() -> bytes:
                return report_html(evaluation, sweep, pruning, _figures(evaluation, names, sweep, pruning))

            st.download_button("HTML report", whole, f"{stem}.html", "text/html", on_click="ignore", key="report",
                               icon=":material/description:", help="Opens offline.")  # fmt: skip
        with st.expander("Methods, as a paragraph for a paper"):
            st.text(report.methods(evaluation, sweep, pruning))


def _pair(name: str, stem: str, csv: Callable[[], bytes], json: Callable[[], bytes]) -> None:
    st.download_button(f"{name}, CSV", csv, f"{stem}.csv", "text/csv", on_click="ignore", key=f"csv_{name}")
    st.download_button(f"{name}, JSON", json, f"{stem}.json", "application/json", on_click="ignore", key=f"json_{name}")


def _figures(
    evaluation: Evaluation | None, names: Sequence[str], sweep: TaskSweep | None, pruning: Pruning | None
) -> Figures:  # fmt: skip
    """The page's pictures, for paper: light."""
    found: Figures = []
    if evaluation is not None and evaluation.plans:
        metric = metric_of(evaluation.metrics)
        found.append(("Plans", plans_figure(evaluation, metric, names, evaluation.compared(metric)),
                      "Change with its 95 % interval over templates; small marks: random heads."))  # fmt: skip
        compared = evaluation.by_slice(metric)
        for name in evaluation.slices():
            part = [item for item in compared if item.slice == name]
            found.append((f"Plans by {name}", slices_figure(part, metric, names), "In brackets: prompts."))
    if sweep is not None:
        metric = sweep_metric(sweep)
        mapped = head_map(sweep, metric)
        rows, columns = layer_labels(sweep.shape)
        found.append(("Every head", map_figure(mapped.mean, rows, columns, metric),
                      "Mean change of the score with each head switched off alone."))  # fmt: skip
        grid, slice_names, places = slice_grid(sweep, mapped, slice_effects(sweep, metric))
        if slice_names:
            heads = [str(sweep.heads[place]) for place in places]
            found.append(("Heads by slice", map_figure(grid, slice_names, heads, metric, axes=("slice", "head")),
                          "The strongest heads."))  # fmt: skip
    if pruning is not None:
        metric = pruning_metric(pruning)
        found.append(("Pruning curves", pruning_figure(pruning, metric), f"Importance: {pruning.importance}."))
        for name, groups in pruning.slices().items():
            order = pruning.curves[0].order
            found.append((f"Pruning by {name}", pruning_slices_figure(pruning, order, metric, groups), order))
    return found
