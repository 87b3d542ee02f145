"""Measures of the maps of a real run, value-weighted maps and rollout."""

from __future__ import annotations

import math

import pytest
import torch

from mha_core import Interventions, Trace, load_model
from mha_core.attention import AttentionInputs, attend
from mha_core.interventions import AttentionKnockout
from mha_core.metrics import MEASURES, mean_distance, measure_heads, row_entropies, sentence_measures, special_mask
from mha_core.model import Model
from mha_core.norms import rollout, rollout_by_layer, value_norms, value_weighted
from mha_core.rows import rows_of, weights_of_rows
from tests.tiny import tiny_model_dir

SENTENCE = "The keys to the old wooden cabinet are lost."
FAMILIES = ("bert", "gemma2", "llama", "t5")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir(request.param, tmp_path_factory)))


@pytest.fixture(scope="module")
def trace(model: Model) -> Trace:
    return model.run(SENTENCE, target="The keys are on the table.")


# ---------------------------------------------------------------- measures


def test_every_measure_says_what_it_is() -> None:
    assert {"first", "previous", "next", "self", "special", "entropy", "distance", "induction"} <= set(MEASURES)
    for measure in MEASURES.values():
        assert measure.name
        assert "\n" not in measure.definition
        assert measure.formula.count("{") == measure.formula.count("}")


def test_measures_of_a_run_stay_in_their_range(trace: Trace) -> None:
    for site, shape in trace.sites.items():
        queries, keys = trace.site_tokens(site)
        weights = trace.weights(1, site)
        names = sentence_measures(square=site != "cross", special=True)
        assert "induction" not in names
        for name, values in measure_heads(weights, names, special=special_mask(keys.special)).items():
            low, high = MEASURES[name].range(len(queries), len(keys))
            assert values.shape == (shape.n_heads,)
            assert low - 1e-6 <= float(values.min())
            assert float(values.max()) <= high + 1e-6, name


def test_one_at_a_time_gives_what_all_together_give(trace: Trace) -> None:
    weights = trace.weights(0)
    special = special_mask(trace.tokens.special)
    together = measure_heads(weights, sentence_measures(square=True, special=True), special=special)
    for name, values in together.items():
        torch.testing.assert_close(MEASURES[name].compute(weights, special=special), values)


def test_special_tokens_and_distance_by_hand() -> None:
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]])
    special = torch.tensor([True, False, True])
    assert MEASURES["special"].compute(weights, special=special).item() == pytest.approx((0.5 + 0.7 + 0.9) / 3)
    assert mean_distance(weights).item() == pytest.approx((0.5 + 0.2 + 0.5 + 0.2 + 0.1) / 3)
    assert MEASURES["distance"].range(3, 3) == (0, 2)
    assert MEASURES["nats"].range(3, 8)[1] == pytest.approx(math.log(8))


def test_entropies_of_rows_with_zeros_and_of_long_rows() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
    torch.testing.assert_close(row_entropies(rows), torch.tensor([0.0, math.log(2), 0.0]))
    many = torch.rand(3, 40, 9000).softmax(-1)  # several pieces of work
    torch.testing.assert_close(row_entropies(many), torch.special.entr(many).sum(-1), rtol=1e-4, atol=1e-4)


