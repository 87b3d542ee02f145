"""The store on disk: keeps, forgets what was used longest ago, and never fails a measurement."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from mha_core import HeadAblation, HeadRef, Interventions, load_model
from mha_core.head_scores import HeadScores
from mha_core.jobs import HeadsJob, PlanJob
from mha_core.questions import questions_for
from mha_core.result_store import Kept, ResultStore, default_store, kept_for
from mha_core.tasks import Prompt, Task


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "folder" / "results.sqlite")


def jobs_of(kept: Kept) -> tuple[PlanJob, HeadsJob]:
    model = load_model("date-translator")
    prompts = (Prompt("3 May 2001", "2001-05-03"), Prompt("4 May 2001", "2001-05-04"))
    questions, _ = questions_for(model, Task("d", "D", "", prompts, "sequence"))
    return PlanJob(Interventions(), questions), HeadsJob(questions[0], (HeadRef(0, 0, "enc"), HeadRef(0, 1, "enc")))


def test_values_are_kept_by_key_and_item(store: ResultStore) -> None:
    store.put("a", {"1": b"one", "2": b"two"})
    store.put("b", {"1": b"other"})
    store.put("a", {"2": b"again"})
    assert store.get("a", ["1", "2", "3"]) == {"1": b"one", "2": b"again"}
    assert store.get("b", ["1"]) == {"1": b"other"}
    assert store.get("c", ["1"]) == {}


def test_jobs_come_back_as_they_were(store: ResultStore) -> None:
    kept = Kept(store, "model")
    plan_job, heads_job = jobs_of(kept)
    rows = [{"accuracy": 1.0, "log_prob": -0.25}, {"accuracy": 0.0, "log_prob": -1.5}]
    scores = HeadScores({"accuracy": 1.0}, {"accuracy": np.array([0.0, 1.0])})
    assert kept.rows(plan_job.plan, plan_job.questions) == {}
    assert kept.heads(heads_job) is None
    kept.put(plan_job, rows)
    kept.put(heads_job, scores)
    assert kept.rows(plan_job.plan, plan_job.questions[::-1]) == {0: rows[1], 1: rows[0]}
    found = kept.heads(heads_job)
    assert found is not None
    assert found.clean == scores.clean
    np.testing.assert_array_equal(found.heads["accuracy"], scores.heads["accuracy"])
    other = HeadsJob(heads_job.question, heads_job.heads[:1])
    assert kept.heads(other) is None
    assert Kept(store, "other model").heads(heads_job) is None
    assert kept.rows(Interventions(HeadAblation(["enc.L0H0"])), plan_job.questions) == {}
    assert Kept(None, "model").rows(plan_job.plan, plan_job.questions) == {}


@pytest.mark.parametrize("damage", ["text", "cut", "folder"])
def test_a_damaged_file_costs_measuring_again_and_no_error(store: ResultStore, damage: str) -> None:
    store.put("a", {str(number): bytes(1000) for number in range(50)})
    if damage == "folder":
        store.path.unlink()
        store.path.mkdir()
    elif damage == "text":
        store.path.write_text("no database " * 500)
    else:
        store.path.write_bytes(store.path.read_bytes()[:5000])
    assert store.get("a", ["1"]) in ({}, {"1": bytes(1000)})
    store.put("b", {"1": b"x"})
    store.put("b", {"1": b"x"})
    assert store.get("b", ["1"]) == ({} if damage == "folder" else {"1": b"x"})


def test_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.sqlite", max_bytes=350_000)
    for name in "abc":
        store.put(name, {str(number): bytes(10_000) for number in range(8)})
    assert store.get("a", ["1"])
    store.put("d", {str(number): bytes(10_000) for number in range(8)})
    assert store.get("b", ["1"]) == {}
    assert store.get("a", ["1"])
    assert store.get("d", ["7"])


def test_several_writers_at_once(store: ResultStore) -> None:
    def write(name: int) -> None:
        for item in range(20):
            store.put("same", {f"{name}.{item}": f"{name}".encode()})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get("same", [f"{name}.{item}" for name in range(4) for item in range(20)])
    assert len(found) == 80


def test_no_text_is_kept_and_a_model_without_a_file_keeps_nothing(store: ResultStore) -> None:
    model = load_model("date-translator")
    kept = kept_for(model, store)
    plan_job, _ = jobs_of(kept)
    kept.put(plan_job, [{"accuracy": 1.0}, {"accuracy": 1.0}])
    assert kept.rows(plan_job.plan, plan_job.questions)
    data = store.path.read_bytes()
    assert b"May 2001" not in data
    assert b"2001-05-03" not in data
    assert kept_for(load_model("own-layer"), store).store is None


def test_it_stands_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path))
    assert default_store().path == tmp_path / "results.sqlite"
