"""Attention knockouts inside every family, and the gate: what was asked for and did not happen raises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mha_core import AttentionKnockout, HeadAblation, HeadRef, InterventionError, Trace, load_model
from mha_core.model import Model
from tests.parity.reference import N_LAYERS, Reference, difference, result, result_of, weights_by_site
from tests.tiny import FAMILIES, tiny_model_dir

SENTENCE = "The animal crossed the road because it was"
TARGET = "The keys are on the table."
DST, SRC = 3, (1, 2)  # within every sliding window of the tiny models
CAUSAL = ("gpt2", "gpt-neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")


@pytest.fixture(scope="module")
def loaded() -> dict[str, Model]:
    """Models of this file, loaded at first use."""
    return {}


@pytest.fixture
def model(request: pytest.FixtureRequest, loaded: dict[str, Model]) -> Model:
    factory = request.getfixturevalue("tmp_path_factory")
    family = request.param
    if family not in loaded:
        loaded[family] = load_model(str(tiny_model_dir(family, factory)))
    return loaded[family]


def _run(model: Model, *plan: AttentionKnockout | HeadAblation) -> Trace:
    return model.run(SENTENCE, plan, target=TARGET)


def _row_without(weights: Tensor, closed: tuple[int, ...]) -> Tensor:
    """A row of weights [..., key] with some keys closed and the rest renormalised."""
    kept = weights.clone()
    kept[..., list(closed)] = 0.0
    return kept / kept.sum(-1, keepdim=True)


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_the_row_renormalises_and_nothing_else_of_the_layer_changes(model: Model) -> None:
    clean = _run(model)
    for site in model.sites:
        trace = _run(model, AttentionKnockout(SRC, [DST], heads=[HeadRef(0, 1, site)], site=site))
        weights, before = trace.weights(0, site), clean.weights(0, site)
        assert not weights[1, DST, list(SRC)].any()
        assert difference(weights[1, DST], _row_without(before[1, DST], SRC)) <= 1e-6
        z = weights[1, DST] @ trace.inputs(0, site).value[0, trace.inputs(0, site).value.shape[1] // 4]
        assert difference(trace.head_outputs(0, site)[1, DST], z) <= 1e-5
        others = torch.ones(before.shape[:2], dtype=torch.bool)
        others[1, DST] = False
        assert torch.equal(weights[others], before[others])
        assert difference(result_of(trace), result_of(clean)) > 1e-4


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_every_head_of_every_layer_unless_named(model: Model) -> None:
    for site in model.sites:
        trace = _run(model, AttentionKnockout(SRC, [DST], site=site))
        for layer in range(N_LAYERS):
            weights = trace.weights(layer, site)
            assert not weights[:, DST, list(SRC)].any()
            assert difference(weights.sum(-1), torch.ones(weights.shape[:2])) <= 1e-5


@pytest.mark.parametrize("model", CAUSAL, indirect=True)
def test_the_future_stays_closed_even_if_nothing_is_left(model: Model) -> None:
    trace = _run(model, AttentionKnockout(range(DST + 1), [DST], heads=[1], layers=[0]))
    assert not trace.weights(0)[1, DST].any()
    assert not trace.head_outputs(0)[1, DST].any()
    empty = trace.empty_rows(0)
    assert empty is not None
    assert empty.nonzero().tolist() == [[1, DST]]
    assert not trace.weights(0).triu(1).any()
    assert not result_of(trace).isnan().any()


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_equals_the_library_with_a_mask_made_by_hand(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_model_dir(family, tmp_path_factory)
    trace = _run(load_model(str(folder)), AttentionKnockout(SRC, [DST, -1]))
    n = len(trace.tokens)
    allowed = torch.ones(n, n, dtype=torch.bool)
    if family != "bert":
        allowed = allowed.tril()
    for query in (DST, n - 1):
        allowed[query, list(SRC)] = False
    mask = torch.zeros(1, 1, n, n).masked_fill(~allowed, torch.finfo(torch.float32).min)
    output = Reference(family, folder).again(trace, attention_mask=mask)
    assert difference(result_of(trace), result(output)) <= 1e-5
    for layer, expected in enumerate(weights_by_site(output)["self"]):
        assert difference(trace.weights(layer), expected[0]) <= 1e-5


@pytest.mark.parametrize("model", ["llama", "t5"], indirect=True)
def test_naming_heads_layers_or_both_means_the_same(model: Model) -> None:
    site = next(iter(model.sites))
    by_name = _run(model, AttentionKnockout(SRC, [DST], heads=[HeadRef(1, 2, site)], site=site))
    by_number = _run(model, AttentionKnockout(SRC, [DST], heads=[2], layers=[1], site=site))
    assert torch.equal(by_name.hidden, by_number.hidden)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_a_knockout_and_a_uniform_head_together_keep_the_key_closed(model: Model) -> None:
    heads = [HeadRef(0, 1)]
    trace = _run(model, AttentionKnockout(SRC, [DST], heads=heads), HeadAblation(heads, "uniform"))
    expected = torch.tensor([0.5, 0.0, 0.0, 0.5])
    assert difference(trace.weights(0)[1, DST, : DST + 1], expected) <= 1e-6


@pytest.mark.parametrize("model", CAUSAL, indirect=True)
def test_a_knockout_of_the_future_raises(model: Model) -> None:
    with pytest.raises(InterventionError, match="changes nothing"):
        _run(model, AttentionKnockout([5], [DST]))


@pytest.mark.parametrize("model", ["bert"], indirect=True)
def test_positions_that_are_not_there_raise(model: Model) -> None:
    for src, dst in (([400], [0]), ([0], [-400])):
        with pytest.raises(InterventionError, match="400"):
            _run(model, AttentionKnockout(src, dst))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_an_intervention_that_did_not_happen_raises(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Behind our back the model is put back on the library's attention: nothing of the plan can happen."""
    model = load_model(str(tiny_model_dir(family, tmp_path_factory)))
    head = HeadRef(0, 0, next(iter(model.sites)))
    model.hf.set_attn_implementation("eager")  # type: ignore[attr-defined]
    for item in (HeadAblation([head]), AttentionKnockout([0], [1], heads=[head], site=head.site)):
        with pytest.raises(InterventionError, match="did not happen"):
            model.run(SENTENCE, item, target=TARGET)
