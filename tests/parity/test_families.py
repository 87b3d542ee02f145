"""Every family on our attention equals the library's own, clean and with heads changed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mha_core import HeadAblation, HeadRef, InterventionError, Interventions, Trace, load_model
from mha_core.model import Model
from tests.parity.reference import (
    N_HEADS,
    N_LAYERS,
    Reference,
    difference,
    result,
    result_of,
    weights_by_site,
)
from tests.tiny import ENCODER_DECODERS, FAMILIES, REFUSED, tiny_model_dir

SENTENCE = "When Mary and John went to the store, John gave a drink to"
TARGET = "The keys are on the table."
OTHERS = ("The keys to the old wooden cabinet", "I love machine learning.", "Rain fell on the garden all night long.")
SHARED_KEYS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Pair:
    """One family, on our attention and on the library's."""

    model: Model
    reference: Reference
    clean: Trace

    def slots(self) -> Iterator[tuple[str, int]]:
        """Every site with its first and its last layer."""
        for site in self.reference.sites():
            yield from ((site, layer) for layer in (0, N_LAYERS - 1))


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tiny_model_dir(request.param, tmp_path_factory)
    model = load_model(str(folder))
    return Pair(model, Reference(request.param, folder), model.run(SENTENCE, target=TARGET))


def test_sites_and_kind(pair: Pair) -> None:
    assert tuple(pair.model.sites) == pair.reference.sites()
    assert all((s.n_layers, s.n_heads) == (N_LAYERS, N_HEADS) for s in pair.model.sites.values())
    heads_kept = {s.n_kv_heads for s in pair.model.sites.values()}
    assert heads_kept == ({2} if pair.reference.family in SHARED_KEYS else {N_HEADS})


def test_clean_run_equals_the_library(pair: Pair) -> None:
    assert difference(result_of(pair.clean), result(pair.reference.again(pair.clean))) <= TOLERANCE


def test_weights_of_every_head_equal_the_library(pair: Pair) -> None:
    expected = weights_by_site(pair.reference.again(pair.clean))
    for site in pair.reference.sites():
        for layer in range(N_LAYERS):
            weights = pair.clean.weights(layer, site)
            assert difference(weights, expected[site][layer][0]) <= TOLERANCE, (site, layer)
            assert difference(weights.sum(-1), torch.ones(weights.shape[:2])) <= TOLERANCE, (site, layer)


def test_heads_differ_and_rows_are_not_uniform(pair: Pair) -> None:
    """The tiny models would prove nothing if their heads were alike."""
    for site, layer in pair.slots():
        weights = pair.clean.weights(layer, site)
        assert difference(weights[0], weights[3]) > 0.05
        assert weights[:, -1].amax(-1).min() > 1.2 / weights.shape[-1]


@pytest.mark.parametrize("plan", ["empty", "scale by one", "scale by one at a position"])
def test_a_plan_that_changes_nothing_is_bit_equal(pair: Pair, plan: str) -> None:
    slots = [] if plan == "empty" else list(pair.slots())
    positions = [0] if plan.endswith("position") else None
    items = [HeadAblation([HeadRef(layer, 1, site)], "scale", positions, factor=1.0) for site, layer in slots]
    trace = _run(pair, Interventions(items))
    assert torch.equal(trace.hidden, pair.clean.hidden)
    assert torch.equal(result_of(trace), result_of(pair.clean))


def test_zero_ablation(pair: Pair) -> None:
    for site, layer in pair.slots():
        trace = _run(pair, HeadAblation([HeadRef(layer, 2, site)]))
        assert _differs(trace, pair.clean), (site, layer)
        with pair.reference.replacing(site, layer, [2], 0.0):
            _check_equal(trace, pair.reference)


def test_zero_ablation_of_several_heads_in_several_layers(pair: Pair) -> None:
    site = pair.reference.sites()[-1]
    trace = _run(pair, HeadAblation([HeadRef(0, 0, site), HeadRef(0, 3, site), HeadRef(1, 1, site)]))
    with pair.reference.replacing(site, 0, [0, 3], 0.0), pair.reference.replacing(site, 1, [1], 0.0):
        _check_equal(trace, pair.reference)


def test_mean_ablation_over_the_sentence(pair: Pair) -> None:
    for site, layer in pair.slots():
        z = pair.reference.head_outputs(pair.clean.tokens, pair.clean.source_tokens, site, layer)
        trace = _run(pair, HeadAblation([HeadRef(layer, 1, site)], "mean", reference="sentence"))
        assert _differs(trace, pair.clean), (site, layer)
        with pair.reference.replacing(site, layer, [1], z.mean(dim=0)[[1]]):
            _check_equal(trace, pair.reference)


def test_mean_ablation_over_other_sentences(pair: Pair) -> None:
    """The means come from padded batches; the reference runs the sentences one by one."""
    others = [pair.model.run(sentence) for sentence in OTHERS]
    for site, layer in pair.slots():
        z = torch.cat([pair.reference.head_outputs(t.tokens, t.source_tokens, site, layer) for t in others])
        trace = _run(pair, HeadAblation([HeadRef(layer, 1, site)], "mean", reference=OTHERS))
        with pair.reference.replacing(site, layer, [1], z.mean(dim=0)[[1]]):
            _check_equal(trace, pair.reference)


def test_resampling_takes_the_other_sentences_head_outputs(pair: Pair) -> None:
    other = SENTENCE.replace("Mary and John", "John and Mary")
    source = pair.model.run(other, target=TARGET)
    site, layer = next(pair.slots())
    z = pair.reference.head_outputs(source.tokens, source.source_tokens, site, layer)
    trace = _run(pair, HeadAblation([HeadRef(layer, 0, site)], "resample", source=other))
    assert _differs(trace, pair.clean)
    with pair.reference.replacing(site, layer, [0], z[:, 0, None]):
        _check_equal(trace, pair.reference)


