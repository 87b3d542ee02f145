"""The viewer's ways of looking: what is drawn is the model's own run, looked at as the visitor asked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mha_core import HeadAblation, Model, Trace
from mha_core.norms import value_weighted
from mha_core.ui.stores import store
from tests.pages.driver import Visitor

MINILM = "all-minilm-l6-v2"
TEXT = "The animal crossed the road because it was frightened."
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."


def looking(page: str = "Heads", /, **query: str) -> Visitor:
    seen = Visitor(page, **{"model": MINILM, "text": TEXT, "layer": "4", "head": "10", **query})
    seen.assert_whole(page)
    return seen


def model() -> Model:
    return store().model(MINILM, lambda message: None)


def trace() -> Trace:
    return model().run(TEXT)


def test_a_head_is_shown_as_matrix_text_and_lines_of_the_same_numbers() -> None:
    weights = trace().weights(4).numpy()
    np.testing.assert_array_equal(looking().view("matrix").arrays["map"], weights[10])
    np.testing.assert_array_equal(looking(mode="text").view("text").arrays["maps"], weights)
    np.testing.assert_array_equal(looking(mode="lines").view("lines").arrays["maps"], weights)


def test_value_weighted_maps_are_an_alternative_that_says_what_it_is() -> None:
    seen = looking(quantity="value")
    np.testing.assert_allclose(seen.view("matrix").arrays["map"], value_weighted(trace(), 4)[10].numpy(), rtol=1e-5)
    assert "Kobayashi" in seen.captions


def test_hidden_tokens_leave_the_others_as_they_are_and_the_mass_is_said() -> None:
    seen = looking(hide="special")
    np.testing.assert_allclose(seen.view("matrix").arrays["map"], trace().weights(4)[10, 1:-1, 1:-1].numpy(), rtol=1e-6)
    assert "rows are not renormalised" in seen.captions


def test_words_join_pieces_and_keep_each_rows_mass() -> None:
    seen = Visitor("Heads", model=MINILM, text="internationalisations matter", words="1")
    matrix = seen.view("matrix")
    assert matrix.meta["query_labels"] == ["[CLS]", "internationalisations", "matter", "[SEP]"]
    np.testing.assert_allclose(matrix.arrays["map"].sum(axis=-1), 1, atol=1e-5)


def test_own_range_ends_at_the_layers_largest_weight() -> None:
    top = float(trace().weights(4).max())
    assert looking(own_range="1").view("matrix").meta["range"] == [0, pytest.approx(top)]
    assert looking().view("matrix").meta["range"] == [0, 1]


def test_a_pair_can_be_filtered_to_one_direction() -> None:
    seen = looking(pair="It ran.", part="AB")
    tokens = model().tokenize(TEXT, "It ran.")
    first = [i for i, segment in enumerate(tokens.segments) if segment == 0]
    second = [i for i, segment in enumerate(tokens.segments) if segment == 1]
    expected = model().run(tokens).weights(4)[10][first][:, second].numpy()
    np.testing.assert_allclose(seen.view("matrix").arrays["map"], expected, rtol=1e-6)


def test_a_filter_for_a_pair_that_is_gone_shows_everything_and_says_so() -> None:
    seen = looking(part="AB")
    assert seen.view("matrix").arrays["map"].shape == (12, 12)
    assert seen.sentences


def test_why_a_weight_is_what_it_is_agrees_with_the_map() -> None:
    seen = looking(query="7", key="2")
    weight = float(trace().weights(4)[10, 7, 2])
    assert any(f"α = {weight:.4f}" in text.value for text in seen.at.text)


def test_every_measure_can_ring_the_overview() -> None:
    for ring in ("first", "previous", "next", "self", "special", "entropy", "nats", "distance", "induction"):
        view = looking(ring=ring).view("overview")
        assert view.arrays["values"].shape == (6, 12)


def test_the_average_is_nowhere_but_under_its_name() -> None:
    seen = looking()
    for view in ("matrix", "layer", "overview"):
        assert "average" not in json.dumps(seen.view(view).meta).lower()


def test_two_panels_stand_beside_each_other_at_first() -> None:
    seen = looking("Compare")
    np.testing.assert_array_equal(seen.view("view_0_matrix").arrays["map"], trace().weights(4)[10].numpy())
    np.testing.assert_array_equal(seen.view("view_1_matrix").arrays["map"], trace().weights(4)[11].numpy())
    difference = seen.view("difference_map").arrays["map"]
    np.testing.assert_allclose(difference, (trace().weights(4)[11] - trace().weights(4)[10]).numpy(), atol=1e-6)


def test_minimal_pairs_are_aligned_and_subtracted() -> None:
    panels = json.dumps([{"text": TIRED, "layer": "4"}, {"text": WIDE, "layer": "4"}])
    seen = looking("Compare", panels=panels)
    view = seen.view("difference_map")
    tired, wide = model().run(TIRED), model().run(WIDE)
    shared = [i for i, (a, b) in enumerate(zip(tired.tokens.ids, wide.tokens.ids, strict=True)) if a == b]
    expected = (wide.weights(4)[0] - tired.weights(4)[0])[shared][:, shared].numpy()
    np.testing.assert_allclose(view.arrays["map"], expected, atol=1e-6)
    assert view.meta["diverging"] is True


def test_a_panel_can_be_ablated_or_show_another_model_or_a_whole_layer() -> None:
    panels = [
        {"layer": "3", "head": "1", "off": "L0H1"},
        {"model": "own-layer/16x4/0", "head": "2"},
        {"layer": "2", "head": "-1", "quantity": "value"},
    ]
    seen = looking("Compare", panels=json.dumps(panels))
    ablated = model().run(TEXT, HeadAblation(["L0H1"]))
    np.testing.assert_array_equal(seen.view("view_0_matrix").arrays["map"], ablated.weights(3)[1].numpy())
    assert seen.view("view_1_matrix").provenance["model"] == "own-layer/16x4/0"
    np.testing.assert_allclose(seen.view("view_2_layer").arrays["maps"], value_weighted(trace(), 2).numpy(), rtol=1e-5)


def test_panels_are_added_duplicated_swapped_and_removed() -> None:
    seen = looking("Compare")
    seen.click("duplicate_1")
    assert [p["head"] for p in json.loads(seen.url["panels"])] == ["10", "11", "11"]
    seen.click("swap_0")
    assert [p["head"] for p in json.loads(seen.url["panels"])] == ["11", "10", "11"]
    seen.click("remove_1")
    assert [p["head"] for p in json.loads(seen.url["panels"])] == ["11", "11"]


def test_presenting_folds_the_controls_away() -> None:
    keys = {button.key for button in looking("Compare", present="1").at.button}
    assert not {"duplicate_0", "remove_0"} & keys


@pytest.mark.parametrize("key", ["w_quantity", "w_mode"])
def test_a_choice_that_reports_itself_empty_stays_what_it_was(key: str) -> None:
    """As a browser does with a control that was gone while a long text ran."""
    seen = looking(quantity="value", mode="text")
    group = next(group for group in seen.at.button_group if group.key == key)
    group.set_value(None).run()
    seen.assert_whole("Heads")
    assert seen.at.session_state[key] in ("value", "text")
    assert (seen.at.query_params["quantity"], seen.at.query_params["mode"]) == ("value", "text")
