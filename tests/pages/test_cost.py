"""The Cost page: counted numbers as they stand on the page, measurements, and the head-count experiment."""

from __future__ import annotations

import pytest

from mha_core import load_model
from mha_core.cost import PRESETS, attention_costs
from mha_core.head_experiment import Settings
from mha_core.ui.cost_state import shape_text
from mha_core.ui.state import ViewState
from mha_core.ui.stores import store
from tests.pages.driver import Visitor


def counting(**query: str) -> Visitor:
    seen = Visitor("Cost", **query)
    seen.assert_whole("Cost")
    return seen


def table(seen: Visitor, column: str) -> list[dict[str, object]]:
    """The rows of the only table that has this column."""
    found = [frame.value for frame in seen.at.dataframe if column in frame.value.columns]
    assert len(found) == 1
    return found[0].to_dict("records")


def test_a_visit_needs_no_model() -> None:
    before = set(store().loaded())
    counting(model="no/such-model")
    assert set(store().loaded()) == before


@pytest.mark.parametrize("heads", ["1x1x512", "8x8x64"])
def test_512_wide_is_counted_the_same_with_one_head_and_with_eight(heads: str) -> None:
    seen = counting(shape=f"512x{heads}x1", tokens="128")
    rows = {(row["what"], row["of"]): row["value"] for row in table(seen, "formula")}
    assert rows["parameters, all layers", "all projections"] == "1,048,576"
    assert rows["one layer, n tokens", "Q Kᵀ"] == "8,388,608"


def test_both_ways_of_comparing_are_shown() -> None:
    rows = table(counting(shape="512x8x8x64x1"), "× weights")
    assert [row["× weights"] for row in rows] == [1.0, 1.0, 0.75, 8.0]


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_can_be_chosen_and_has_an_address(name: str) -> None:
    seen = counting()
    seen.choose("w_preset", name)
    seen.assert_whole("Cost")
    assert next(box for box in seen.at.selectbox if box.key == "w_preset").value == name
    again = counting(**seen.url)
    assert ViewState.from_query(again.url).shape == shape_text(PRESETS[name])
    shown = str(next(box for box in again.at.selectbox if box.key == "w_preset").value)
    assert PRESETS[shown] == PRESETS[name]


def test_sizes_that_do_not_fit_are_said_and_kept() -> None:
    seen = counting(shape="512x8x3x64x1")
    assert any("cannot share 3 key/value heads" in sentence for sentence in seen.sentences)
    fields = {field.key: field.value for field in seen.at.number_input}
    assert fields["w_size_n_kv_heads"] == 3


@pytest.mark.parametrize("bad", ["", "512", "ax8x8x64x1", "0x8x8x64x1", "-1x8x8x64x1", "512x8x8x64x1<b>"])
def test_an_address_that_cannot_be_read_is_the_default(bad: str) -> None:
    assert ViewState.from_query({"shape": bad, "tokens": "7", "batch": "0", "cost": "x"}) == ViewState()


def test_loaded_models_can_be_chosen() -> None:
    name = "all-minilm-l6-v2"
    store().model(name, print)
    seen = counting()
    options = next(box for box in seen.at.selectbox if box.key == "w_preset").options
    loaded = next(option for option in options if name in option)
    seen.choose("w_preset", loaded)
    assert ViewState.from_query(seen.url).shape == "384x12x12x32x6b"


@pytest.mark.parametrize("name", ["own-layer/64x8/0", "date-translator"])
def test_a_models_own_shape_is_counted(name: str) -> None:
    model = load_model(name)
    for site, cost in attention_costs(model).items():
        assert (cost.n_layers, cost.n_heads, cost.d_head) == (
            model.sites[site].n_layers, model.sites[site].n_heads, model.sites[site].d_head,
        )  # fmt: skip


def test_measuring_shows_every_way_and_what_it_says() -> None:
    seen = counting(cost="measured")
    for box in seen.at.multiselect:
        box.set_value([4] if box.key == "w_measured_heads" else [16, 64])
    next(field for field in seen.at.number_input if field.key == "w_measured_repeats").set_value(3)
    seen.click("measure")
    seen.assert_whole("Cost")
    rows = table(seen, "× fused")
    assert [(row["tokens"], row["way"]) for row in rows[:4]] == [
        (16, "ours"), (16, "torch, weights"), (16, "torch, no weights"), (16, "fused"),
    ]  # fmt: skip
    assert len(rows) == 8
    assert "64 tokens and 4 heads our layer" in "\n".join(seen.markdown())


def test_the_recorded_experiment_shows_at_once_and_says_so() -> None:
    seen = counting(cost="experiment")
    assert any(sentence.startswith("Recorded, not made here") for sentence in seen.sentences)
    rows = table(seen, "range over seeds")
    assert [row["heads"] for row in rows] == [1, 2, 4, 8, 16]
    assert seen.view("exp_maps").arrays["maps"].shape == (4, 16, 16)


def test_training_here_replaces_what_was_recorded() -> None:
    seen = counting(cost="experiment")
    next(box for box in seen.at.multiselect if box.key == "w_exp_heads").set_value([1, 2])
    for field in seen.at.number_input:
        field.set_value(1 if field.key == "w_exp_seeds" else 50)
    seen.click("train")
    seen.assert_whole("Cost")
    assert not any("Recorded" in sentence for sentence in seen.sentences)
    assert [row["heads"] for row in table(seen, "range over seeds")] == [1, 2]
    kept = store().peek(("head experiment", Settings(n_heads=(1, 2), seeds=(0,), steps=50)))
    assert kept.runs[-1].is_done
