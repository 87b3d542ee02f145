"""`python -m mha_core sweep`: every head, one at a time, on one text or on a task."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

from mha_core.cli.terminal import (
    Bar,
    Commands,
    add_task_options,
    add_way_options,
    engine_of,
    last_of,
    load,
    model_and_task,
    new_command,
    positive,
    store_of,
    write,
)
from mha_core.export import export_numbers
from mha_core.model import Model
from mha_core.outcomes import METRICS as TEXT_METRICS
from mha_core.paired import MIN_CLUSTERS
from mha_core.report import sweep_csv, sweep_json
from mha_core.report_html import report_html
from mha_core.scores import METRICS as TASK_METRICS
from mha_core.sweep import HeadSweep, sweep_steps
from mha_core.task_maps import head_map, held_out
from mha_core.task_sweep import TaskSweep, task_sweep_steps
from mha_core.tasks import TaskError
from mha_core.text_table import table
from mha_core.view import View
from mha_core.views import model_provenance

HELP = f"""\
Switch off every head, one at a time, exactly, and print the heads by the size of their effect: on one text (--text), or
on the prompts of a task (--task), with intervals. A run over a task that is stopped goes on where it was.

metrics of a text
{chr(10).join(f"  {name:16} {says}" for name, says in TEXT_METRICS.items())}

metrics of a task
{chr(10).join(f"  {name:16} {says}" for name, says in TASK_METRICS.items() if name not in ("loss", "cosine"))}

how to read the heads of a task
  effect           score without the head minus clean score, averaged; its interval resamples templates, not prompts
  p (max-T)        how often flipped signs of whole templates give as much for any head: corrected for all heads
  held out         heads that are strongest on half of the templates, measured again on the other half

examples
  python -m mha_core sweep --model smollm2-135m-instruct --text "The keys to the old wooden cabinet in the hallway"
  python -m mha_core sweep --model smollm2-135m-instruct --text "When Mary and John went to the store, John gave a \\
drink to" --answers " Mary" " John" --csv heads.csv
  python -m mha_core sweep --model smollm2-135m-instruct --task indirect-object --n 100 --csv heads.csv