def test_what_a_measure_cannot_do_is_said() -> None:
    oblong = torch.full((2, 3, 5), 0.2)
    with pytest.raises(ValueError, match="3 queries and 5 keys"):
        MEASURES["distance"].compute(oblong)
    with pytest.raises(ValueError, match="special"):
        MEASURES["special"].compute(oblong)
    with pytest.raises(ValueError, match="one per key"):
        MEASURES["special"].compute(oblong, special=torch.tensor([True]))
    with pytest.raises(ValueError, match="no measure of one sentence"):
        MEASURES["induction"].compute(oblong)


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", ["no", "boolean", "additive"])
@pytest.mark.parametrize("head", [None, 3])
def test_some_rows_are_the_rows_of_all(causal: bool, masked: str, head: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, h, 6, 8, generator=g) for h in (4, 2, 2))
    open_cells = torch.rand(1, 1, 6, 6, generator=g) < 0.7
    open_cells[..., 0] = True
    mask = {"no": None, "boolean": open_cells, "additive": open_cells.float().log()}[masked]
    bias = torch.randn(1, 4, 6, 6, generator=g)  # a slope per head, like ALiBi
    inputs = AttentionInputs(
        query, key, value, mask=mask, causal=causal, bias=bias, softcap=5.0, sinks=torch.randn(4, generator=g)
    )
    whole = inputs.attend()
    part = rows_of(inputs, [1, 4], head).attend()
    heads = slice(None) if head is None else slice(head, head + 1)
    torch.testing.assert_close(part.weights, whole.weights[:, heads, [1, 4]])
    torch.testing.assert_close(part.head_outputs, whole.head_outputs[:, heads, [1, 4]])


def test_rows_of_a_run_are_those_of_its_maps(model: Model, trace: Trace) -> None:
    for site in trace.sites:
        weights = weights_of_rows(trace, 1, [0, 3], site)
        torch.testing.assert_close(weights, trace.weights(1, site)[:, [0, 3]], atol=1e-6, rtol=1e-5)
    site = trace.main_site
    changed = model.run(
        trace.source_tokens or trace.tokens, Interventions([AttentionKnockout([1], [3], site=site)]),
        target=trace.tokens,
    )  # fmt: skip
    assert float(weights_of_rows(changed, 1, [3])[:, 0, 1].max()) == 0


# ---------------------------------------------------------------- value-weighted maps, rollout


def test_value_weighted_maps_are_the_lengths_of_what_moves(trace: Trace) -> None:
    for site in trace.sites:
        found = value_weighted(trace, 1, site)
        value = trace.inputs(1, site).value[0]
        weight = trace.output_projection(1, site).weight
        value = value.repeat_interleave(len(weight) // len(value), dim=0)
        moved = torch.einsum("hqk,hkd,hdm->hqkm", trace.weights(1, site), value, weight)
        torch.testing.assert_close(found, moved.norm(dim=-1), atol=1e-5, rtol=1e-4)


def test_a_row_of_lengths_is_at_least_the_length_of_the_contribution(trace: Trace) -> None:
    for site in trace.sites:
        lengths = value_weighted(trace, 0, site).sum(dim=-1)
        assert bool((lengths + 1e-4 >= trace.contributions(0, site).norm(dim=-1)).all())
        assert value_norms(trace, 0, site).shape == (4, len(trace.site_tokens(site)[1]))


def test_rollout_rows_sum_to_one_and_its_steps_end_in_it(trace: Trace) -> None:
    for site, shape in trace.sites.items():
        if site == "cross":
            with pytest.raises(ValueError, match="one text through the layers"):
                rollout(trace, site)
            continue
        whole, steps = rollout(trace, site), rollout_by_layer(trace, site)
        torch.testing.assert_close(whole.sum(-1), torch.ones(len(whole)))
        torch.testing.assert_close(steps[-1], whole)
        torch.testing.assert_close(steps[0], torch.eye(len(whole)))
        assert steps.shape[0] == shape.n_layers + 1
        if shape.causal:
            assert float(whole.triu(1).max()) == 0
        layers = [0.5 * trace.weights(i, site).mean(0) + 0.5 * torch.eye(len(whole)) for i in (0, 1)]
        torch.testing.assert_close(whole, layers[1] @ layers[0])


def test_rollout_tells_each_layer(trace: Trace) -> None:
    seen: list[tuple[int, int]] = []
    rollout(trace, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2)]


def test_a_site_that_is_not_there_is_said(trace: Trace) -> None:
    with pytest.raises(ValueError, match="this model has"):
        rollout(trace, "nowhere")


def test_a_row_that_may_attend_to_nothing_has_no_entropy() -> None:
    zero = attend(
        torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), mask=torch.tensor([[True], [False]])
    )
    assert MEASURES["nats"].compute(zero.weights[0]).item() == pytest.approx(math.log(2) / 2)
