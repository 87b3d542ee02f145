"""Headscope without a browser: `python -m mha_core evaluate …` and `python -m mha_core sweep …`.

Exit codes: 0 done, 2 wrong use (with a sentence), 130 interrupted (what was measured by then is written).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import transformers

from mha_core.catalogue import ModelError
from mha_core.evaluation import N_CONTROLS, Evaluation, evaluation_steps, plans_of
from mha_core.evaluation_report import as_text, to_csv, to_json
from mha_core.export import export_numbers
from mha_core.interventions import InterventionError
from mha_core.known_scores import described_tasks
from mha_core.loading import load_model
from mha_core.model import Model
from mha_core.outcomes import METRICS
from mha_core.sweep import HeadSweep, sweep_steps
from mha_core.task_files import LIMITS, OwnTask, read_task
from mha_core.task_sets import built_in, task_names
from mha_core.tasks import TaskError
from mha_core.tokens import InputError
from mha_core.view import View
from mha_core.views import model_provenance

WRONG_USE, INTERRUPTED = 2, 130

_EVALUATE = f"""\
Switch heads off and measure a task: many prompts, each with a right and a wrong answer, overall and by slice. Beside
each plan stand as many other heads taken at random: only what they do not do speaks for these heads.

tasks
{described_tasks()}
  a file           .csv, .jsonl or .json. {LIMITS}

how to read it
  difference       changed minus clean, per prompt, averaged; its interval resamples templates, not prompts
  p, p (Holm)      how often flipped signs of whole templates give as much; corrected for several plans
  random heads     smallest to largest mean change of the random sets

examples
  python -m mha_core evaluate --model smollm2-135m-instruct --task indirect-object --off L1H3,L1H5 --kind zero,mean
  python -m mha_core evaluate --model all-minilm-l6-v2 --task similarity --off L5H3 --n 200 --csv result.csv
  python -m mha_core evaluate --model smollm2-135m-instruct --task mine.csv --json result.json
"""
_SWEEP = f"""\
Switch off every head, one at a time, exactly, and print the heads by the size of their effect on one text.

metrics
{chr(10).join(f"  {name:16} {says}" for name, says in METRICS.items())}

examples
  python -m mha_core sweep --model smollm2-135m-instruct --text "The keys to the old wooden cabinet in the hallway"
  python -m mha_core sweep --model smollm2-135m-instruct --text "When Mary and John went to the store, John gave a \\
