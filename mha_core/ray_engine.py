"""Jobs spread over the workers of a Ray cluster: each holds the model, and gives the numbers that this process would.

A worker that is lost is replaced, and its jobs are run again. A worker whose weights, number type or Headscope differ
from this process's is refused, so that numbers of two kinds never stand in one table.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mha_core.catalogue import ModelError
from mha_core.devices import Placement
from mha_core.jobs import Job, Result, Tell
from mha_core.loading import load_model
from mha_core.model import Model
from mha_core.ray_cluster import EngineError, begin, join, library, share

MAX_LOSSES = 3  # workers lost with one job, or one after the other before one could load the model
_QUEUED = 2  # jobs with one worker: the next is there when one is done, and little is lost with it
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 900.0  # for the first worker: a model may have to be fetched
Report = Callable[[str], None]


class Worker:
    """One process of the cluster, with the model. Built by Ray."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.model: Model | None = None

    def load(self, name: str, placement: Placement) -> tuple[dict[str, str], str, int]:
        """Load the model: what makes its numbers, and where: machine and process."""
        self.model = load_model(name, device=placement.device, dtype=placement.dtype)
        return made_with(self.model), socket.gethostname(), os.getpid()

    def run(self, job: Job) -> Result:
        """What the job gives."""
        assert self.model is not None, "a worker loads the model before its first job"
        return job.run(self.model, lambda n: None)


def made_with(model: Model) -> dict[str, str]:
    """What a model's numbers depend on, by name, to be compared between two processes."""
    return {
        "the model's weights": model.details.sha256 or model.name, "the number type": model.number_type,
        "torch": version("torch").partition("+")[0], "transformers": version("transformers"),
        "Headscope's code": code_sha256(Path(__file__).parent),
    }  # fmt: skip


def code_sha256(folder: Path) -> str:
    """A hash of the modules in a folder: workers may have another Headscope installed, of the same version."""
    code = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        code.update(path.name.encode() + path.read_bytes())
    return code.hexdigest()


@dataclass(eq=False)
class _Hand:
    """A worker as this process sees it. jobs: numbers of those it has, the one that it runs first. loading: what it
    says when it has the model.
    """

    actor: Any
    loading: Any = None
    ready: bool = False
    jobs: deque[int] = field(default_factory=deque)


