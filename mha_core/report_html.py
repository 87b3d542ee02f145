"""Results on a task as one HTML file that needs nothing else.

Whatever comes from people (prompts, file names, slices) is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from mha_core.evaluation import Evaluation
from mha_core.evaluation_report import evaluation_provenance, evaluation_view
from mha_core.pruning import Pruning
from mha_core.report import Record, methods, pruning_provenance, pruning_rows, sweep_provenance, sweep_rows
from mha_core.task_sweep import TaskSweep

Figures = Sequence[tuple[str, go.Figure, str]]


_OPEN_ROWS = 30  # longer tables are folded: the pictures say it first


def report_html(
    evaluation: Evaluation | None = None, sweep: TaskSweep | None = None, pruning: Pruning | None = None,
    figures: Figures = (),
) -> bytes:  # fmt: skip
    """One HTML file that needs nothing else: methods, pictures (title, figure, caption), tables, provenance."""
    result = evaluation or sweep or pruning
    text = methods(evaluation, sweep, pruning)
    assert result is not None
    title = f"{result.task.title}: {result.details.title}"
    parts = [
        f"<h1>{_safe(title)}</h1>",
        f"<p>{_safe(result.task.says)}</p>",
        "<h2>Methods</h2>",
        f"<p>{_safe(text)}</p>",
    ]
    parts += _figure_parts(figures)
    if evaluation is not None:
        rows = evaluation_view(evaluation, prompts=False).meta["rows"]
        parts += ["<h2>Plans</h2>", _table(rows), *_flipped_part(evaluation)]
    if sweep is not None:
        parts += ["<h2>Every head</h2>", _table(_strongest_rows(sweep))]
    if pruning is not None:
        rows = [row for row in pruning_rows(pruning) if row["metric"] in pruning.metrics[:2]]
        parts += ["<h2>Pruning curves</h2>", _table(rows)]
    made: Record = {}
    for provenance in (
        evaluation_provenance(evaluation) if evaluation else {}, sweep_provenance(sweep) if sweep else {},
        pruning_provenance(pruning) if pruning else {},
    ):  # fmt: skip
        made |= {name: value for name, value in provenance.items() if name != "methods"}
    parts += ["<h2>Provenance</h2>", _table([{"what": name, "value": str(value)} for name, value in made.items()])]
    body = "\n".join(parts)
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{_safe(title)}</title>'
        f"<style>{_CSS}</style></head><body>\n{body}\n</body></html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


_CSS = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:"
    "#fff}table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}td,th{border-bottom:1px solid "
    "#ddd;padding:.2rem .6rem;text-align:left;vertical-align:top}th{position:sticky;top:0;background:#fff}"
    "figcaption{color:#555;font-size:.9rem}"
)


def _figure_parts(figures: Figures) -> list[str]:
    """Pictures; the first brings the drawing library, so that the file opens without a network."""
    parts = ["<h2>Pictures</h2>"] if figures else []
    for number, (title, figure, caption) in enumerate(figures):
        drawn = figure.to_html(full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False})
        parts.append(f"<h3>{_safe(title)}</h3><figure>{drawn}<figcaption>{_safe(caption)}</figcaption></figure>")
    return parts


def _strongest_rows(sweep: TaskSweep, top: int = 40) -> list[Record]:
    """The strongest heads by the metric that has the most to say: the second, where accuracy is the first."""
    metric = sweep.metrics[min(1, len(sweep.metrics) - 1)]
    rows = [row for row in sweep_rows(sweep, [metric]) if row["slice"] == "all"]
    return sorted(rows, key=lambda row: -abs(row["effect"] or 0))[:top]


def _flipped_part(evaluation: Evaluation) -> list[str]:
    rows = [
        {"plan": str(plan), "prompt": flip.question.prompt.text, "target": flip.question.prompt.target,
         "foil": flip.question.prompt.foil or "", "before": flip.before, "after": flip.after,
         "now": "right" if flip.right_now else "wrong"}
        for number, plan in enumerate(evaluation.plans) for flip in evaluation.flipped(number)
    ]  # fmt: skip
    return ["<h2>Prompts whose answer turned</h2>", _table(rows)] if rows else []


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{_safe(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in columns) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    if len(rows) <= _OPEN_ROWS:
        return table
    return f"<details><summary>{len(rows):,} rows</summary>{table}</details>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else _safe(str(value))


def _safe(text: str) -> str:
    return html.escape(text, quote=True)
