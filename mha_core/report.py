"""Results on a task to take away: a paragraph for a paper, and tables with provenance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha_core.evaluation import Evaluation
from mha_core.export import to_csv, to_json
from mha_core.paired import LEVEL, N_BOOTSTRAP, N_FLIPS
from mha_core.pruning import ORDERS, Pruning
from mha_core.scores import METRICS
from mha_core.task_maps import head_map, held_out, slice_effects
from mha_core.task_sweep import TaskSweep
from mha_core.view import View
from mha_core.views import model_provenance

Record = dict[str, Any]
KIND_WORDS = {
    "zero": "setting its output z to zero",
    "mean": "replacing its output z by its mean over the positions of the reference sentences",
}
_INTERVAL = (
    f"Intervals are {LEVEL:.0%} percentile bootstrap intervals over templates ({N_BOOTSTRAP:,} resamples of whole "
    "templates, since prompts of one template are alike); p-values are two-sided, from flipping the signs of whole "
    f"templates (all ways, or {N_FLIPS:,} drawn at random)"
)


def methods(
    evaluation: Evaluation | None = None, sweep: TaskSweep | None = None, pruning: Pruning | None = None
) -> str:  # fmt: skip
    """What was done, as a paragraph that can go into a paper. Every part that is given is described.

    Raises:
        ValueError: nothing was given.
    """
    results = [item for item in (evaluation, sweep, pruning) if item is not None]
    if not results:
        raise ValueError("There is no result to describe.")
    sentences = [_model_sentence(results[0]), _task_sentence(results[0])]
    sentences += _evaluation_sentences(evaluation) + _sweep_sentences(sweep) + _pruning_sentences(pruning)
    versions = ", ".join(f"{name} {version}" for name, version in _versions(results[0]).items())
    sentences.append(f"Computed with Headscope ({versions}); layers and heads are counted from 0.")
    return " ".join(sentences)


def _model_sentence(result: Evaluation | TaskSweep | Pruning) -> str:
    details = result.details
    file = f" (file {details.file}, SHA-256 {details.sha256[:16]}…)" if details.sha256 else ""
    return f"We measured {details.title}{file}."


def _task_sentence(result: Evaluation | TaskSweep | Pruning) -> str:
    task, drawn = result.task, f", drawn with seed {result.task.seed}" if result.task.seed is not None else ""
    refused = f" {len(result.refused)} prompts could not be given to this model." if result.refused else ""
    return (
        f"The task “{task.title}” has {len(task.prompts):,} prompts from {len(task.templates):,} templates{drawn}; "
        f"prompts were sampled evenly over templates with seed {result.seed}.{refused}"
    )


def _evaluation_sentences(result: Evaluation | None) -> list[str]:
    if result is None:
        return []
    plans = "; ".join(str(plan) for plan in result.plans) or "nothing"
    control = ""
    if any(result.controls):
        control = (
            f" As a control, {max(map(len, result.controls))} sets of as many other heads of the same sites, drawn at "
            "random, were switched off in the same way."
        )
    return [
        f"On {_some(result.n, result.total)} prompts we compared the unchanged model with it under these changes: "
        f"{plans}. Differences are paired per prompt. {_INTERVAL}, corrected for the number of plans (Holm).{control}"
    ]


def _sweep_sentences(sweep: TaskSweep | None) -> list[str]:
    if sweep is None:
        return []
    return [
        f"Each of the {len(sweep.heads)} heads of “{sweep.site}” was switched off alone by {KIND_WORDS[sweep.kind]} "
        f"before the output projection, at every position, exactly (one run per head and prompt, not an estimate), on "
        f"{_some(sweep.n, sweep.total)} prompts. {_INTERVAL}, corrected for all heads by the largest studentised "
        "statistic of each flip (max-T, Westfall and Young 1993)."
    ]


def _pruning_sentences(pruning: Pruning | None) -> list[str]:
    if pruning is None:
        return []
    orders = "; ".join(ORDERS[order] for order in dict.fromkeys(curve.order for curve in pruning.curves))
    return [
        f"For pruning curves, up to {pruning.counts[-1]} heads of “{pruning.site}” were switched off together by "
        f"{KIND_WORDS[pruning.kind]}, in these orders: {orders}. Importance is the {pruning.importance}; the curves "
        f"are measured on {len(pruning.questions)} prompts of the remaining templates."
    ]


def _some(n: int, total: int) -> str:
    return f"all {total:,} sampled" if n == total else f"the first {n:,} of {total:,} sampled"


def _versions(result: Evaluation | TaskSweep | Pruning) -> dict[str, str]:
    return dict(model_provenance(result.model_name, result.details)["versions"])


def sweep_provenance(sweep: TaskSweep) -> Record:
    """What made the numbers of a sweep over a task."""
    return model_provenance(sweep.model_name, sweep.details) | {
        "task": sweep.task.name, "task_says": sweep.task.says, "task_seed": sweep.task.seed, "prompts": sweep.n,
        "prompts_asked_for": sweep.total, "templates": len(set(sweep.clusters)), "refused": len(sweep.refused),
        "seed": sweep.seed, "site": sweep.site, "kind": sweep.kind, "reference": sweep.reference,
        "method": "exact, one head at a time", "interval": f"{LEVEL:.0%} bootstrap over templates, {N_BOOTSTRAP} draws",
        "p_adjusted": "max-T over heads, signs of templates flipped", "seconds": round(sweep.seconds, 2),
        "methods": methods(sweep=sweep),
    }  # fmt: skip


def sweep_rows(sweep: TaskSweep, metrics: Sequence[str] | None = None) -> list[Record]:
    """A row per metric and head: mean effect with interval and p-values, then a row per slice and head."""
    rows: list[Record] = []
    for metric in sweep.metrics if metrics is None else metrics:
        found = head_map(sweep, metric)
        columns = (found.mean, found.low, found.high, found.p, found.p_adjusted)
        for place, head in enumerate(sweep.heads):
            mean, low, high, p, adjusted = (_number(column.ravel()[place]) for column in columns)
            rows.append({"metric": metric, "slice": "all", "value": "", "head": str(head), "layer": head.layer,
                         "number": head.head, "prompts": found.n, "clean": _number(found.clean), "effect": mean,
                         "low": low, "high": high, "p": p, "p_max_t": adjusted})  # fmt: skip
        for part in slice_effects(sweep, metric):
            for place, head in enumerate(sweep.heads):
                rows.append({"metric": metric, "slice": part.slice, "value": part.value, "head": str(head),
                             "layer": head.layer, "number": head.head, "prompts": part.n,
                             "clean": _number(part.clean), "effect": _number(part.mean[place]),
                             "low": _number(part.low[place]), "high": _number(part.high[place])})  # fmt: skip
    return rows


def sweep_view(sweep: TaskSweep, prompts: bool = True) -> View:
    """A sweep as one record. prompts: with the scores of every prompt and head."""
    meta: Record = {"rows": sweep_rows(sweep), "metrics": {name: METRICS[name] for name in sweep.metrics}}
    meta["held_out"] = [
        {"metric": metric, "head": str(item.head), "found": _number(item.found), "again": _number(item.again.mean),
         "low": _number(item.again.low), "high": _number(item.again.high)}
        for metric in sweep.metrics[:2] for item in held_out(sweep, metric)
    ]  # fmt: skip
    if prompts:
        meta["prompts"] = [
            {"text": q.prompt.text, "target": q.prompt.target, "foil": q.prompt.foil, "template": q.prompt.template,
             "slices": dict(q.prompt.slices), "clean": {k: _number(v) for k, v in r.clean.items()},
             "heads": {name: [_number(v) for v in values] for name, values in r.heads.items()}}
            for q, r in zip(sweep.measured, sweep.results, strict=True)
        ]  # fmt: skip
        meta["heads"] = [str(head) for head in sweep.heads]
        meta["refused"] = [vars(item) for item in sweep.refused]
    return View("table", {}, meta, sweep_provenance(sweep))


def sweep_csv(sweep: TaskSweep) -> bytes:
    """A row per metric, slice and head, after lines of provenance."""
    return to_csv(sweep_view(sweep, prompts=False))


def sweep_json(sweep: TaskSweep) -> bytes:
    """Rows, held-out halves and the scores of every prompt and head, with provenance."""
    return to_json(sweep_view(sweep))


def pruning_provenance(pruning: Pruning) -> Record:
    """What made the numbers of pruning curves."""
    return model_provenance(pruning.model_name, pruning.details) | {
        "task": pruning.task.name, "task_says": pruning.task.says, "task_seed": pruning.task.seed,
        "prompts": len(pruning.questions), "refused": len(pruning.refused), "seed": pruning.seed,
        "site": pruning.site, "kind": pruning.kind, "importance": pruning.importance,
        "points": f"{pruning.n_points} of {pruning.total}", "interval": f"{LEVEL:.0%} bootstrap over templates",
        "seconds": round(pruning.seconds, 2), "methods": methods(pruning=pruning),
    }  # fmt: skip


def pruning_rows(pruning: Pruning) -> list[Record]:
    """A row per curve, point, metric and slice."""
    groups: list[tuple[str, str, list[int] | None]] = [("all", "", None)]
    groups += [(name, value, places) for name, values in pruning.slices().items() for value, places in values.items()]
    rows: list[Record] = []
    for curve in pruning.curves:
        for metric in pruning.metrics:
            for name, value, places in groups:
                broken = pruning.breaks_at(curve, metric, places)
                for point in range(len(curve.rows)):
                    score = pruning.score(curve, point, metric, places)
                    rows.append({"order": curve.order, "draw": curve.draw, "metric": metric, "slice": name,
                                 "value": value, "heads_off": pruning.counts[point], "prompts": score.n,
                                 "score": _number(score.mean), "low": _number(score.low),
                                 "high": _number(score.high), "breaks_at": broken})  # fmt: skip
    return rows


def pruning_view(pruning: Pruning) -> View:
    """Pruning curves as one record, with the order in which heads go."""
    orders = [
        {"order": curve.order, "draw": curve.draw, "removed": [str(head) for head in curve.removed]}
        for curve in pruning.curves
    ]
    return View("table", {}, {"rows": pruning_rows(pruning), "orders": orders}, pruning_provenance(pruning))


def pruning_csv(pruning: Pruning) -> bytes:
    """A row per curve, point, metric and slice, after lines of provenance."""
    return to_csv(pruning_view(pruning))


def pruning_json(pruning: Pruning) -> bytes:
    """The same as an object, with the order in which heads go."""
    return to_json(pruning_view(pruning))


def _number(value: float | np.floating[Any]) -> float | None:
    return float(f"{float(value):.7g}") if math.isfinite(value) else None
