"""Headscope without a browser: `python -m mha_core evaluate …`, `… sweep …` and `… prune …`.

Exit codes: 0 done, 2 wrong use (with a sentence), 130 interrupted (what was measured by then is written).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import transformers

from mha_core.catalogue import ModelError
from mha_core.cli import evaluate, prune, sweep
from mha_core.cli.terminal import INTERRUPTED, WRONG_USE, require_folder
from mha_core.interventions import InterventionError
from mha_core.ray_cluster import EngineError
from mha_core.tasks import TaskError
from mha_core.tokens import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code. arguments: None: those of the process."""
    chosen = _parser().parse_args(arguments)
    transformers.utils.logging.disable_progress_bar()  # a terminal gets ours, a log gets none
    try:
        for path in (chosen.json, chosen.csv, chosen.html):
            require_folder(path)
        return int(chosen.run(chosen))
    except (ModelError, InputError, InterventionError, TaskError, EngineError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_USE
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mha_core", description="Headscope without a browser.",
                                     epilog="Exit codes: 0 done, 2 wrong use, 130 interrupted.")  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in (evaluate, sweep, prune):
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
