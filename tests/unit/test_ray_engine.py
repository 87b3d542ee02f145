"""Jobs on a Ray cluster of two workers on this machine, one of which is killed: the numbers of one process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from mha_core import HeadAblation, HeadRef, Model, load_model
from mha_core import ray_engine as module
from mha_core.engines import engine_for
from mha_core.evaluation import evaluate
from mha_core.head_scores import HeadScores
from mha_core.interventions import InterventionError, Interventions
from mha_core.jobs import HeadsJob, Job, LocalEngine, PlanJob, Result, heads_jobs, plan_jobs
from mha_core.questions import questions_for
from mha_core.ray_cluster import EngineError, begin, library, require_cluster, share
from mha_core.ray_engine import RayEngine, made_with
from mha_core.task_sweep import task_sweep
from mha_core.tasks import Prompt, Task
from mha_core.variants import every_head
from tests.tiny import SENTENCES, tiny_model_dir

PLAN = Interventions(HeadAblation(["L0H1", "L1H2"]))
TASK = Task("mine", "mine", "", tuple(Prompt(text, ",", ".", f"t{n % 8}") for n, text in enumerate(SENTENCES[:24])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir("llama", tmp_path_factory)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(str(folder))


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def engine(model: Model, said: list[str]) -> Iterator[RayEngine]:
    library()  # long before a cluster is begun, as by code that wanted another one
    with engine_for("ray", model, report=said.append) as engine:
        assert isinstance(engine, RayEngine)
        yield engine


@pytest.fixture(scope="module")
def jobs(model: Model) -> list[Job]:
    questions, _ = questions_for(model, TASK)
    heads = [job for q in questions for job in heads_jobs(q, every_head(model, "self"), "mean", SENTENCES[:2])]
    return [*(job for job, _ in plan_jobs(model, PLAN, questions)), *heads]


def test_a_killed_worker_is_replaced_and_all_numbers_are_those_of_one_process(
    model: Model, engine: RayEngine, jobs: list[Job], said: list[str]
) -> None:
    expected = dict(LocalEngine(model).run(jobs, lambda n: None))
    while len(engine.pids) < 2:  # one may have the model long before the other, and do short work alone
        assert len(list(engine.run(jobs[:2], lambda n: None))) == 2
    told: list[int] = []
    found: dict[int, Result] = {}
    killed = None
    for number, result in engine.run(jobs, told.append):
        assert number not in found, "a job's result comes once"
        found[number] = result
        if killed is None:
            killed = next(iter(engine.pids.values()))[1]
            os.kill(killed, signal.SIGKILL)
    assert killed is not None
    assert found.keys() == expected.keys()
    assert sum(told) == sum(job.size for job in jobs)
    for number, result in expected.items():
        assert largest_difference(result, found[number]) <= 1e-6
    assert engine.restarts == 1
    assert any(str(killed) in line and "lost" in line for line in said)
    assert killed not in [pid for _, pid in engine.pids.values()]


def largest_difference(a: Result, b: Result) -> float:
    if isinstance(a, HeadScores):
        assert isinstance(b, HeadScores)
        rows = [np.array(list(a.clean.values())) - np.array(list(b.clean.values()))]
        rows += [a.heads[name] - b.heads[name] for name in a.heads]
    else:
        assert isinstance(b, list)
        assert [row.keys() for row in a] == [row.keys() for row in b]
        rows = [np.array([x[name] - y[name] for name in x]) for x, y in zip(a, b, strict=True)]
    return max(float(np.abs(row).max()) for row in rows)


def test_evaluations_and_sweeps_take_the_engine(model: Model, engine: RayEngine) -> None:
    here, there = (evaluate(model, TASK, (PLAN,), n_controls=1, engine=who) for who in (None, engine))
    assert here.compared("accuracy")[0].difference == there.compared("accuracy")[0].difference
    one, other = (task_sweep(model, TASK, engine=who) for who in (None, engine))
    order = [one.done.index(number) for number in other.done]
    assert sorted(order) == list(range(24))
    np.testing.assert_allclose(one.effects("logit_diff")[order], other.effects("logit_diff"), rtol=0, atol=1e-6)


def test_what_a_job_raises_is_raised_here(model: Model, engine: RayEngine) -> None:
    questions, _ = questions_for(model, TASK)
    job = PlanJob(Interventions(HeadAblation([HeadRef(9, 0)])), questions)
    with pytest.raises(InterventionError) as here:
        job.run(model, lambda n: None)
    with pytest.raises(InterventionError) as there:
        list(engine.run([job], lambda n: None))
    assert str(there.value) == str(here.value)


def test_an_interrupt_ends_the_workers(engine: RayEngine, jobs: list[Job]) -> None:
    seen: list[int] = []

    def interrupted(n: int) -> None:
        seen.extend(pid for _, pid in engine.pids.values())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(engine.run(jobs, interrupted))
    assert seen
    wait_until(lambda: not any(is_worker(pid) for pid in seen))
    assert not engine.pids


def test_a_job_that_ends_every_worker_is_given_up(
    engine: RayEngine, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = engine.restarts
    monkeypatch.setattr(module, "MAX_LOSSES", 2)
    with pytest.raises(EngineError, match="2 workers were lost with the same piece of work"):
        list(engine.run([Deadly(**vars(next(job for job in jobs if isinstance(job, HeadsJob))))], lambda n: None))
    assert engine.restarts == restarts + 1


class Deadly(HeadsJob):
    """A job whose worker does not come back."""

    def run(self, model: Model, tell: object) -> HeadScores:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_worker_that_would_give_other_numbers_is_refused(engine: RayEngine) -> None:
    other = engine.expected | {"the model's weights": "other", "torch": "0"}
    with pytest.raises(EngineError, match=r"on far differs .* in the model's weights and torch;"):
        engine.welcome(module._Hand(None), (other, "far", 1))


def test_a_model_that_workers_cannot_find_is_a_sentence(engine: RayEngine, jobs: list[Job]) -> None:
    """On the cluster that is there already, which is left as it is."""
    nowhere = replace(engine, model_name="/nowhere/model", _hands=[], pids={}, _owner=False)
    with pytest.raises(EngineError, match="every machine must find the model"), nowhere as other:
        list(other.run(jobs[:1], lambda n: None))


def test_only_this_machine_can_reach_the_cluster(engine: RayEngine) -> None:
    own = psutil.Process()
    listening = [
        connection.laddr.ip
        for process in [own, *own.children(recursive=True)]
        for connection in connections(process)
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_a_cluster_that_others_could_reach_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, ended = library(), []
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeManagerAddress": "192.0.2.7"}])
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    with pytest.raises(EngineError, match=r"listens at 192\.0\.2\.7"):
        begin(2)
    assert ended


def connections(process: psutil.Process) -> list[psutil._common.pconn]:
    try:
        return process.net_connections(kind="tcp") if "ray" in " ".join(process.cmdline()) else []
    except psutil.NoSuchProcess:
        return []


def test_more_workers_than_the_cluster_holds_are_refused(engine: RayEngine) -> None:
    with pytest.raises(EngineError, match="ask for fewer workers"), replace(engine, workers=1000, _owner=False):
        pass
    with pytest.raises(EngineError, match="at least 1"), replace(engine, workers=0, _owner=False):
        pass


def test_no_cluster_at_an_address_is_a_sentence() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EngineError, match=f"No Ray cluster answers at '{address}'"):
        require_cluster(address)
    for wrong in ("here", "ray://127.0.0.1:10001", ":6379", "127.0.0.1:x"):
        with pytest.raises(EngineError, match="host:port"):
            require_cluster(wrong)


def test_without_ray_a_sentence_says_how_to_install_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match="pip install"), engine_for("ray", model):
        pass
    with pytest.raises(EngineError, match="local, ray"), engine_for("spark", model):
        pass
    with engine_for("local", model) as engine:
        assert isinstance(engine, LocalEngine)


@pytest.mark.parametrize(
    ("amounts", "workers", "each"),
    [([2], 2, 1), ([8], 3, 2), ([8, 8], 2, 8), ([16, 4], 2, 8), ([16, 4], 5, 4), ([1], 2, 0), ([], 1, 0)],
)
def test_workers_share_what_machines_have(amounts: list[int], workers: int, each: int) -> None:
    assert share(amounts, workers) == each


def test_numbers_are_made_with_weights_code_and_libraries(model: Model, tmp_path: Path) -> None:
    made = made_with(model)
    assert made["the model's weights"] == model.details.sha256
    assert made != made_with(load_model(model.name, dtype="bfloat16"))
    for path in Path(module.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert module.code_sha256(tmp_path) == made["Headscope's code"]
    (tmp_path / "attention.py").write_text("pass")
    assert module.code_sha256(tmp_path) != made["Headscope's code"]


def is_worker(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(holds: object, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.1)
