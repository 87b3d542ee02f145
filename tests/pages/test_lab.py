"""The ablation lab's controls: every way of replacing, place and plan reaches the model as it was asked for."""

from __future__ import annotations

import json

import pytest

from mha_core import AttentionKnockout, HeadAblation, Interventions
from mha_core.effects import prediction_effect
from mha_core.ui.plan_building import working_plans
from mha_core.ui.state import SavedPlan, ViewState
from mha_core.ui.stores import store
from tests.pages.driver import Visitor

SMOLLM2 = "smollm2-135m-instruct"
TEXT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Mary and John went to the store, Mary gave a drink to"
HEADS = ("L1H3", "L1H5")


def ablating(**query: str) -> Visitor:
    seen = Visitor("Ablate", **{"off": "L1H3,L1H5", **query})
    seen.assert_whole("Ablate")
    return seen


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"kinds": ("zero",)}, HeadAblation(HEADS)),
        ({"kinds": ("mean",)}, HeadAblation(HEADS, "mean")),
        (
            {"kinds": ("mean",), "lines": "A dog.\n\nA cat.\n"},
            HeadAblation(HEADS, "mean", reference=("A dog.", "A cat.")),
        ),
        ({"kinds": ("sentence",)}, HeadAblation(HEADS, "mean", reference="sentence")),
        ({"kinds": ("resample",), "source": OTHER}, HeadAblation(HEADS, "resample", source=OTHER)),
        ({"kinds": ("scale",), "factor": 0.5}, HeadAblation(HEADS, "scale", factor=0.5)),
        ({"kinds": ("uniform",), "where": "last"}, HeadAblation(HEADS, "uniform", (-1,))),
        ({"kinds": ("zero",), "where": "3,5"}, HeadAblation(HEADS, "zero", (3, 5))),
    ],
)
def test_choices_become_the_plan_they_say(state: dict[str, object], expected: HeadAblation) -> None:
    plans, problems = working_plans(ViewState(**state), HEADS, "self")  # type: ignore[arg-type]
    assert problems == []
    assert list(plans.values()) == [Interventions([expected])]


def test_denoising_patches_the_other_sentence_from_this_one() -> None:
    state = ViewState(text=TEXT, kinds=("resample",), source=OTHER, denoise=True)
    plans, _ = working_plans(state, HEADS, "self")
    assert plans["resample"].ablations[0].source == TEXT


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("all", AttentionKnockout([4], [9])),
        ("layer", AttentionKnockout([4], [9], layers=[1])),
        ("heads", AttentionKnockout([4], [9], heads=["L1H3", "L1H5"])),
    ],
)
def test_cells_become_knockouts_in_their_scope(scope: str, expected: AttentionKnockout) -> None:
    state = ViewState(cells=("9<4",), scope=scope, layer=1, kinds=("zero",))
    plans, _ = working_plans(state, HEADS, "self")
    assert plans["zero"].knockouts == (expected,)


def test_a_knockout_alone_is_a_plan_and_kept_plans_stand_beside_it() -> None:
    kept = SavedPlan("before", Interventions([HeadAblation(["L0H0"])]).to_json())
    broken = SavedPlan("broken", "{]")
    plans, problems = working_plans(ViewState(cells=("9<4",), plans=(kept, broken)), (), "self")
    assert list(plans) == ["knockout", "before"]
    assert len(problems) == 1
    assert problems[0].startswith("broken")


def test_resampling_without_a_sentence_is_said_and_the_others_run() -> None:
    seen = Visitor("Ablate", off="L1H3", kinds="zero,resample")
    assert any("other sentence" in sentence for sentence in seen.sentences)
    assert any("zero" in label for label in seen.metrics)


def test_a_sentence_of_another_length_is_said() -> None:
    seen = Visitor("Ablate", off="L1H3", kinds="resample", source="Too short")
    assert any("equally long" in sentence for sentence in seen.sentences)


def test_the_cards_show_the_effect_of_each_way() -> None:
    seen = ablating(kinds="zero,uniform")
    model = store().model(SMOLLM2, lambda message: None)
    runs = {"clean": model.run(TEXT)}
    runs |= {kind: model.run(TEXT, HeadAblation(HEADS, kind)) for kind in ("zero", "uniform")}
    effect = prediction_effect(model, runs, 13)
    shown = seen.metrics
    assert shown["KL(clean‖zero), nats"] == f"{effect.kl[1]:.2f}"
    assert shown["P(“ Mary”), uniform"] == f"{effect.top.probabilities[0]:.3f} → {effect.top.probabilities[2]:.3f}"


def test_two_answers_are_followed() -> None:
    seen = ablating(kinds="zero", answers=json.dumps([" Mary", " John"]))
    assert seen.metrics["“ Mary” − “ John” logits, zero"] == "6.12 → 0.24"


def test_an_answer_of_several_tokens_is_said() -> None:
    seen = Visitor("Ablate", off="L1H3", answers=json.dumps([" Mary", " internationalisations"]))
    assert any("one token" in sentence for sentence in seen.sentences)


def test_a_kept_plan_is_run_beside_the_others() -> None:
    plans = json.dumps([{"name": "all of L0", "plan": Interventions([HeadAblation(["L0H0"])]).to_json()}])
    seen = ablating(kinds="zero", plans=plans)
    assert any("all of L0" in label for label in seen.metrics)


def test_heads_can_be_typed_as_a_list_and_what_is_none_is_said() -> None:
    seen = ablating(kinds="zero")
    seen.type("L0H1, L2H2", key="w_head_list")
    assert seen.url["off"] == "L0H1,L2H2"
    seen.type("L0H1, nonsense", key="w_head_list")
    assert any("nonsense" in sentence for sentence in seen.sentences)
    assert seen.url["off"] == "L0H1,L2H2"


def test_the_proof_line_counts_what_was_applied() -> None:
    captions = ablating(kinds="zero").captions
    assert "library's own attention" in captions
    assert "applied in 1 attention call" in captions


@pytest.mark.parametrize(
    "query", [{"kinds": "resample", "source": "The dog slept under the chair."}, {"kinds": "zero", "where": "8"}]
)
def test_a_change_that_fits_only_the_first_sentence_is_said(query: dict[str, str]) -> None:
    seen = Visitor("Ablate", model="all-minilm-l6-v2", text="The cat slept under the table.", off="L0H0", other="So?",
                   **query)  # fmt: skip
    seen.assert_whole("Ablate")
    assert any("cannot be made in both sentences" in sentence for sentence in seen.sentences)
    assert "similarity, clean" in seen.metrics


def test_many_tokens_are_a_list_whose_entries_are_the_text() -> None:
    """A list shows its entries as text: marks that would hold back Markdown would be seen there."""
    seen = ablating(text="_one_ *two* " + "`word` [link](x) " * 12, where="3", kinds="zero")
    (box,) = (box for box in seen.at.multiselect if box.key == "w_where_tokens")
    assert len(box.options) > 40
    assert not any("\\" in option for option in box.options)
    assert any("*" in option for option in box.options)
