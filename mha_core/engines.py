"""Which engine runs the jobs of a measurement: this process, or a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mha_core.jobs import Engine, LocalEngine
from mha_core.model import Model

ENGINES = ("local", "ray")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """`--engine`, `--workers` and `--address` for a command; `engine_for` takes them."""
    group = parser.add_argument_group("engine")
    engines = "local (default), or ray: workers of a Ray cluster, each with the model"
    address = "host:port of a running Ray cluster, or auto for this machine's; without it, one is made here"
    group.add_argument("--engine", choices=ENGINES, default="local", help=engines)
    group.add_argument("--workers", type=int, default=2, metavar="N", help="of --engine ray (default 2)")
    group.add_argument("--address", help=address)


@contextmanager
def engine_for(
    name: str, model: Model, *, workers: int = 2, address: str | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Iterator[Engine]:  # fmt: skip
    """The engine of a name, for one model; its workers end with the context.

    Args:
        name: "local" or "ray". workers, address: of `RayEngine`. report: told in words of workers that are started or
            lost.

    Raises:
        EngineError: there is no such engine, or no cluster.
    """
    if name == "local":
        yield LocalEngine(model)
        return
    from mha_core.ray_cluster import EngineError
    from mha_core.ray_engine import RayEngine

    if name != "ray":
        raise EngineError(f"engine is {name!r}; it must be one of {', '.join(ENGINES)}.")
    with RayEngine.of(model, workers=workers, address=address, report=report) as engine:
        yield engine
