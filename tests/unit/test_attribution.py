"""Direct attribution: shares sum to the logit difference, equal an independent computation, or are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mha_core import HeadAblation, InterventionError, Trace, head_ablation_sweep, load_model
from mha_core.attribution import direct_logit_attribution, self_repair
from mha_core.pretrained import PretrainedModel
from tests.tiny import tiny_model_dir

TEXT = "the cat sat on the mat"
TARGET = "a dog ran"


def _load(family: str, factory: pytest.TempPathFactory) -> PretrainedModel:
    model = load_model(str(tiny_model_dir(family, factory)))
    assert isinstance(model, PretrainedModel)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> PretrainedModel:
    return _load("llama", tmp_path_factory)


@pytest.mark.parametrize("family", ["gpt2", "gpt-neox", "opt", "llama", "mistral", "qwen3", "phi3", "t5"])
def test_shares_sum_to_the_logit_difference(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = _load(family, tmp_path_factory)
    trace = model.run(TEXT, target=TARGET)
    logits = trace.logits_at([-1])[0]
    for site in [site for site in model.sites if site != "enc"]:
        shares = direct_logit_attribution(model, trace, site=site)
        ids = [model.token_id(word) for word in shares.answers]
        assert abs(shares.total - float(logits[ids[0]] - logits[ids[1]])) <= 1e-5
        parts = [shares.heads, shares.other_attention, shares.biases, shares.mlps]
        summed = sum(part.sum() for part in parts) + shares.embedding + shares.constant
        assert abs(summed + shares.remainder - shares.total) <= 1e-9
        assert abs(shares.remainder) <= 1e-4
        assert abs(shares.heads).max() > 1e-3
        assert np.allclose(shares.removed, -shares.heads)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_heads_share_is_what_freezing_the_norm_leaves_of_it(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By hand: the norm's scale from the residual that it was given, the head's contribution, the unembedding."""
    model = _load(family, tmp_path_factory)
    seen: list[Tensor] = []
    norm = model.hf.model.norm if family == "llama" else model.hf.transformer.ln_f
    handle = norm.register_forward_pre_hook(lambda module, args: seen.append(args[0][0]))
    trace = model.run(TEXT)
    handle.remove()
    shares = direct_logit_attribution(model, trace, position=-2)
    residual = seen[0][-2]
    first, second = (model.hf.lm_head.weight[model.token_id(word)] for word in shares.answers)
    for layer, head in ((0, 1), (1, 3)):
        written = trace.contributions(layer)[head, -2]
        if family == "llama":
            scaled = written / (residual.pow(2).mean() + norm.variance_epsilon).sqrt()
        else:
            scaled = (written - written.mean()) / (residual.var(unbiased=False) + norm.eps).sqrt()
        expected = float((scaled * norm.weight) @ (first - second))
        assert abs(shares.heads[layer, head] - expected) <= 1e-5
    assert shares.position == len(trace.tokens) - 2


@pytest.mark.parametrize(
    ("family", "words"),
    [("bert", "norm or a factor"), ("gemma2", "norm or a factor"), ("gemma3", "norm or a factor"),
     ("bart", "norm or a factor"), ("albert", "norm or a factor"), ("modernbert", "one linear map"),
     ("bert-encoder", "no words")],
)  # fmt: skip
def test_families_without_a_direct_path_are_refused(
    family: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(InterventionError, match=words):
        direct_logit_attribution(_load(family, tmp_path_factory), TEXT, target=TARGET)


def test_looking_at_the_blocks_leaves_the_model_as_it_was(llama: PretrainedModel) -> None:
    hooks = sum(len(module._forward_hooks) for module in llama.hf.modules())
    before = llama.run(TEXT).hidden
    direct_logit_attribution(llama, TEXT)
    assert sum(len(module._forward_hooks) for module in llama.hf.modules()) == hooks
    assert torch.equal(before, llama.run(TEXT).hidden)


def test_one_word_a_plan_and_a_mean(llama: PretrainedModel) -> None:
    word = llama.surface(llama.tokenize(TEXT).ids[2])
    trace: Trace = llama.run(TEXT, HeadAblation(["L0H1"]))
    shares = direct_logit_attribution(llama, trace, word, kind="mean", reference=(TEXT,))
    assert abs(shares.total - float(trace.logits_at([-1])[0][llama.token_id(word)])) <= 1e-5
    assert shares.heads[0, 1] == 0
    assert abs(shares.removed + shares.heads).max() > 1e-3
    with pytest.raises(InterventionError, match="position is 99"):
        direct_logit_attribution(llama, TEXT, position=99)


def test_self_repair_is_nothing_where_nothing_comes_after(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = _load("llama", tmp_path_factory)
    model.hf.model.norm = torch.nn.Identity()
    model.hf.model.layers[1].mlp.down_proj.weight.zero_()
    shares = direct_logit_attribution(model, TEXT)
    assert len(shares.answers) == 2
    total = head_ablation_sweep(model, TEXT, answers=(shares.answers[0], shares.answers[1])).effects
    repair = self_repair(shares, total)
    assert abs(repair[1]).max() <= 1e-4
    assert abs(repair[0]).max() > 1e-3
    assert np.allclose(repair, total + shares.heads)
    assert np.allclose(self_repair(shares.heads, total), repair)
    with pytest.raises(ValueError, match="layer, head"):
        self_repair(shares, total[:1])
