"""`python -m mha_core evaluate`: plans on a task."""

from __future__ import annotations

import argparse
import sys
import textwrap

from mha_core.cli.terminal import (
    Bar,
    Commands,
    add_task_options,
    engine_of,
    last_of,
    model_and_task,
    natural,
    new_command,
    store_of,
    write,
)
from mha_core.evaluation import N_CONTROLS, Evaluation, evaluation_steps, plans_of
from mha_core.evaluation_report import as_text, to_csv, to_json
from mha_core.known_scores import described_tasks
from mha_core.report_html import report_html
from mha_core.task_files import LIMITS

_FILE = f"\n{'':19}".join(textwrap.wrap(f".csv, .jsonl or .json. {LIMITS}", 100))
HELP = f"""\
Switch heads off and measure a task: many prompts, each with a right and a wrong answer, overall and by slice. Beside
each plan stand as many other heads taken at random: only what they do not do speaks for these heads.

tasks
{described_tasks()}
  a file           {_FILE}

how to read it
  difference       changed minus clean, per prompt, averaged; its interval resamples templates, not prompts
  p, p (Holm)      how often flipped signs of whole templates give as much; corrected for several plans
  random heads     smallest to largest mean change of the random sets

examples
  python -m mha_core evaluate --model smollm2-135m-instruct --task indirect-object --off L1H3,L1H5 --kind zero,mean
  python -m mha_core evaluate --model all-minilm-l6-v2 --task similarity --off L5H3 --n 200 --csv result.csv
  python -m mha_core evaluate --model smollm2-135m-instruct --task mine.csv --json result.json
"""


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """The command and its options."""
    command = new_command(commands, "evaluate", "measure a task with heads switched off", HELP, run)
    add_task_options(command, 100)
    command.add_argument("--off", default="", metavar="HEADS",
                         help="such as L1H3,L1H5, counted from 0; none: clean only")  # fmt: skip
    command.add_argument("--kind", default="zero", help="zero, mean, uniform, or several with commas (default zero)")
    command.add_argument("--controls", type=natural, default=N_CONTROLS, help=f"sets of random heads ({N_CONTROLS})")


def run(chosen: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    plans = plans_of(chosen.off, chosen.kind) if chosen.off.strip() else ()
    model, task = model_and_task(chosen)
    bar = Bar("prompts")
    with engine_of(chosen, model) as engine:
        steps = evaluation_steps(model, task, plans, n=chosen.n, seed=chosen.seed, n_controls=chosen.controls,
                                 store=store_of(chosen), engine=engine, progress=bar)  # fmt: skip
        result, code = last_of(steps, bar)
    if result is not None:
        _show(chosen, result)
    if code:
        done = f"{result.n} of {result.total} prompts are measured" if result else "no prompt is measured whole"
        sys.stderr.write(f"Interrupted: {done}.\n")
    return code


def _show(chosen: argparse.Namespace, result: Evaluation) -> None:
    sys.stdout.write(as_text(result))
    write(chosen.json, lambda: to_json(result))
    write(chosen.csv, lambda: to_csv(result))
    write(chosen.html, lambda: report_html(result))