def test_positions_limit_an_ablation(pair: Pair) -> None:
    """In the first layer the other positions of the layer's output stay as they were, bit for bit."""
    for site in pair.reference.sites():
        trace = _run(pair, HeadAblation([HeadRef(0, 1, site)], positions=[1, -1]))
        z, before = trace.head_outputs(0, site), pair.clean.head_outputs(0, site)
        assert not z[1, [1, -1]].any()
        assert torch.equal(z[1, 2:-1], before[1, 2:-1])
        assert torch.equal(z[1, 0], before[1, 0])
        assert torch.equal(z[[0, 2, 3]], before[[0, 2, 3]])


def test_edits_are_per_query_head(pair: Pair) -> None:
    """Where query heads share a key/value head, one of them is changed alone."""
    for site, layer in pair.slots():
        trace = _run(pair, HeadAblation([HeadRef(layer, 1, site)]))
        z, before = trace.head_outputs(layer, site), pair.clean.head_outputs(layer, site)
        assert not z[1].any()
        assert torch.equal(z[[0, 2, 3]], before[[0, 2, 3]])


def test_contributions_sum_to_what_the_layer_wrote(pair: Pair) -> None:
    plan = HeadAblation([HeadRef(0, 1, pair.reference.sites()[0])], "scale", factor=0.5)
    for trace in (pair.clean, _run(pair, plan)):
        for site, layer in pair.slots():
            total = trace.contributions(layer, site).sum(0)
            bias = trace.output_projection(layer, site).bias
            total = total if bias is None else total + bias
            assert difference(total, trace.attention_output(layer, site)) <= TOLERANCE, (site, layer)
            assert trace.contribution_error(layer, site) <= TOLERANCE


def test_causal_models_never_see_the_future(pair: Pair) -> None:
    for name, site in pair.model.sites.items():
        expected = name == "dec" or (name == "self" and pair.model.kind == "causal-lm")
        assert site.causal == expected
        if expected:
            for layer in range(N_LAYERS):
                assert not pair.clean.weights(layer, name).triu(1).any(), (name, layer)


def test_what_cannot_be_done_raises(pair: Pair) -> None:
    site = pair.reference.sites()[0]
    for head in (HeadRef(0, N_HEADS, site), HeadRef(N_LAYERS, 0, site)):
        with pytest.raises(InterventionError, match=str(head)):
            _run(pair, HeadAblation([head]))
    missing = "cross" if site == "self" else "self"
    with pytest.raises(InterventionError, match="cross" if missing == "cross" else "enc, dec, cross"):
        _run(pair, HeadAblation([HeadRef(0, 0, missing)]))
    with pytest.raises(InterventionError, match="500"):
        _run(pair, HeadAblation([HeadRef(0, 0, site)], positions=[500]))


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_bypass_the_attention_interface_are_refused_by_name(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tiny_model_dir(family, tmp_path_factory).rename(tmp_path_factory.mktemp("model") / "folder")
    with pytest.raises(ValueError, match=rf"(?i){family.replace('-', '.?')}"):
        load_model(str(folder))


@pytest.mark.parametrize("family", ["bert", "bert-encoder", "albert", "electra"])
def test_pairs_equal_the_library(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_model_dir(family, tmp_path_factory)
    trace = load_model(str(folder)).run(OTHERS[0], text_pair=OTHERS[1])
    assert set(trace.tokens.type_ids or ()) == {0, 1}
    assert difference(result_of(trace), result(Reference(family, folder).again(trace))) <= TOLERANCE


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_without_a_target_it_reads_its_own_greedy_output(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_model_dir(family, tmp_path_factory)
    trace = load_model(str(folder)).run(SENTENCE)
    assert trace.source_tokens is not None
    source = torch.tensor([trace.source_tokens.ids])
    written = Reference(family, folder).hf.generate(source, do_sample=False, num_beams=1, max_new_tokens=12)
    n = min(len(trace.tokens), 12)
    assert list(trace.tokens.ids[:n]) == written[0, :n].tolist()


@pytest.mark.parametrize("family", ["llama", "albert", "t5"])
def test_two_plans_at_once_on_one_model_never_meet(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = load_model(str(tiny_model_dir(family, tmp_path_factory)))
    site = list(model.sites)[-1]
    plans = [
        None,
        *(HeadAblation([HeadRef(layer, head, site)]) for layer in range(N_LAYERS) for head in range(N_HEADS)),
    ]
    alone = [model.run(SENTENCE, plan, target=TARGET).hidden for plan in plans]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda plan: model.run(SENTENCE, plan, target=TARGET).hidden, plans * 5))
    assert all(difference(a, b) <= 1e-6 for a, b in zip(together, alone * 5, strict=True))


def _run(pair: Pair, plan: Interventions | HeadAblation) -> Trace:
    return pair.model.run(SENTENCE, plan, target=TARGET)  # only encoder-decoders have a target


def _differs(trace: Trace, clean: Trace) -> bool:
    return difference(result_of(trace), result_of(clean)) > 1e-3


def _check_equal(trace: Trace, reference: Reference) -> None:
    """Result and every map of an ablated run, against the reference in its present state."""
    output = reference.again(trace)
    assert difference(result_of(trace), result(output)) <= TOLERANCE
    for site, layers in weights_by_site(output).items():
        for layer, expected in enumerate(layers):
            weights: Tensor = trace.weights(layer, site)
            assert difference(weights, expected[0]) <= TOLERANCE, (site, layer)