"""


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """The command and its options."""
    command = new_command(commands, "sweep", "every head's effect on a text or a task", HELP, run)
    command.add_argument("--text", help="one text")
    add_task_options(command, 100, required=False)
    command.add_argument("--metric", help="default: what suits the model and --answers; logit_diff for a task of words")
    command.add_argument("--answers", nargs=2, metavar=("RIGHT", "WRONG"), help="two words of one token, for a text")
    add_way_options(command)
    command.add_argument("--top", type=positive, default=10, help="heads to print (default 10)")


def run(chosen: argparse.Namespace) -> int:
    """Run the command; returns its exit code.

    Raises:
        TaskError: neither or both of a text and a task, or options that do not belong together.
    """
    if (chosen.text is None) == (chosen.task is None):
        raise TaskError("Give either --text for one text, or --task for a task.")
    return _on_text(chosen) if chosen.task is None else _on_task(chosen)


def _on_text(chosen: argparse.Namespace) -> int:
    if chosen.html is not None:
        raise TaskError("--html is a report on a task; of one text there are --json and --csv.")
    if chosen.engine != "local":
        raise TaskError("--engine is for tasks; one text is swept by this process.")
    model = load(chosen)
    bar = Bar("heads")
    answers = tuple(chosen.answers) if chosen.answers else None
    steps = sweep_steps(model, chosen.text, metric=chosen.metric, kind=chosen.kind, site=chosen.site, answers=answers)
    result, code = last_of(_told(steps, bar), bar)
    if result is not None:
        _show_text(chosen, model, result)
    return code


def _told(steps: Iterator[HeadSweep], bar: Bar) -> Iterator[HeadSweep]:
    for step in steps:
        bar(step.done, step.total)
        yield step


def _show_text(chosen: argparse.Namespace, model: Model, result: HeadSweep) -> None:
    out = [f"{result.metric}, {result.kind}: {TEXT_METRICS[result.metric]}",
           f"{result.done} of {result.total} heads, {result.method}; clean: {result.baseline:.4f}"]  # fmt: skip
    out += [f"  {head!s:10} {value:+.4f}" for head, value in result.ranking()[: chosen.top]]
    sys.stdout.write("\n".join(out) + "\n")
    made = model_provenance(model.name, model.details) | {
        "text": chosen.text, "metric": result.metric, "kind": result.kind, "site": result.site,
        "answers": chosen.answers, "clean": result.baseline, "method": result.method, "heads": result.done,
        "seconds": round(result.seconds, 2),
    }  # fmt: skip
    view = View("overview", {"values": result.effects}, {"values_label": result.metric}, made)
    write(chosen.json, lambda: export_numbers(view, "json"))
    write(chosen.csv, lambda: export_numbers(view, "csv"))


def _on_task(chosen: argparse.Namespace) -> int:
    if chosen.answers:
        raise TaskError("--answers belongs to --text; each prompt of a task has its own.")
    if chosen.metric is not None and chosen.metric not in TASK_METRICS:
        raise TaskError(f"metric is {chosen.metric!r}; of a task it must be one of {', '.join(TASK_METRICS)}.")
    model, task = model_and_task(chosen)
    bar = Bar("head × prompt runs")
    with engine_of(chosen, model) as engine:
        steps = task_sweep_steps(model, task, kind=chosen.kind, site=chosen.site, n=chosen.n, seed=chosen.seed,
                                 store=store_of(chosen), engine=engine, progress=bar)  # fmt: skip
        result, code = last_of(steps, bar)
    if result is not None:
        sys.stdout.write(task_text(result, chosen.metric, chosen.top))
        write(chosen.json, lambda: sweep_json(result))
        write(chosen.csv, lambda: sweep_csv(result))
        write(chosen.html, lambda: report_html(sweep=result))
    if code:
        done = f"{result.n} of {result.total} prompts are measured" if result else "no prompt is measured whole"
        kept = "" if chosen.no_cache else "; the same command goes on from there"
        sys.stderr.write(f"Interrupted: {done}{kept}.\n")
    return code


def task_text(sweep: TaskSweep, metric: str | None, top: int) -> str:
    """What a terminal shows of a sweep over a task.

    Raises:
        TaskError: a metric that this task does not have.
    """
    metric = metric or sweep.metrics[min(1, len(sweep.metrics) - 1)]
    if metric not in sweep.metrics:
        raise TaskError(f"metric is {metric!r}; this task has {', '.join(sweep.metrics)}.")
    found = head_map(sweep, metric)
    speed = f", {sweep.runs_per_second:.0f} head × prompt runs a second" if sweep.runs_per_second else ", from disk"
    lines = [
        f"{sweep.task.title} · {sweep.details.title} · {sweep.n} of {sweep.total} prompts, {found.n_clusters} "
        f"templates, seed {sweep.seed}",
        f"{metric}, {sweep.kind}: {TASK_METRICS[metric]}",
        f"{len(sweep.heads)} heads of {sweep.site}, exact{speed}; clean: {found.clean:.4f}",
    ]
    rows = [("head", "effect", "95 % interval", "p", "p (max-T)")]
    for head, place in found.ranking(sweep.heads, top):
        mean, low, high, p, adjusted = (
            float(values.ravel()[place]) for values in (found.mean, found.low, found.high, found.p, found.p_adjusted)
        )
        rows.append((str(head), f"{mean:+.4f}", _ends(low, high), f"{p:.4f}", f"{adjusted:.4f}"))
    lines += table(rows)
    again = [
        (str(item.head), f"{item.found:+.4f}", f"{item.again.mean:+.4f}", _ends(item.again.low, item.again.high))
        for item in held_out(sweep, metric, min(5, top))
    ]
    if again:
        lines += ["", *table([("held out", "on one half", "on the other", "95 % interval"), *again])]
    return "\n".join(lines) + "\n"


def _ends(low: float, high: float) -> str:
    return f"[under {MIN_CLUSTERS} templates]" if math.isnan(low) else f"[{low:+.4f}, {high:+.4f}]"
