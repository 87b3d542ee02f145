"""The clean scores that are shown beside tasks: they belong to the prompts and models that there are, and repeat."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from mha_core import Model, load_model
from mha_core import __main__ as commands
from mha_core.evaluation import FIRST, evaluate
from mha_core.known_scores import MODELS, KnownScore, described_tasks, known_score, known_scores, sample_score
from mha_core.task_sets import built_in, offered, task_names
from mha_core.tasks import CHANCE

MEASURED = [(score.model, score.task) for score in known_scores()]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: load_model(name) for name in MODELS}


def _known(model: Model, task: str) -> KnownScore:
    found = known_score(model, built_in(task, model))
    assert found is not None, "the prompts or the model changed: run python -m mha_core.known_scores"
    return found


def test_every_task_that_a_packaged_model_is_offered_is_measured(models: dict[str, Model]) -> None:
    assert [(name, task.name) for name, model in models.items() for task in offered(model)] == MEASURED
    assert {task for _, task in MEASURED} == set(task_names()) - {"masked-word"}, "no masked model is packaged"


@pytest.mark.parametrize(("name", "task"), MEASURED)
def test_a_clean_model_is_well_above_chance_and_a_sample_measured_again_is_the_same(
    name: str, task: str, models: dict[str, Model]
) -> None:
    model = models[name]
    known, asked = _known(model, task), built_in(task, model)
    assert known.n == len(asked.prompts)
    assert known.templates == len(asked.templates)
    accuracy, finer = known.scores
    assert accuracy.low > CHANCE + 0.2
    again = evaluate(model, asked, (), n=FIRST)
    assert sample_score(again) == pytest.approx(known.sample, abs=0.02)
    interval = again.clean_score(finer.metric)
    assert interval.low <= finer.high
    assert finer.low <= interval.high


def test_a_score_of_other_prompts_or_another_file_is_not_shown(models: dict[str, Model]) -> None:
    model = models["date-translator"]
    task = built_in("dates", model)
    assert known_score(model, task) is not None
    assert known_score(model, built_in("dates", model, seed=1)) is None
    assert known_score(model, replace(task, prompts=task.prompts[:-1])) is None
    changed = replace(task.prompts[0], slices={"format": "other"})
    assert known_score(model, replace(task, prompts=(changed, *task.prompts[1:]))) is None
    other = copy.copy(model)
    other.details = replace(model.details, sha256="0" * 64)
    assert known_score(other, task) is None


def test_the_help_names_each_task_and_how_packaged_models_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.main(["evaluate", "--help"])
    text = capsys.readouterr().out
    assert described_tasks() in text
    for score in known_scores():
        assert f"{score.title}: right in {score.accuracy:.1%} of {score.n:,}" in text
    assert all(name in text for name in task_names())
