"""A pretrained layer's projections in our own layer give that layer's attention output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mha_core import HeadAblation, HeadRef, InterventionError, load_model
from mha_core.layer import MultiHeadAttention
from mha_core.pretrained import PretrainedModel
from tests.parity.reference import N_HEADS, N_LAYERS, difference
from tests.tiny import FAMILIES, tiny_model, tiny_model_dir, tiny_tokenizer

SENTENCE = "The animal crossed the road because it was"
TARGET = "The keys are on the table."
ABSOLUTE = ("bert", "bert-encoder", "roberta", "distilbert", "albert", "electra", "gpt2", "opt", "bart", "marian")
INSIDE = ("modernbert", "gpt-neox", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")


def _load(family: str, factory: pytest.TempPathFactory) -> PretrainedModel:
    model = load_model(str(tiny_model_dir(family, factory)))
    assert isinstance(model, PretrainedModel)
    return model


def _inputs_of(module: nn.Module, model: PretrainedModel) -> list[tuple[Tensor, Tensor | None]]:
    """The hidden states, and context, of every call of an attention module in one run."""
    seen: list[tuple[Tensor, Tensor | None]] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        context = kwargs.get("key_value_states")
        seen.append((x, args[1] if context is None and len(args) > 1 and isinstance(args[1], Tensor) else context))

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    model.run(SENTENCE, target=TARGET)
    handle.remove()
    return seen


@pytest.mark.parametrize("family", ABSOLUTE)
def test_same_output_same_weights_same_contributions(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = _load(family, tmp_path_factory)
    trace = model.run(SENTENCE, target=TARGET)
    for site in model.sites:
        for number in range(N_LAYERS):
            layer = MultiHeadAttention.from_model(model, layer=number, site=site)
            calls = _inputs_of(model.module_at(site, number), model)
            x, context = calls[number if len(calls) > 1 else 0]  # ALBERT calls one module for every layer
            out = layer(x, context if site == "cross" else None)
            assert difference(out.output[0], trace.attention_output(number, site)) <= 1e-5, (site, number)
            assert difference(out.weights[0], trace.weights(number, site)) <= 1e-5
            assert difference(out.contributions[0], trace.contributions(number, site)) <= 1e-5
            assert difference(out.head_outputs[0], trace.head_outputs(number, site)) <= 1e-5


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt"])
def test_ablation_equals_the_models_own(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = _load(family, tmp_path_factory)
    layer = MultiHeadAttention.from_model(model, layer=0)
    x, _ = _inputs_of(model.module_at("self", 0), model)[0]
    for kind, extra in (("zero", {}), ("mean", {"reference": "sentence"}), ("scale", {"factor": 0.5}), ("uniform", {})):
        plan = [HeadAblation([HeadRef(0, 1)], kind, **extra)]  # type: ignore[arg-type]
        trace = model.run(SENTENCE, plan)
        assert difference(layer(x, ablation=plan).output[0], trace.attention_output(0)) <= 1e-5, kind


def test_heads_go_by_the_models_layer_number_or_by_zero(tmp_path_factory: pytest.TempPathFactory) -> None:
    layer = MultiHeadAttention.from_model(_load("bert", tmp_path_factory), layer=1)
    assert (layer.layer_index, layer.site, layer.causal) == (1, "self", False)
    x = torch.randn(1, 4, layer.d_model)
    by_number, by_zero = (layer(x, ablation=[HeadAblation(name)]).output for name in ("L1H2", "L0H2"))
    assert torch.equal(by_number, by_zero)
    with pytest.raises(InterventionError, match="L3H2"):
        layer(x, ablation=[HeadAblation("L3H2")])


def test_the_weights_are_the_models_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Copied, not fitted; and ours can be trained without touching the model."""
    model = _load("opt", tmp_path_factory)
    layer = MultiHeadAttention.from_model(model, layer=1)
    theirs = model.hf.get_submodule("model.decoder.layers.1.self_attn.q_proj").weight
    assert isinstance(theirs, Tensor)
    assert torch.equal(layer.W_Q.permute(0, 2, 1).reshape(theirs.shape), theirs)
    before = theirs.clone()
    layer(torch.randn(1, 4, 32)).output.sum().backward()
    assert layer.W_Q.grad is not None
    with torch.no_grad():
        layer.W_Q.add_(1.0)
    assert torch.equal(theirs, before)


def test_a_causal_models_layer_is_causal(tmp_path_factory: pytest.TempPathFactory) -> None:
    layer = MultiHeadAttention.from_model(_load("gpt2", tmp_path_factory), layer=0)
    x = torch.randn(1, 5, layer.d_model)
    assert not layer(x).weights.triu(1).any()
    assert layer(x, causal=False).weights.triu(1).any()


@pytest.mark.parametrize("family", INSIDE)
def test_positions_inside_the_attention_are_refused(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = _load(family, tmp_path_factory)
    name = FAMILIES[family].model
    with pytest.raises(ValueError, match=rf"{name}.*inside.*Model\.run"):
        MultiHeadAttention.from_model(model, layer=1)


def test_relative_positions_are_refused_and_t5s_cross_attention_is_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = _load("t5", tmp_path_factory)
    for site in ("enc", "dec"):
        for number in range(N_LAYERS):
            with pytest.raises(ValueError, match="bias for the distance"):
                MultiHeadAttention.from_model(model, layer=number, site=site)
    layer = MultiHeadAttention.from_model(model, layer=0, site="cross")
    trace = model.run(SENTENCE, target=TARGET)
    x, context = _inputs_of(model.module_at("cross", 0), model)[0]
    assert difference(layer(x, context).output[0], trace.attention_output(0, "cross")) <= 1e-5


def test_layers_and_sites_that_are_not_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = _load("bert", tmp_path_factory)
    with pytest.raises(ValueError, match="layer is 7; this model has 2 layers"):
        MultiHeadAttention.from_model(model, layer=7)
    with pytest.raises(ValueError, match="'cross'; it has self"):
        MultiHeadAttention.from_model(model, layer=0, site="cross")


def test_a_scale_of_the_models_own_is_absorbed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """GPT-2 can divide its scores by the layer number as well."""
    folder = tmp_path_factory.mktemp("scaled")
    tiny_tokenizer("gpt2").save_pretrained(folder)
    tiny_model("gpt2", scale_attn_by_inverse_layer_idx=True).save_pretrained(folder)
    model = load_model(str(folder))
    assert isinstance(model, PretrainedModel)
    layer = MultiHeadAttention.from_model(model, layer=1)
    x, _ = _inputs_of(model.module_at("self", 1), model)[0]
    trace = model.run(SENTENCE)
    assert difference(layer(x).weights[0], trace.weights(1)) <= 1e-5
    assert layer.n_heads == N_HEADS
