"""Training with more and fewer heads: the task is what it says, runs repeat, and the packaged result is reachable."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mha_core.head_experiment import LENGTH, SHIFTS, SYMBOLS, HeadExperiment, Settings, run_experiment, task
from mha_core.paths import asset

QUICK = Settings(n_heads=(1, 4), seeds=(0,), steps=220)


@pytest.fixture(scope="module")
def known() -> list[HeadExperiment]:
    return list(run_experiment(QUICK))


def test_the_task_asks_for_what_stands_before() -> None:
    symbols = torch.arange(LENGTH)[None] % SYMBOLS
    asked = task(symbols, len(SHIFTS))
    for relation, shift in enumerate(SHIFTS):
        assert asked[0, :, relation].tolist() == [(i - shift) % LENGTH % SYMBOLS for i in range(LENGTH)]


def test_four_relations_need_more_than_one_head(known: list[HeadExperiment]) -> None:
    last = known[-1]
    one, four = (last.of(heads)[0].accuracy[-1] for heads in (1, 4))
    assert 2 * last.settings.chance < one < 0.6
    assert four > one + 0.3
    assert last.of(1)[0].accuracy[0] < 2 * last.settings.chance  # before the first step


def test_one_relation_does_not_and_that_is_said() -> None:
    *_, last = run_experiment(Settings(n_heads=(1, 4), seeds=(0,), steps=220, n_relations=1))
    assert min(row["accuracy"] for row in last.summary()) > 0.97
    assert any("does as well" in sentence for sentence in last.reading())


def test_results_come_while_it_runs_and_maps_are_distributions(known: list[HeadExperiment]) -> None:
    assert len(known) > 10
    assert not known[0].of(1)
    run = known[-1].runs[-1]
    assert run.maps.shape == (len(run.steps), 4, LENGTH, LENGTH)
    np.testing.assert_allclose(run.maps.sum(axis=-1) / 255, 1, atol=LENGTH / 255)
    assert run.maps[-1].max() > run.maps[0].max()  # heads have found where to look


def test_a_seed_gives_the_same_run_again(known: list[HeadExperiment]) -> None:
    again = next(iter(run_experiment(Settings(n_heads=(4,), seeds=(0,), steps=220))))
    first = known[-1].of(4)[0]
    assert again.runs[0].accuracy[0] == first.accuracy[0]
    *_, last = run_experiment(Settings(n_heads=(4,), seeds=(0,), steps=220))
    assert last.runs[0].accuracy == pytest.approx(first.accuracy, abs=0.02)


def test_it_is_written_and_read_without_loss(known: list[HeadExperiment]) -> None:
    last = known[-1]
    read = HeadExperiment.from_json(last.to_json())
    assert read.settings == last.settings
    assert read.probe == last.probe
    assert read.summary() == last.summary()
    np.testing.assert_array_equal(read.runs[-1].maps, last.runs[-1].maps)


def test_the_packaged_result_is_complete_and_can_be_reached_again(known: list[HeadExperiment]) -> None:
    packaged = HeadExperiment.from_json(asset("head-experiment.json").read_text(encoding="utf-8"))
    assert packaged.settings == Settings()
    assert sum(run.is_done for run in packaged.runs) == packaged.total
    row = {row["heads"]: row for row in packaged.summary()}
    # The same seeds for fewer steps end on the way there.
    assert known[-1].of(1)[0].accuracy[-1] == pytest.approx(row[1]["accuracy"], abs=0.05)
    assert row[4]["accuracy"] > 0.9


@pytest.mark.parametrize(
    "settings", [{"n_heads": (3,)}, {"n_heads": ()}, {"seeds": ()}, {"steps": 1}, {"n_relations": 5}]
)
def test_what_cannot_be_trained_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"does not divide|needs heads|this task has"):
        Settings(**settings)  # type: ignore[arg-type]
