"""An evaluation as text for a terminal, and as one record whose numbers `export.py` writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mha_core.evaluation import Comparison, Evaluation
from mha_core.export import to_csv as view_csv
from mha_core.export import to_json as view_json
from mha_core.paired import LEVEL, MIN_CLUSTERS, N_BOOTSTRAP, N_FLIPS
from mha_core.scores import METRICS
from mha_core.text_table import table
from mha_core.view import View
from mha_core.views import model_provenance

MANY_VALUES, SHOWN_VALUES = 10, 3  # a terminal shows the ends of a slice with more values; files hold all of them


def evaluation_view(result: Evaluation, prompts: bool = True) -> View:
    """Rows of all comparisons (plans, slices, random heads); prompts: the scores of every prompt too."""
    rows = [_row(result, item) for metric in result.metrics for item in result.compared(metric)]
    rows += [_row(result, item) for metric in result.metrics for item in result.by_slice(metric)]
    rows += [_clean_row(result, metric) for metric in result.metrics] if not result.plans else []
    rows += _control_rows(result)
    meta: dict[str, Any] = {"rows": rows, "metrics": {name: METRICS[name] for name in result.metrics}}
    if prompts:
        meta["prompts"] = _prompt_rows(result)
        meta["refused"] = [vars(item) for item in result.refused]
        meta["plans"] = [plan.to_json() for plan in result.plans]
    return View("table", {}, meta, evaluation_provenance(result))


def to_csv(result: Evaluation) -> bytes:
    """One row per plan, metric and slice after lines of provenance; see `export.export_numbers`."""
    return view_csv(evaluation_view(result, prompts=False))


def to_json(result: Evaluation) -> bytes:
    """Comparisons, every prompt's scores, refused prompts and plans, with provenance. What is missing is null."""
    return view_json(evaluation_view(result))


def evaluation_provenance(result: Evaluation) -> dict[str, Any]:
    """What made the numbers: model and file hash, task, plans, seed, statistics, versions."""
    return model_provenance(result.model_name, result.details) | {
        "task": result.task.name,
        "task_says": result.task.says,
        "task_seed": result.task.seed,
        "prompts": result.n,
        "prompts_asked_for": result.total,
        "templates": len(set(result.clusters)),
        "refused": len(result.refused),
        "seed": result.seed,
        "interventions": [str(plan) for plan in result.plans],
        "interval": f"{LEVEL:.0%} bootstrap over templates, {N_BOOTSTRAP} draws",
        "p": f"two-sided, signs of templates flipped, at most {N_FLIPS + 1} ways; Holm over plans",
        "seconds": round(result.seconds, 2),
    }


def _row(result: Evaluation, item: Comparison) -> dict[str, Any]:
    return {
        "plan": str(result.plans[item.plan]), "metric": item.metric, "slice": item.slice or "all", "value": item.value,
        "prompts": item.difference.n, "templates": item.difference.n_clusters, "clean": _number(item.clean),
        "changed": _number(item.changed), "difference": _number(item.difference.mean),
        "low": _number(item.difference.low), "high": _number(item.difference.high), "p": _number(item.p),
        "p_holm": _number(item.p_holm),
    }  # fmt: skip


def _clean_row(result: Evaluation, metric: str) -> dict[str, Any]:
    score = result.clean_score(metric)
    return {
        "plan": "nothing changed", "metric": metric, "slice": "all", "value": "", "prompts": score.n,
        "templates": score.n_clusters, "clean": _number(score.mean), "low": _number(score.low),
        "high": _number(score.high),
    }  # fmt: skip


def _control_rows(result: Evaluation) -> list[dict[str, Any]]:
    return [
        {"plan": f"random heads instead of {result.plans[number]}: {plan}", "metric": metric, "slice": "all",
         "value": "", "prompts": result.n, "difference": _number(effect)}
        for number, plans in enumerate(result.control_plans)
        for metric in result.metrics
        for plan, effect in zip(plans, result.control_effects(number, metric), strict=True)
    ]  # fmt: skip


def _prompt_rows(result: Evaluation) -> list[dict[str, Any]]:
    return [
        {"text": q.prompt.text, "target": q.prompt.target, "foil": q.prompt.foil, "template": q.prompt.template,
         "slices": dict(q.prompt.slices), "clean": _numbers(result.clean[i]),
         "changed": [_numbers(rows[i]) for rows in result.changed]}
        for i, q in enumerate(result.questions[: result.n])
    ]  # fmt: skip


def _numbers(row: dict[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in row.items()}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.7g}")


def as_text(result: Evaluation) -> str:
    """What a terminal shows: the clean score, every plan beside random heads, and the slices."""
    score = result.clean_score()
    lines = [
        f"{result.task.title} · {result.details.title} · {result.n} of {result.total} prompts, "
        f"{len(set(result.clusters))} templates, seed {result.seed}",
        f"Clean accuracy {score.mean:.3f} {_ends(score.low, score.high)}.",
    ]
    lines += _refused_lines(result)
    for number, plan in enumerate(result.plans):
        lines += ["", str(plan)]
        rows = [_cells(result.compared(metric)[number], metric) for metric in result.metrics]
        header = ("", "clean", "changed", "difference", "95 % interval", "p", "p (Holm)", "random heads")
        absent = "not yet" if result.controls_due else "none"
        controls = [_controls(result.control_effects(number, metric), absent) for metric in result.metrics]
        lines += table([header, *((*row, control) for row, control in zip(rows, controls, strict=True))])
        metric = result.metrics[1]
        body = _slice_rows([item for item in result.by_slice(metric) if item.plan == number])
        if body:
            lines += ["", *table([(f"{metric} by slice", "prompts", "clean", "changed", "difference", "95 % interval"),
                                   *body])]  # fmt: skip
    return "\n".join(lines) + "\n"


def _slice_rows(items: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """A row per value of a slice; of a slice with many values those that the plan changes most and least."""
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(item.slice for item in items):
        values = [item for item in items if item.slice == name]
        cut = len(values) > MANY_VALUES
        if cut:
            values.sort(key=lambda item: item.difference.mean)
        for place, item in enumerate(values):
            if cut and place == SHOWN_VALUES:
                rows.append((f"… {len(values) - 2 * SHOWN_VALUES} values of {name} between", *[""] * 5))
            if not cut or place < SHOWN_VALUES or place >= len(values) - SHOWN_VALUES:
                rows.append((f"{name}: {item.value}", str(item.difference.n), *_cells(item, "")[1:5]))
    return rows


def _refused_lines(result: Evaluation) -> list[str]:
    if not result.refused:
        return []
    first = result.refused[0]
    return [f"{len(result.refused)} prompts cannot be used; the first, {first.text[:60]!r}: {first.reason}"]


def _cells(item: Comparison, name: str) -> tuple[str, ...]:
    found = item.difference
    return (name, f"{item.clean:.3f}", f"{item.changed:.3f}", f"{found.mean:+.3f}", _ends(found.low, found.high),
            _p(item.p), _p(item.p_holm))  # fmt: skip


def _ends(low: float, high: float) -> str:
    return f"[under {MIN_CLUSTERS} templates]" if math.isnan(low) else f"[{low:+.3f}, {high:+.3f}]"


def _p(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def _controls(effects: Sequence[float], absent: str) -> str:
    return f"{min(effects):+.3f} to {max(effects):+.3f} ({len(effects)} sets)" if effects else absent