@dataclass(eq=False)
class RayEngine:
    """Runs jobs of one model on a Ray cluster. A context: its workers end with it.

    model_name, placement: what the workers load. expected: `made_with` of the model here; workers that differ are
    refused. workers: how many. address: of a running cluster ("host:port", "auto" for this machine's); None: one is
    made here, reachable from this machine only. report: told in words of workers started and lost.

    restarts: workers that were replaced so far. pids: (machine, process) of those at work.
    """

    model_name: str
    expected: dict[str, str]
    placement: Placement = field(default_factory=Placement)
    workers: int = 2
    address: str | None = None
    report: Report = lambda message: None
    restarts: int = 0
    pids: dict[Any, tuple[str, int]] = field(default_factory=dict)
    _hands: list[_Hand] = field(default_factory=list)
    _owner: bool = False
    _options: dict[str, Any] = field(default_factory=dict)
    _failed_starts: int = 0

    @classmethod
    def of(
        cls, model: Model, *, workers: int = 2, address: str | None = None, report: Report = lambda message: None
    ) -> RayEngine:  # fmt: skip
        """An engine for a model that is loaded here."""
        folder = Path(model.name).expanduser()
        name = str(folder.resolve()) if folder.is_dir() else model.name
        return cls(name, made_with(model), model.placement, workers, address, report)

    def __enter__(self) -> RayEngine:
        if self.workers < 1:
            raise EngineError(f"workers is {self.workers}; at least 1 is needed.")
        if ":" in self.placement.device:
            raise EngineError(
                f"device is {self.placement.device!r}; on a cluster Ray gives each worker a GPU of its own. Say cuda."
            )
        ray = library()
        if not ray.is_initialized():
            if self.address is None:
                begin(max(os.cpu_count() or 1, self.workers))  # workers beyond the processors take turns
            else:
                join(self.address)
            self._owner = True
        self._options = self._shares(ray)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_workers(list(self._hands))
        if self._owner:
            library().shutdown()
            self._owner = False

    def _shares(self, ray: Any) -> dict[str, Any]:
        """What Ray is to reserve for each worker, and its threads."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus = share([int(machine.get("CPU", 0)) for machine in machines], self.workers)
        gpus = share([int(machine.get("GPU", 0)) for machine in machines], self.workers)
        total = {name: sum(int(machine.get(name, 0)) for machine in machines) for name in ("CPU", "GPU")}
        if not cpus or (self.placement.device == "cuda" and not gpus):
            raise EngineError(
                f"{self.workers} workers were asked for, and the cluster has {total['CPU']} processors and "
                f"{total['GPU']} GPUs on {len(machines)} machines; ask for fewer workers."
            )
        wanted = {"cuda": 1, "auto": gpus}.get(self.placement.device, 0)
        return {"num_cpus": cpus, "num_gpus": wanted, "max_restarts": 0, "max_task_retries": 0}

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Result]]:
        """Results as they come, each with the number of its job. tell: called with a job's size when it is done; what
        it raises, and an interrupt, ends the workers that are at work. What a job raises is raised here.

        Raises:
            EngineError: the cluster cannot run them, in a sentence.
        """
        if not jobs:
            return
        finished = False
        try:
            yield from _Run(self, library(), jobs).results(tell)
            finished = True
        finally:
            if not finished:  # what is still running is nobody's any more
                self._stop_workers([hand for hand in self._hands if hand.jobs or not hand.ready])

    def start_worker(self, ray: Any) -> _Hand:
        """A new worker, which begins to load the model."""
        actor = ray.remote(Worker).options(**self._options).remote(self._options["num_cpus"])
        hand = _Hand(actor)
        self._hands.append(hand)
        hand.loading = actor.load.remote(self.model_name, self.placement)
        return hand

    def welcome(self, hand: _Hand, said: tuple[dict[str, str], str, int]) -> None:
        """Take a worker that has loaded the model, if it is the same model.

        Raises:
            EngineError: its numbers would be of another kind.
        """
        made, machine, pid = said
        different = [name for name, value in self.expected.items() if made.get(name) != value]
        if different:
            raise EngineError(
                f"The worker on {machine} differs from this machine in {' and '.join(different)}; its numbers would "
                "not belong beside the others. Install the same versions there, and give it the same model."
            )
        hand.ready, self._failed_starts = True, 0
        self.pids[hand.actor] = (machine, pid)
        self.report(f"Worker on {machine} (process {pid}) has the model.")

    def forget(self, ray: Any, hand: _Hand) -> None:
        """A worker is lost."""
        self._hands.remove(hand)
        machine, pid = self.pids.pop(hand.actor, ("", 0))
        ray.kill(hand.actor)  # one that cannot be reached must not go on beside its successor
        self.restarts += 1
        if hand.ready:
            self.report(f"The worker on {machine} (process {pid}) is lost; another takes its place.")
            return
        self._failed_starts += 1
        if self._failed_starts >= MAX_LOSSES:
            raise EngineError(
                f"{self._failed_starts} workers ended before they had the model; their memory may be too small, or "
                "Headscope is not installed there. Ray's logs on that machine say more."
            )

    def _stop_workers(self, hands: Sequence[_Hand]) -> None:
        for hand in hands:
            library().kill(hand.actor)
            self._hands.remove(hand)
            self.pids.pop(hand.actor, None)


class _Run:
    """Jobs of one call of `RayEngine.run`, on their way."""

    def __init__(self, engine: RayEngine, ray: Any, jobs: Sequence[Job]) -> None:
        self.engine, self.ray, self.jobs = engine, ray, jobs
        self.waiting = deque(range(len(jobs)))
        self.losses = [0] * len(jobs)
        # Reference -> whose, and which job. None: loading, perhaps since an earlier run that the others did alone.
        self.running: dict[Any, tuple[_Hand, int | None]] = {
            hand.loading: (hand, None) for hand in engine._hands if not hand.ready
        }

    def results(self, tell: Tell) -> Iterator[tuple[int, Result]]:
        """Results as they come."""
        left, since = len(self.jobs), time.monotonic()
        while left:
            self._give_out()
            done, _ = self.ray.wait(list(self.running), timeout=_LOOK_SECONDS)
            for reference in done:
                if reference not in self.running:  # of a worker that was just lost
                    continue
                found = self._taken(reference)
                if found is not None:
                    left -= 1
                    tell(self.jobs[found[0]].size)
                    yield found
            if not any(hand.ready for hand in self.engine._hands) and time.monotonic() - since > _PATIENCE_SECONDS:
                raise EngineError(
                    f"No worker had the model after {_PATIENCE_SECONDS:.0f} s; the cluster may be full. Ask for fewer "
                    "workers, or wait until others are done."
                )

    def _give_out(self) -> None:
        """As many workers as there is work for, each with a few jobs."""
        for _ in range(min(self.engine.workers, len(self.waiting)) - len(self.engine._hands)):
            hand = self.engine.start_worker(self.ray)
            self.running[hand.loading] = (hand, None)
        for _ in range(_QUEUED):  # round by round, so that the last jobs are spread too
            for hand in self.engine._hands:
                if hand.ready and self.waiting and len(hand.jobs) < _QUEUED:
                    number = self.waiting.popleft()
                    hand.jobs.append(number)
                    self.running[hand.actor.run.remote(self.jobs[number])] = (hand, number)

    def _taken(self, reference: Any) -> tuple[int, Result] | None:
        """A job's result; None where a worker has only loaded, or is lost."""
        hand, number = self.running.pop(reference)
        errors = self.ray.exceptions
        try:
            value = self.ray.get(reference)
        except errors.RayTaskError as error:
            if number is not None:
                hand.jobs.remove(number)
            raise self._as_itself(error, number) from error
        except (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError, errors.NodeDiedError,
                errors.OutOfMemoryError):  # fmt: skip
            self._lose(hand)
            return None
        if number is None:
            self.engine.welcome(hand, value)
            return None
        hand.jobs.remove(number)
        return number, value

    def _lose(self, hand: _Hand) -> None:
        """Put a lost worker's jobs back, in front. The first of them was running: it is counted as lost with it."""
        self.running = {reference: item for reference, item in self.running.items() if item[0] is not hand}
        if hand.jobs:
            self.losses[hand.jobs[0]] += 1
            if self.losses[hand.jobs[0]] >= MAX_LOSSES:
                raise EngineError(
                    f"{MAX_LOSSES} workers were lost with the same piece of work; it may need more memory than they "
                    "have. Take shorter prompts or larger workers. What is finished is kept."
                )
        self.waiting.extendleft(reversed(hand.jobs))
        self.engine.forget(self.ray, hand)

    def _as_itself(self, error: Any, number: int | None) -> Exception:
        """What a worker raised; of a model that it cannot load, what to do."""
        cause: Exception = error.cause if isinstance(error.cause, Exception) else error
        if number is not None or not isinstance(cause, ModelError):
            return cause
        return EngineError(
            f"A worker cannot load {self.engine.model_name!r}: {cause} On a cluster every machine must find the model "
            "under this name: a folder at the same path (on a shared disk, say), or a hub id that it can reach or has "
            "in its cache."
        )
