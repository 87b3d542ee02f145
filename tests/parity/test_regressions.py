"""Mistakes that were easy to make, each as a test that fails when it is made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

from mha_core import (
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    InterventionError,
    Interventions,
    Model,
    head_ablation_sweep,
    load_model,
)
from mha_core.metrics import kl_divergence
from mha_core.pretrained import PretrainedModel
from mha_core.resolve import Resolved
from tests.tiny import SENTENCES, tiny_model, tiny_model_dir

TEXT = "When Mary and John went to the store"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PretrainedModel]:
    made = {}
    for name in ("llama", "bert", "gpt2", "t5"):
        model = load_model(str(tiny_model_dir(name, tmp_path_factory)))
        assert isinstance(model, PretrainedModel)
        made[name] = model
    return made


@contextmanager
def _cut_after(projection: nn.Module, part: slice) -> Iterator[None]:
    """The wrong way: a slice of the output projection's output, where every head is mixed into every number."""

    def after(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        changed = output.clone()
        changed[..., part] = 0.0
        return changed

    handle = projection.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def _cut_after_the_projection(model: Any, ids: tuple[int, ...], n_layers: int, n_heads: int) -> NDArray[np.float64]:
    """KL of every "head" cut as a slice of what its layer's output projection gives, on the library's model."""
    given = {"input_ids": torch.tensor([ids]), "use_cache": False}
    effects = np.zeros((n_layers, n_heads))
    with torch.no_grad():
        clean = model(**given).logits[0, -1]
        width = model.config.hidden_size // n_heads
        for layer in range(n_layers):
            projection = model.get_submodule(f"model.layers.{layer}.self_attn.o_proj")
            for head in range(n_heads):
                with _cut_after(projection, slice(head * width, (head + 1) * width)):
                    effects[layer, head] = float(kl_divergence(clean, model(**given).logits[0, -1]))
    return effects


def test_cutting_after_the_output_projection_ranks_heads_otherwise(tmp_path_factory: pytest.TempPathFactory) -> None:
    sizes = {"num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}
    folder = tiny_model_dir("llama", tmp_path_factory)
    library = tiny_model("llama", **sizes)
    library.save_pretrained(folder)
    model = load_model(str(folder))
    ours = head_ablation_sweep(model, TEXT).effects
    wrong = _cut_after_the_projection(library, model.tokenize(TEXT).ids, 6, 8)
    correlation = float(spearmanr(ours.ravel(), wrong.ravel())[0])
    print(f"rank correlation of heads cut before and after the output projection: {correlation:.2f}")
    # Layers differ in size whichever way they are cut, so some agreement stays.
    assert correlation < 0.85
    within = [float(spearmanr(a, b)[0]) for a, b in zip(ours, wrong, strict=True)]
    assert np.mean(within) < 0.5


def test_without_heads_a_rotary_decoder_sees_the_current_token_only(models: dict[str, PretrainedModel]) -> None:
    """Positions enter through attention alone, so equal tokens give equal logits wherever they stand."""
    model = models["llama"]
    text = "the cat and the dog and the cat"
    everything = HeadAblation([HeadRef(layer, head) for layer in range(2) for head in range(4)])
    logits, ids = model.run(text, everything).logits, model.tokenize(text).ids
    clean = model.run(text).logits
    assert logits is not None
    assert clean is not None
    repeats = [(i, j) for i in range(len(ids)) for j in range(i) if ids[i] == ids[j]]
    assert len(repeats) > 5
    for i, j in repeats:
        assert float((logits[i] - logits[j]).abs().max()) <= 1e-5
        assert float((clean[i] - clean[j]).abs().max()) > 1e-2
    alone = model.run("the cat", everything).logits
    assert alone is not None
    assert float((alone - logits[: len(alone)]).abs().max()) <= 1e-5


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_ablation_at_a_position_leaves_what_comes_before(models: dict[str, PretrainedModel], family: str) -> None:
    model, at = models[family], 4
    every_head = [HeadRef(layer, head) for layer in range(2) for head in range(4)]
    clean = model.run(TEXT).hidden
    for plan in (HeadAblation(every_head, positions=[at]), AttentionKnockout([1, 2], [at])):
        changed = model.run(TEXT, plan).hidden
        assert torch.equal(changed[:at], clean[:at])
        assert float((changed[at] - clean[at]).abs().max()) > 1e-3
        assert float((changed[at + 1 :] - clean[at + 1 :]).abs().max()) > 1e-4


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2", "t5"])
def test_batch_and_padding_change_nothing(models: dict[str, PretrainedModel], family: str) -> None:
    """Means come from padded batches; here from one run a sentence, of very different lengths."""
    model = models[family]
    sentences = (*SENTENCES[:4], "I", "Rain fell.", " ".join(SENTENCES[4:7]))
    batched = model.mean_outputs(sentences)
    one_by_one = Model._mean_outputs(model, sentences, lambda done, total: None)
    assert set(batched) == set(one_by_one)
    for slot, means in batched.items():
        assert float((means - one_by_one[slot]).abs().max()) <= 1e-5, slot


def test_what_is_misspelt_raises(models: dict[str, PretrainedModel]) -> None:
    model = models["llama"]
    with pytest.raises(TypeError, match="head_mask"):
        model.run(TEXT, head_mask=torch.zeros(2, 4))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="position"):
        HeadAblation(["L0H1"], position=[1])  # type: ignore[call-arg]
    for text, words in (
        ('{"items": [{"type": "ablation", "heads": ["L0H1"], "postions": [1]}]}', "postions"),
        ('{"items": [{"type": "abaltion", "heads": ["L0H1"]}]}', "abaltion"),
        ('{"items": [{"type": "ablation", "heads": ["L0-H1"]}]}', "L0-H1"),
        ('{"items": [{"type": "ablation", "heads": ["L0H1"], "kind": "zreo"}]}', "zreo"),
    ):
        with pytest.raises(InterventionError, match=words):
            Interventions.from_json(text)
    for head, words in (("L0H4", "L0H4"), ("L2H0", "L2H0"), ("cross.L0H0", "cross")):
        with pytest.raises(InterventionError, match=words):
            model.run(TEXT, HeadAblation([head]))


def test_what_was_asked_for_and_did_not_happen_raises(models: dict[str, PretrainedModel]) -> None:
    model = models["llama"]
    plan = Interventions([HeadAblation(["L0H1"]), HeadAblation(["L1H2"])])
    resolved = model.resolved(model.prepare(TEXT), plan)
    assert resolved.applied({("self", 0): 1, ("self", 1): 1}, {}) == (1, 1)
    with pytest.raises(InterventionError, match=r"did not happen.*L1H2"):
        resolved.applied({("self", 0): 1}, {})
    lost = Resolved(plan, {}, {})
    with pytest.raises(InterventionError, match=r"did not happen.*L0H1"):
        lost.applied({}, {})
    with pytest.raises(InterventionError, match="changes nothing"):
        model.run(TEXT, AttentionKnockout([5], [2]))  # later positions are closed already
