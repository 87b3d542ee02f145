"""`python -m mha_core prune`: more and more heads off, and what is left of a task."""

from __future__ import annotations

import argparse
import sys

from mha_core.cli.terminal import (
    Bar,
    Commands,
    add_task_options,
    add_way_options,
    engine_of,
    last_of,
    model_and_task,
    new_command,
    positive,
    store_of,
    write,
)
from mha_core.pruning import N_RANDOM, N_STEPS, ORDERS, Pruning, pruning_steps
from mha_core.report import pruning_csv, pruning_json
from mha_core.report_html import report_html
from mha_core.scores import METRICS
from mha_core.task_sweep import task_sweep
from mha_core.tasks import TaskError
from mha_core.text_table import table

HELP = f"""\
Switch off more and more heads together and measure what is left of a task: how many can go before it breaks, and for
which slice it breaks first. The order is found on half of the templates, the curve is measured on the other half.

orders
{chr(10).join(f"  {name:16} {says}" for name, says in ORDERS.items())}

how to read it
  breaks at        heads off at the first point where less than half of the clean score above chance is left

examples
  python -m mha_core prune --model smollm2-135m-instruct --task agreement
  python -m mha_core prune --model all-minilm-l6-v2 --task similarity --importance exact --orders ascending,random
"""


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """The command and its options."""
    command = new_command(commands, "prune", "how many heads can go before a task breaks", HELP, run)
    add_task_options(command, 100)
    command.add_argument("--orders", default="ascending,reverse,random", help="several with commas (see above)")
    command.add_argument("--importance", choices=("gradient", "exact"), default="gradient",
                         help="gradient: an estimate, quick; exact: a sweep over the task first")  # fmt: skip
    add_way_options(command)
    command.add_argument("--metric", help="what to print; default: accuracy")
    command.add_argument("--steps", type=positive, default=N_STEPS, help=f"points of a curve (default {N_STEPS})")
    command.add_argument("--random", type=positive, default=N_RANDOM, help=f"random orders (default {N_RANDOM})")


def run(chosen: argparse.Namespace) -> int:
    """Run the command; returns its exit code.

    Raises:
        TaskError: a metric there is not.
    """
    if chosen.metric is not None and chosen.metric not in METRICS:
        raise TaskError(f"metric is {chosen.metric!r}; it must be one of {', '.join(METRICS)}.")
    orders = tuple(dict.fromkeys(name.strip() for name in chosen.orders.split(",") if name.strip()))
    model, task = model_and_task(chosen)
    store, sweep = store_of(chosen), None
    common = {"kind": chosen.kind, "site": chosen.site, "n": chosen.n, "seed": chosen.seed, "store": store}
    with engine_of(chosen, model) as engine:
        if chosen.importance == "exact":
            before = Bar("head × prompt runs")
            sweep = task_sweep(model, task, engine=engine, progress=before, **common)
            before.clear()
        bar = Bar("runs")
        steps = pruning_steps(model, task, orders=orders, importance=sweep, n_steps=chosen.steps,
                              n_random=chosen.random, engine=engine, progress=bar, **common)  # fmt: skip
        result, code = last_of(steps, bar)
    if result is not None:
        sys.stdout.write(pruning_text(result, chosen.metric or "accuracy"))
        write(chosen.json, lambda: pruning_json(result))
        write(chosen.csv, lambda: pruning_csv(result))
        write(chosen.html, lambda: report_html(sweep=sweep, pruning=result))
    if code:
        done = f"{result.n_points} of {result.total} points are measured" if result else "no point is measured"
        sys.stderr.write(f"Interrupted: {done}.\n")
    return code


def pruning_text(result: Pruning, metric: str) -> str:
    """What a terminal shows of pruning curves.

    Raises:
        TaskError: a metric that this task does not have.
    """
    if metric not in result.metrics:
        raise TaskError(f"metric is {metric!r}; this task has {', '.join(result.metrics)}.")
    lines = [
        f"{result.task.title} · {result.details.title} · {len(result.questions)} prompts, seed {result.seed}",
        f"{metric}, {result.kind}: {METRICS[metric]}",
        f"order by: {result.importance}",
    ]
    names = [curve.order + (f" {curve.draw + 1}" if curve.order == "random" else "") for curve in result.curves]
    rows = [("heads off", *names)]
    for point, count in enumerate(result.counts):
        cells = [f"{result.score(c, point, metric).mean:.3f}" if point < len(c.rows) else "" for c in result.curves]
        rows.append((str(count), *cells))
    rows.append(("breaks at", *(_count(result.breaks_at(curve, metric)) for curve in result.curves)))
    for name, values in result.slices().items():
        for value, places in sorted(values.items()):
            broken = [_count(result.breaks_at(curve, metric, places)) for curve in result.curves]
            rows.append((f"  {name}: {value}", *broken))
    return "\n".join([*lines, *table(rows)]) + "\n"


def _count(number: int | None) -> str:
    return "–" if number is None else str(number)
