"""One model, many people at once: no run ever sees another's plan, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from mha_core import AttentionKnockout, HeadAblation, Interventions, head_ablation_sweep, load_model
from mha_core.attribution import direct_logit_attribution
from mha_core.pairs import pair_effects
from mha_core.pretrained import PretrainedModel
from mha_core.preview import head_ablation_preview
from tests.tiny import tiny_model_dir

TEXT = "the cat sat on the mat"
OTHER = "the dog sat on the mat"
PLANS = (
    Interventions(),
    Interventions(HeadAblation(["L0H1", "L1H3"])),
    Interventions(HeadAblation(["L0H2"], "mean", reference=(OTHER, "I love machine learning."))),
    Interventions(HeadAblation(["L1H0"], "mean", reference="sentence")),
    Interventions(HeadAblation(["L0H0"], "resample", (1, 2, -1), source=OTHER)),
    Interventions([HeadAblation(["L0H3"], "scale", factor=-1.5), HeadAblation(["L1H2"], "uniform")]),
    Interventions(AttentionKnockout([1, 2], [3, 4])),
    Interventions([AttentionKnockout([0], [-1], heads=["L1H1"]), HeadAblation(["L0H1"], positions=(2,))]),
)
N_RUNS = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PretrainedModel:
    loaded = load_model(str(tiny_model_dir("llama", tmp_path_factory)))
    assert isinstance(loaded, PretrainedModel)
    return loaded


def _results(model: PretrainedModel, plan: Interventions) -> tuple[Tensor, Tensor, Tensor]:
    trace = model.run(TEXT, plan)
    return trace.hidden, trace.weights(1), trace.logits_at([-1])


def _hidden(model: PretrainedModel, plan: Interventions) -> list[list[float]]:
    numbers: list[list[float]] = model.run(TEXT, plan).hidden.tolist()
    return numbers


def test_eight_threads_with_eight_plans_get_no_wrong_number_in_400_runs(model: PretrainedModel) -> None:
    serial = [_results(model, plan) for plan in PLANS]
    assert len({tuple(hidden.flatten().tolist()) for hidden, _, _ in serial}) == len(PLANS)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: _results(model, PLANS[number % 8]), range(N_RUNS)))
    wrong = [
        number
        for number, results in enumerate(together)
        if not all(torch.equal(a, b) for a, b in zip(results, serial[number % 8], strict=True))
    ]
    assert len(together) == N_RUNS
    assert wrong == []


def test_runs_beside_sweeps_previews_and_attributions_stay_what_they_are(model: PretrainedModel) -> None:
    """Each of these puts something of its own under the model: blocks, gradients, copies."""
    work: list[Callable[[], object]] = [
        lambda: np.array(head_ablation_sweep(model, TEXT).effects).tolist(),
        lambda: np.array(head_ablation_preview(model, TEXT, metric="loss").estimates).tolist(),
        lambda: np.array(direct_logit_attribution(model, TEXT).heads).tolist(),
        lambda: np.array(pair_effects(model, TEXT, ["L0H1", "L1H2", "L1H3"]).joint).tolist(),
        *(partial(_hidden, model, plan) for plan in PLANS[:4]),
    ]
    alone = [task() for task in work]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: work[number % 8](), range(64)))
    assert [number for number, result in enumerate(together) if result != alone[number % 8]] == []


@pytest.mark.parametrize("number", range(1, len(PLANS)))
def test_a_clean_run_after_an_ablated_one_is_the_first_clean_run(model: PretrainedModel, number: int) -> None:
    first = model.run(TEXT)
    model.run(TEXT, PLANS[number])
    again = model.run(TEXT)
    assert torch.equal(first.hidden, again.hidden)
    assert all(torch.equal(first.weights(layer), again.weights(layer)) for layer in range(2))
    assert again.applied == ()


def test_a_run_that_was_stopped_leaves_nothing(model: PretrainedModel) -> None:
    class StoppedError(Exception):
        """What a page raises when its visitor has gone."""

    calls: list[int] = []

    def stop(done: int, total: int) -> None:
        calls.append(done)
        if done == 1:
            raise StoppedError

    first = model.run(TEXT)
    with pytest.raises(StoppedError):
        model.run(TEXT, PLANS[1], progress=stop)
    assert calls == [0, 1]
    assert torch.equal(first.hidden, model.run(TEXT).hidden)
