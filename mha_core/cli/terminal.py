"""What the commands share: options, progress on a terminal, files, and exit codes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from mha_core.devices import add_device_options
from mha_core.engines import add_engine_options, engine_for
from mha_core.jobs import Engine
from mha_core.loading import load_model
from mha_core.model import Model
from mha_core.result_store import ResultStore, default_store
from mha_core.task_files import OwnTask, read_task
from mha_core.task_sets import built_in, task_names
from mha_core.tasks import Task, TaskError

WRONG_USE, INTERRUPTED = 2, 130
Result = TypeVar("Result")


class Bar:
    """Progress on a terminal, with the time left; silence elsewhere."""

    def __init__(self, what: str) -> None:
        self.what, self.started, self.width, self.first = what, time.monotonic(), 0, 0

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if not self.width:
            self.started, self.first = time.monotonic(), done  # what was kept on disk took no time
        left = (time.monotonic() - self.started) * (total - done) / max(1, done - self.first)
        filled = 30 * done // max(1, total)
        told = f" · {_duration(left)} left" if done > self.first else ""
        line = f"{'█' * filled}{'░' * (30 - filled)} {done:,} of {total:,} {self.what}{told}"
        sys.stderr.write(f"\r{line.ljust(self.width)}")
        sys.stderr.flush()
        self.width = max(self.width, len(line))

    def clear(self) -> None:
        """Leave the line empty."""
        if self.width:
            sys.stderr.write(f"\r{' ' * self.width}\r")
            sys.stderr.flush()


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def last_of(steps: Iterator[Result], bar: Bar) -> tuple[Result | None, int]:
    """The last result of a measurement, and the exit code: what was measured before an interruption stays good."""
    result, code = None, 0
    try:
        for step in steps:
            result = step
    except KeyboardInterrupt:
        code = INTERRUPTED
    bar.clear()
    return result, code


def write(path: Path | None, made: Callable[[], bytes]) -> None:
    """Write a file that was asked for."""
    if path is not None:
        path.write_bytes(made())


def require_folder(path: Path | None) -> None:
    """Raise before hours of work what would go wrong after them."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise TaskError(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def load(chosen: argparse.Namespace) -> Model:
    """The model of --model, on --device in --dtype."""
    return load_model(chosen.model, device=chosen.device, dtype=chosen.dtype)


@contextmanager
def engine_of(chosen: argparse.Namespace, model: Model) -> Iterator[Engine]:
    """Who runs the jobs: --engine with its --workers. What happens to workers is told on the terminal."""

    def report(message: str) -> None:
        sys.stderr.write(f"{message}\n")

    with engine_for(chosen.engine, model, workers=chosen.workers, address=chosen.address, report=report) as engine:
        yield engine


def model_and_task(chosen: argparse.Namespace) -> tuple[Model, Task]:
    """What was asked for by --model and --task; a file is looked at before a model is loaded."""
    own = _own_task(chosen.task)
    model = load(chosen)
    return model, own.asked_of(model).task if own else built_in(chosen.task, model, chosen.seed)


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


def store_of(chosen: argparse.Namespace) -> ResultStore | None:
    """Where results are kept, unless --no-cache."""
    return None if chosen.no_cache else default_store()


Commands = argparse._SubParsersAction


def new_command(
    commands: Commands[argparse.ArgumentParser], name: str, says: str, teaches: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:  # fmt: skip
    """A command with its help, and the options that all of them have."""
    command = commands.add_parser(name, help=says, description=teaches,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    command.set_defaults(run=run)
    command.add_argument("--model", required=True, help="a packaged model, a hub id, or a local folder")
    command.add_argument("--json", type=Path, metavar="FILE", help="write everything, with what made it")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write the table, with what made it")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a report on a task, with a methods paragraph")
    add_device_options(command)
    add_engine_options(command)
    return command


def add_way_options(command: argparse.ArgumentParser) -> None:
    """--kind and --site, where every head takes its turn."""
    command.add_argument("--kind", choices=("zero", "mean"), default="zero")
    command.add_argument("--site", help="self, or enc, dec, cross of an encoder-decoder")


def add_task_options(command: argparse.ArgumentParser, n: int, required: bool = True) -> None:
    """--task, --n, --seed and --no-cache."""
    command.add_argument("--task", required=required, help=f"{', '.join(task_names())}, or a file")
    command.add_argument("--n", type=positive, default=n, help=f"prompts (default {n})")
    command.add_argument("--seed", type=natural, default=0, help="of prompts, random heads and resampling (default 0)")
    command.add_argument(
        "--no-cache", action="store_true",
        help="neither read nor keep results on disk; without it a stopped run goes on where it was",
    )  # fmt: skip


def positive(text: str) -> int:
    """An argument that is a whole number from 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """An argument that is a whole number from 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a whole number from {least} is needed.")
    return int(text)
