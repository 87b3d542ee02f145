"""The sweep equals one run per head: every family, every site, every kind."""

from __future__ import annotations

import pytest
import torch

from mha_core import HeadAblation, HeadRef, InterventionError, Model, load_model
from mha_core.metrics import cosine_similarity, kl_divergence, sentence_embedding
from mha_core.sweep import head_ablation_sweep, sweep_steps
from tests.tiny import FAMILIES, tiny_model_dir

TEXT = "the cat sat on the mat"
OTHER = "the dog sat on the mat"
TARGET = "a dog ran"


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir(request.param, tmp_path_factory)))


def _target(model: Model) -> str | None:
    return TARGET if model.kind == "seq2seq" else None


def _one_by_one(model: Model, site: str, kind: str, **arguments: object) -> torch.Tensor:
    clean = model.run(TEXT, target=_target(model))
    shape = model.sites[site]
    effects = torch.zeros(shape.n_layers, shape.n_heads, dtype=torch.float64)
    for layer in range(shape.n_layers):
        for head in range(shape.n_heads):
            plan = HeadAblation([HeadRef(layer, head, site)], kind, **arguments)  # type: ignore[arg-type]
            run = model.run(TEXT, plan, target=_target(model))
            if clean.has_logits:
                effects[layer, head] = kl_divergence(clean.logits_at([-1])[0], run.logits_at([-1])[0])
            else:
                vectors = sentence_embedding(run.hidden), sentence_embedding(clean.hidden)
                effects[layer, head] = 1 - cosine_similarity(*vectors)
    return effects


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("zero", {}),
        ("zero", {"positions": (1, 2)}),
        ("mean", {"reference": (TEXT, OTHER)}),
        ("mean", {"reference": "sentence"}),
    ],
    ids=["zero", "zero at positions", "mean", "sentence mean"],
)
def test_the_sweep_equals_one_run_per_head(model: Model, kind: str, arguments: dict[str, object]) -> None:
    for site in model.sites:
        everything = {"kind": kind, "site": site, "target": _target(model), **arguments}
        sweep = head_ablation_sweep(model, TEXT, **everything)  # type: ignore[arg-type]
        expected = _one_by_one(model, site, kind, **arguments)
        assert sweep.effects.shape == tuple(expected.shape)
        assert float((torch.from_numpy(sweep.effects) - expected).abs().max()) <= 1e-5
        # Equality says something where heads matter. (Gemma 3's tiny model hardly listens to any; nor does a last
        # position that is out of reach of the changed ones.)
        assert sweep.effects.max() > 1e-4 or "positions" in arguments or "gemma3" in model.name


def test_resampling_in_a_sweep_equals_one_run_per_head(model: Model) -> None:
    other = OTHER if len(model.tokenize(OTHER)) == len(model.tokenize(TEXT)) else TEXT[::-1]
    if len(model.tokenize(other)) != len(model.tokenize(TEXT)):
        other = TEXT.replace("cat", "mat").replace("on the mat", "on the cat")
    sweep = head_ablation_sweep(model, TEXT, kind="resample", source=other, target=_target(model))
    expected = _one_by_one(model, sweep.site, "resample", source=other)
    assert float((torch.from_numpy(sweep.effects) - expected).abs().max()) <= 1e-5


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir("llama", tmp_path_factory)))


def test_small_chunks_give_the_same_numbers(llama: Model) -> None:
    whole = head_ablation_sweep(llama, TEXT)
    single = head_ablation_sweep(llama, TEXT, memory_budget=1)
    assert single.done == whole.done == whole.effects.size
    assert abs(whole.effects - single.effects).max() <= 1e-6


def test_a_stopped_sweep_keeps_what_it_has(llama: Model) -> None:
    steps = sweep_steps(llama, TEXT, memory_budget=1)
    first = next(steps)
    steps.close()
    assert first.done == 1
    assert len(first.ranking()) == 1
    assert torch.equal(llama.run(TEXT).logits, llama.run(TEXT).logits)  # type: ignore[arg-type]
    assert abs(head_ablation_sweep(llama, TEXT).effects[0, 0] - first.effects[0, 0]) <= 1e-6


@pytest.mark.parametrize("metric", ["loss", "top1_prob"])
def test_other_metrics_equal_their_definition(llama: Model, metric: str) -> None:
    sweep = head_ablation_sweep(llama, TEXT, metric=metric)
    clean, ablated = llama.run(TEXT), llama.run(TEXT, HeadAblation([HeadRef(1, 2)]))
    ids = torch.tensor(clean.tokens.ids)

    def value(trace: object) -> float:
        logits = trace.logits  # type: ignore[attr-defined]
        if metric == "loss":
            return float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:]))
        assert clean.logits is not None
        return float(logits[-1].softmax(-1)[clean.logits[-1].argmax()])

    assert abs(sweep.baseline - value(clean)) <= 1e-6
    assert abs(sweep.effects[1, 2] - (value(ablated) - value(clean))) <= 1e-5


def test_answers_are_words_of_one_token_and_change_sign_when_swapped(llama: Model) -> None:
    words = [llama.surface(number) for number in llama.tokenize("the cat").ids[:2]]
    forth = head_ablation_sweep(llama, TEXT, metric="logit_diff", answers=(words[0], words[1]))
    back = head_ablation_sweep(llama, TEXT, metric="logit_diff", answers=(words[1], words[0]))
    assert abs(forth.effects + back.effects).max() <= 1e-5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric": "nonsense"}, "metric"),
        ({"kind": "uniform"}, "kind"),
        ({"metric": "logit_diff"}, "answers"),
        ({"site": "cross"}, "site"),
        ({"positions": (99,)}, "position 99"),
    ],
)
def test_what_cannot_be_swept_is_said(llama: Model, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InterventionError, match=words):
        head_ablation_sweep(llama, TEXT, **arguments)  # type: ignore[arg-type]


def test_our_own_layer_is_swept_too() -> None:
    sweep = head_ablation_sweep(load_model("own-layer", d_model=16, n_heads=4), TEXT)
    assert sweep.effects.shape == (1, 4)
    assert sweep.metric == "cosine_distance"
    assert (sweep.effects > 0).all()


