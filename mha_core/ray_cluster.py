"""Ray itself: begun on this machine for this machine only, or joined at an address. Optional: imported here only."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

INSTALL = "pip install 'ray>=2.60,<3'"
_OBJECT_STORE_BYTES = 128 * 2**20  # of a cluster made here: results are small
_QUIET = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "headscope"}


class EngineError(RuntimeError):
    """Jobs that an engine cannot run, as a sentence for the person who asked for it."""


def library() -> Any:
    """The package.

    Raises:
        EngineError: it is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # a library's usage reports are not ours to send
    try:
        import ray
    except ImportError as error:
        raise EngineError(f"The engine “ray” needs the package ray, which is not installed: {INSTALL}.") from error
    return ray


def begin(n_cpus: int) -> None:
    """Begin a cluster on this machine that listens on the loopback address only.

    Raises:
        EngineError: Ray listens elsewhere too, where others could reach it.
    """
    ray = library()
    from ray._private import ray_constants

    # Ray has no option for it. Its switch is an environment variable that it reads when it is imported, which may be
    # long ago, and by code that wanted another cluster.
    usual, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        ray.init(
            address="local", include_dashboard=False, num_cpus=n_cpus, object_store_memory=_OBJECT_STORE_BYTES, **_QUIET
        )
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = usual
    here = {node["NodeManagerAddress"] for node in ray.nodes()}
    if not here <= {"127.0.0.1", "::1"}:
        ray.shutdown()
        raise EngineError(
            f"Ray {ray.__version__} listens at {', '.join(sorted(here))}, where other machines could reach it. Use a "
            f"version that is known to stay on this machine ({INSTALL}), or begin a cluster yourself (ray start "
            "--head) and give its address."
        )


def join(address: str) -> None:
    """Join the cluster at an address.

    Raises:
        EngineError: there is none.
    """
    require_cluster(address)
    try:
        library().init(address=address, **_QUIET)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise _no_cluster(address, error) from error


def share(amounts: Sequence[int], workers: int) -> int:
    """The most that each of so many workers can have, where machines have `amounts`; 0: they do not all find a place.

    A worker lies on one machine.
    """
    return next((n for n in range(max(amounts, default=0), 0, -1) if sum(a // n for a in amounts) >= workers), 0)


def require_cluster(address: str) -> None:
    """Look whether something listens at an address. (Ray itself takes minutes to give up.)

    Raises:
        EngineError: the address is not of a cluster, or nothing listens.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise EngineError(f"address is {address[:80]!r}; it must be host:port, as ray start --head says it, or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> EngineError:
    why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return EngineError(
        f"No Ray cluster answers at {address!r} ({why}). Start one with ray start --head, or leave the address out to "
        "use this machine alone."
    )