drink to" --answers " Mary" " John" --csv heads.csv
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code. arguments: None: those of the process."""
    chosen = _parser().parse_args(arguments)
    transformers.utils.logging.disable_progress_bar()  # a terminal gets ours, a log gets none
    try:
        for path in (chosen.json, chosen.csv):
            _require_folder(path)
        return int(chosen.run(chosen))
    except (ModelError, InputError, InterventionError, TaskError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_USE
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mha_core", description="Headscope without a browser.",
                                     epilog="Exit codes: 0 done, 2 wrong use, 130 interrupted.")  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="command")
    raw = argparse.RawDescriptionHelpFormatter
    one = commands.add_parser("evaluate", help="measure a task with heads switched off", description=_EVALUATE,
                              formatter_class=raw)  # fmt: skip
    one.set_defaults(run=_evaluate)
    one.add_argument("--task", required=True, help=f"{', '.join(task_names())}, or a .csv or .jsonl file")
    one.add_argument("--off", default="", metavar="HEADS", help="such as L1H3,L1H5, counted from 0; none: clean only")
    one.add_argument("--kind", default="zero", help="zero, mean, uniform, or several with commas (default zero)")
    one.add_argument("--n", type=_positive, default=100, help="prompts (default 100)")
    one.add_argument("--controls", type=_natural, default=N_CONTROLS, help=f"sets of random heads ({N_CONTROLS})")
    one.add_argument("--seed", type=_natural, default=0, help="of prompts, random heads and resampling (default 0)")
    two = commands.add_parser("sweep", help="every head's effect on one text", description=_SWEEP, formatter_class=raw)
    two.set_defaults(run=_sweep)
    two.add_argument("--text", required=True)
    two.add_argument("--metric", choices=tuple(METRICS), help="default: what suits the model and --answers")
    two.add_argument("--answers", nargs=2, metavar=("RIGHT", "WRONG"), help="two words of one token, for logit_diff")
    two.add_argument("--kind", choices=("zero", "mean"), default="zero")
    two.add_argument("--top", type=_positive, default=10, help="heads to print (default 10)")
    for command in (one, two):
        command.add_argument("--model", required=True, help="a packaged model, a hub id, or a local folder")
        command.add_argument("--json", type=Path, metavar="FILE", help="write everything, with what made it")
        command.add_argument("--csv", type=Path, metavar="FILE", help="write the table, with what made it")
    return parser


def _evaluate(chosen: argparse.Namespace) -> int:
    plans = plans_of(chosen.off, chosen.kind) if chosen.off.strip() else ()
    own = _own_task(chosen.task)  # a file is looked at before a model is loaded
    model = load_model(chosen.model)
    task = own.asked_of(model).task if own else built_in(chosen.task, model, chosen.seed)
    result, code = None, 0
    bar = _Bar("prompts")
    try:
        for step in evaluation_steps(model, task, plans, n=chosen.n, seed=chosen.seed, n_controls=chosen.controls,
                                     progress=bar):  # fmt: skip
            result = step
    except KeyboardInterrupt:
        code = INTERRUPTED
    bar.clear()
    if result is not None:
        _show_evaluation(chosen, result)
    if code:
        done = f"{result.n} of {result.total} prompts are measured" if result else "nothing is measured yet"
        sys.stderr.write(f"Interrupted: {done}.\n")
    return code


def _show_evaluation(chosen: argparse.Namespace, result: Evaluation) -> None:
    sys.stdout.write(as_text(result))
    _write(chosen.json, lambda: to_json(result))
    _write(chosen.csv, lambda: to_csv(result))


def _own_task(name: str) -> OwnTask | None:
    """The task of a file; None for the name of a built-in one."""
    if name in task_names():
        return None
    path = Path(name)
    if not path.is_file():
        raise TaskError(f"{name!r} is neither a task ({', '.join(task_names())}) nor a file.")
    own = read_task(path.read_bytes(), path.name)
    for row in own.refused:
        sys.stderr.write(f"{path.name}, row {row.row} cannot be used: {row.reason}\n")
    for note in own.notes:
        sys.stderr.write(f"{path.name}: {note}\n")
    return own


def _sweep(chosen: argparse.Namespace) -> int:
    model = load_model(chosen.model)
    bar = _Bar("heads")
    result, code = None, 0
    try:
        for step in sweep_steps(model, chosen.text, metric=chosen.metric, kind=chosen.kind,
                                answers=tuple(chosen.answers) if chosen.answers else None):  # fmt: skip
            result = step
            bar(step.done, step.total)
    except KeyboardInterrupt:
        code = INTERRUPTED
    bar.clear()
    if result is not None:
        _show_sweep(chosen, model, result)
    return code


def _show_sweep(chosen: argparse.Namespace, model: Model, result: HeadSweep) -> None:
    out = [f"{result.metric}, {result.kind}: {METRICS[result.metric]}",
           f"{result.done} of {result.total} heads, {result.method}; clean: {result.baseline:.4f}"]  # fmt: skip
    out += [f"  {head!s:10} {value:+.4f}" for head, value in result.ranking()[: chosen.top]]
    sys.stdout.write("\n".join(out) + "\n")
    made = model_provenance(model.name, model.details) | {
        "text": chosen.text, "metric": result.metric, "kind": result.kind, "site": result.site,
        "answers": chosen.answers, "clean": result.baseline, "method": result.method, "heads": result.done,
        "seconds": round(result.seconds, 2),
    }  # fmt: skip
    view = View("overview", {"values": result.effects}, {"values_label": result.metric}, made)
    _write(chosen.json, lambda: export_numbers(view, "json"))
    _write(chosen.csv, lambda: export_numbers(view, "csv"))


class _Bar:
    """Progress on a terminal, with the time left; silence elsewhere."""

    def __init__(self, what: str) -> None:
        self.what, self.started, self.width = what, time.monotonic(), 0

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        left = (time.monotonic() - self.started) * (total - done) / max(1, done)
        filled = 30 * done // max(1, total)
        line = f"{'█' * filled}{'░' * (30 - filled)} {done:,} of {total:,} {self.what} · {left:.0f} s left"
        sys.stderr.write(f"\r{line.ljust(self.width)}")
        sys.stderr.flush()
        self.width = len(line)

    def clear(self) -> None:
        """Leave the line empty."""
        if self.width:
            sys.stderr.write(f"\r{' ' * self.width}\r")
            sys.stderr.flush()


def _write(path: Path | None, made: Callable[[], bytes]) -> None:
    if path is not None:
        path.write_bytes(made())


def _require_folder(path: Path | None) -> None:
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise TaskError(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a whole number from {least} is needed.")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
