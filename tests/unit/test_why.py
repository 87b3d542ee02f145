"""Taking a weight apart gives the numbers of the map, in every family."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mha_core import AttentionKnockout, HeadAblation, HeadRef, Interventions, Trace, load_model
from mha_core.attention import AttentionInputs
from mha_core.model import Model
from mha_core.why import WeightExplanation, explain_weight
from tests.tiny import FAMILIES, tiny_model_dir

SENTENCE = "The keys to the old wooden cabinet"
CLOSE = 1e-6


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir(request.param, tmp_path_factory)))


def agrees(why: WeightExplanation, trace: Trace) -> None:
    """Every stage follows from the one before, and the last is the map's."""
    site, layer = why.head.site, why.head.layer
    assert why.dot == pytest.approx(float(why.product.sum()), abs=1e-4, rel=1e-5)
    np.testing.assert_allclose(why.product, why.q * why.k)
    assert why.scaled == pytest.approx(why.dot * why.scale, rel=1e-5, abs=1e-6)
    score = why.scaled
    if why.softcap is not None:
        score = why.softcap * np.tanh(why.scaled / why.softcap)
        assert why.softcapped == pytest.approx(score, rel=1e-5, abs=1e-6)
    if why.allowed:
        assert why.score == pytest.approx(score + why.bias + why.mask, rel=1e-5, abs=1e-5)
    assert why.row_scores[why.key] == pytest.approx(why.score)
    row = trace.weights(layer, site)[why.head.head, why.query].numpy()
    np.testing.assert_allclose(why.row_weights, row, atol=CLOSE)
    assert why.weight == pytest.approx(float(row[why.key]), abs=CLOSE)
    shifted = np.exp(why.row_scores.astype(float) - why.row_scores.max())
    total = shifted.sum() + (0 if why.sink is None else np.exp(why.sink - float(why.row_scores.max())))
    np.testing.assert_allclose(why.row_softmax, shifted / total, atol=CLOSE)


def test_the_numbers_are_those_of_the_map(model: Model) -> None:
    trace = model.run(SENTENCE, target="The keys are lost.")
    for site, shape in trace.sites.items():
        queries, keys = trace.site_tokens(site)
        for layer, head, query, key in ((0, 0, len(queries) - 1, 0), (1, 3, 2, 1), (1, 2, 1, len(keys) - 1)):
            why = explain_weight(trace, layer, head, query, key, site)
            agrees(why, trace)
            assert not why.edited
            assert why.notes == ()
            np.testing.assert_allclose(why.row_softmax, why.row_weights, atol=CLOSE)
            assert why.q.shape == why.k.shape == (shape.d_head,)
            if shape.causal and key > query:
                assert not why.allowed
                assert why.weight == 0


def test_what_the_value_brings_adds_up_to_the_head(model: Model) -> None:
    trace = model.run(SENTENCE, target="The keys are lost.")
    site = trace.main_site
    n_keys = len(trace.site_tokens(site)[1])
    parts = [explain_weight(trace, 1, 2, 3, key, site) for key in range(n_keys)]
    assert sum(part.share for part in parts) == pytest.approx(1, abs=1e-4)
    assert sum(part.norm_share for part in parts) == pytest.approx(1, abs=1e-5)
    assert parts[0].output_norm == pytest.approx(float(trace.contributions(1, site)[2, 3].norm()), rel=1e-4)
    assert sum(part.contribution_norm for part in parts) >= parts[0].output_norm - 1e-5
    for part in parts:
        assert part.contribution_norm == pytest.approx(part.weight * part.value_out_norm, rel=1e-4, abs=1e-6)
        assert part.value_norm == pytest.approx(float(np.linalg.norm(part.value)), rel=1e-5)


# ---------------------------------------------------------------- single families


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir("llama", tmp_path_factory)))


def test_what_each_family_brings_is_told(tmp_path_factory: pytest.TempPathFactory, llama: Model) -> None:
    t5 = load_model(str(tiny_model_dir("t5", tmp_path_factory))).run(SENTENCE, target="The keys")
    why = explain_weight(t5, 1, 1, 3, 2, "enc")
    assert why.scale == 1
    assert why.bias + why.mask != 0  # the relative positions, in whichever of the two the library hands them over
    gemma = load_model(str(tiny_model_dir("gemma2", tmp_path_factory))).run(SENTENCE)
    assert explain_weight(gemma, 1, 1, 3, 2).softcap == 5
    assert explain_weight(llama.run(SENTENCE), 1, 1, 3, 2).scale == pytest.approx(8**-0.5)


def test_grouped_heads_have_their_groups_key(llama: Model) -> None:
    trace = llama.run(SENTENCE)
    record = trace.inputs(0)
    for head in range(4):
        why = explain_weight(trace, 0, head, 4, 2)
        np.testing.assert_array_equal(why.k, record.key[0, head // 2, 2].numpy())
        np.testing.assert_array_equal(why.q, record.query[0, head, 4].numpy())


def test_sinks_and_slopes(llama: Model) -> None:
    """A run whose records get what the tiny models lack: a sink per head, and ALiBi's slopes as bias."""
    trace = llama.run(SENTENCE)
    n = len(trace.tokens)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
    bias = -slopes * (torch.arange(n)[:, None] - torch.arange(n)).abs()
    changed: AttentionInputs = dataclasses.replace(
        trace.inputs(1), mask=None, causal=True, bias=bias, sinks=torch.tensor([0.0, 1.0, 2.0, 3.0])
    )
    trace._records["self", 1] = changed
    why = explain_weight(trace, 1, 3, 5, 2)
    agrees(why, trace)
    assert why.bias == pytest.approx(-3 * 0.0625)
    assert why.sink == 3
    assert float(why.row_weights.sum()) < 1
    closed = explain_weight(trace, 1, 3, 2, 5)
    assert (closed.allowed, closed.mask, closed.weight) == (False, float("-inf"), 0)


def test_interventions_are_told(llama: Model) -> None:
    plan = Interventions(
        [
            AttentionKnockout([1], [4]),
            HeadAblation([HeadRef(1, 2)], kind="zero"),
            HeadAblation(["L1H3"], kind="uniform"),
        ]
    )
    trace = llama.run(SENTENCE, plan)
    cut = explain_weight(trace, 1, 0, 4, 1)
    agrees(cut, trace)
    assert (cut.edited, cut.weight) == (True, 0)
    assert cut.row_softmax[1] > 0
    assert cut.notes == (
        "This run's plan closes position 1 to this query; the other weights renormalise. This key is one of them.",
    )
    zero = explain_weight(trace, 1, 2, 3, 1)
    assert not zero.edited
    assert "multiplies the head's output at this query by 0" in zero.notes[0]
    even = explain_weight(trace, 1, 3, 3, 1)
    assert even.edited
    assert even.weight == pytest.approx(1 / 4)
    assert "evenly" in even.notes[0]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((0, 4, 0, 0), "head is 4; there are 4 here, numbered 0 to 3"),
        ((0, 0, 99, 0), "query is 99"),
        ((0, 0, 0, -1), "key is -1"),
        ((7, 0, 0, 0), "layer is 7"),
    ],
)
def test_a_place_that_is_not_there_is_said(llama: Model, place: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explain_weight(llama.run(SENTENCE), *place)
