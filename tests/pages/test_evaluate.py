"""The Evaluate page: its numbers are the functions', for what the page says, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mha_core import HeadAblation, Interventions, load_model
from mha_core.evaluation import evaluate
from mha_core.interventions import InterventionError
from mha_core.pruning import pruning_steps
from mha_core.task_maps import head_map
from mha_core.task_sets import built_in
from mha_core.task_sweep import task_sweep
from mha_core.ui.state import ViewState
from mha_core.ui.stores import store
from tests.pages.driver import Visitor

DATES, MINILM = "date-translator", "all-minilm-l6-v2"
PLAN = "cross.L1H0, cross.L1H2"
HOSTILE = "<b>**x**</b> $y$"
OWN = f"prompt,target,kind\n3.4.2021,2021-04-03,{HOSTILE}\n5.6.2020,2020-06-05,plain\n,2020-01-01,plain\n".encode()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def fresh(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that another test, or an older version of the code, has measured."""
    monkeypatch.setenv("HEADSCOPE_CACHE", str(cache))
    with store()._lock:
        store()._results.clear()
    yield
    (cache / "results.sqlite").unlink(missing_ok=True)


def evaluating(**query: str) -> Visitor:
    given = {"model": DATES, "site": "cross", "text": "3.4.2021", "prompts": "12", "typed": PLAN, "ways": "zero"}
    seen = Visitor("Evaluate", **{**given, **query})
    seen.assert_whole("Evaluate")
    return seen


def table(seen: Visitor, column: str) -> list[dict[str, Any]]:
    """The rows of the only table that has this column."""
    found = [frame.value for frame in seen.at.dataframe if column in frame.value.columns]
    assert len(found) == 1, [list(frame.value.columns) for frame in seen.at.dataframe]
    return list(found[0].to_dict("records"))


def charts(seen: Visitor) -> list[str]:
    return [chart.proto.id.rsplit("-", 1)[-1] for chart in seen.at.get("plotly_chart")]  # type: ignore[union-attr]


def upload(seen: Visitor, name: str, data: bytes) -> None:
    seen.at.file_uploader[0].set_value((name, data, "text/csv")).run()


def test_plans_are_the_functions_numbers() -> None:
    seen = evaluating(typed=f"{PLAN}; cross.L0H0")
    seen.click("measure_plans")
    seen.assert_whole("Evaluate")
    model = load_model(DATES)
    plans = [Interventions(HeadAblation(heads.split(", "), "zero")) for heads in (PLAN, "cross.L0H0")]
    expected = evaluate(model, built_in("dates", model), plans, n=12)
    rows = table(seen, "p (Holm)")
    for row, item in zip(rows, expected.compared("accuracy"), strict=True):
        assert row["difference"] == pytest.approx(item.difference.mean, abs=1e-9)
        assert (row["low"], row["p"], row["p (Holm)"]) == (item.difference.low, item.p, item.p_holm)
    assert any(text.startswith("All 12 prompts") for text in map(str.strip, plain_markdown(seen)))
    assert "plans_kept" in charts(seen)


def plain_markdown(seen: Visitor) -> list[str]:
    return [text.replace("\\", "") for text in seen.markdown()]


def test_plans_without_a_mean_are_asked_before_the_means_and_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = evaluating(ways="zero,mean", prompts="24")

    def stopped(*arguments: object) -> None:
        raise InterventionError("Stopped there.")

    monkeypatch.setattr(type(store().model(DATES, print)), "has_means", lambda self, reference: False)
    monkeypatch.setattr("mha_core.ui.evaluate_results.measure_reference", stopped)
    seen.click("measure_plans")
    seen.at.run()
    assert any(text.startswith("First 12 of 24 prompts") for text in plain_markdown(seen))
    assert [row["plan"] for row in table(seen, "p (Holm)")] == [f"{PLAN}, zero"]


def test_a_score_can_be_chosen_for_all_parts() -> None:
    seen = evaluating(measure="log_prob", orders="ascending")
    for key in ("measure_plans", "sweep_task", "prune"):
        seen.click(key)
        seen.assert_whole("Evaluate")
    assert table(seen, "p (Holm)")[0]["clean"] < 0
    assert seen.view("task_sweep_kept").meta["unit"] == "change in log_prob"
    assert any("of the log_prob above guessing" in text for text in plain_markdown(seen))


@pytest.mark.parametrize("way", ["zero", "mean"])
def test_the_map_is_the_functions_and_so_is_its_ranking(way: str) -> None:
    seen = evaluating(way=way)
    seen.click("sweep_task")
    seen.assert_whole("Evaluate")
    model = load_model(DATES)
    expected = task_sweep(model, built_in("dates", model), kind=way, site="cross", n=12)
    found = head_map(expected, "logit_diff")
    view = seen.view("task_sweep_kept")
    np.testing.assert_allclose(view.arrays["map"], found.mean, atol=1e-5)
    assert view.meta["range"][0] == -view.meta["range"][1]
    assert (view.provenance["kind"], view.provenance["prompts"]) == (way, 12)
    rows = table(seen, "p (max-T)")
    assert [row["head"] for row in rows] == [str(head) for head, _ in found.ranking(expected.heads)]
    assert rows[0]["p (max-T)"] == pytest.approx(found.p_adjusted.ravel()[found.ranking(expected.heads)[0][1]])


@pytest.mark.parametrize("part", ["by slice", "other half", "estimate beside exact"])
def test_more_readings_of_a_sweep(part: str) -> None:
    seen = evaluating()
    seen.click("sweep_task")
    next(group for group in seen.at.button_group if group.key == "w_task_more").select(part).run()
    seen.assert_whole("Evaluate")
    if part == "by slice":
        view = seen.view("task_slices")
        assert view.arrays["map"].shape == (len(view.meta["query_labels"]), len(view.meta["key_labels"]))
    else:
        assert table(seen, "again" if part == "other half" else "Michel's score")


def test_pruning_is_the_functions_and_a_point_opens_as_a_plan() -> None:
    seen = evaluating(orders="ascending,reverse")
    seen.click("prune")
    seen.assert_whole("Evaluate")
    model = load_model(DATES)
    steps = pruning_steps(model, built_in("dates", model), orders=("ascending", "reverse"), site="cross", n=12)
    *_, expected = steps
    row = table(seen, "least important first")[0]
    for curve, column in zip(expected.curves, ("least important first", "most important first"), strict=True):
        broken = expected.breaks_at(curve, "accuracy")
        assert row[column] == broken or (broken is None and np.isnan(row[column]))
    seen.choose("w_prune_order", "reverse")
    seen.choose("w_prune_point", 2)
    seen.click("prune_open")
    seen.assert_whole("Ablate")
    assert ViewState.from_query(seen.url).off == tuple(map(str, expected.curves[1].removed[:2]))
    assert ViewState.from_query(seen.url).kinds == ("zero",)


def test_an_order_from_the_sweep_needs_the_sweep() -> None:
    seen = evaluating(order_by="sweep", orders="ascending")
    assert any("Sweep every head first" in sentence for sentence in seen.sentences)
    seen.click("sweep_task")
    seen.click("prune")
    seen.assert_whole("Evaluate")
    assert any("exact effects on the prompts" in text for text in plain_markdown(seen))


def test_prompts_that_turned_open_on_the_other_pages() -> None:
    seen = evaluating(prompts="24")
    seen.click("measure_plans")
    rows = table(seen, "before")
    assert rows
    assert all((row["after"] < row["before"]) or row["now"] == "right" for row in rows)
    seen.choose("w_flips_prompt", len(rows) - 1)
    seen.click("flip_ablate")
    seen.assert_whole("Ablate")
    state = ViewState.from_query(seen.url)
    assert state.text == rows[-1]["prompt"]
    assert state.off == tuple(PLAN.split(", "))
    assert (state.kinds, state.site, state.layer) == (("zero",), "cross", 1)
    seen.open("Evaluate")
    seen.click("flip_heads")
    seen.assert_whole("Heads")


def test_a_result_is_shown_only_for_what_it_is_of() -> None:
    seen = evaluating()
    seen.click("measure_plans")
    assert "plans_kept" in charts(seen)
    for field, value in (("w_seed", 3), ("w_prompts", 13)):
        next(box for box in seen.at.number_input if box.key == field).set_value(value).run()
        assert "plans_kept" not in charts(seen)
    seen.follow(**{**seen.url, "seed": "0", "prompts": "12"})
    assert "plans_kept" in charts(seen)
    seen.type("cross.L0H1", key="w_typed")
    assert "plans_kept" not in charts(seen)


def test_two_visitors_measure_their_own_plans() -> None:
    first, second = evaluating(), evaluating(typed="cross.L0H0")
    first.click("measure_plans")
    assert "plans_kept" not in charts(second)
    second.click("measure_plans")
    assert [row["plan"] for row in table(second, "p (Holm)")] == ["cross.L0H0, zero"]
    first.at.run()
    assert [row["plan"] for row in table(first, "p (Holm)")] == [f"{PLAN}, zero"]


def test_plans_of_the_ablate_page_are_measured_too() -> None:
    plan = Interventions(HeadAblation(["cross.L0H3"], "scale", factor=0.5))
    state = ViewState().with_(off=("cross.L1H1", "L9H9"))
    seen = evaluating(off=",".join(state.off), plans='[{"name":"half","plan":' + _quoted(plan.to_json()) + "}]")
    assert any("This model has no L9H9" in sentence for sentence in seen.sentences)
    seen.click("measure_plans")
    seen.assert_whole("Evaluate")
    assert [row["plan"] for row in table(seen, "p (Holm)")] == [f"{PLAN}, zero", "cross.L1H1, zero", "half"]


def test_a_plan_of_one_sentence_is_refused_with_the_reason() -> None:
    plan = Interventions(HeadAblation(["cross.L0H3"], "zero", [2]))
    seen = evaluating(typed="L5; cross.L7H0", plans='[{"name":"there","plan":' + _quoted(plan.to_json()) + "}]")
    said = "\n".join(seen.sentences)
    assert "there: it names positions of one sentence" in said
    assert "“L5”" in said
    assert "“cross.L7H0”" in said


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def test_a_file_of_ones_own_is_measured_listed_and_stays_with_its_visitor() -> None:
    seen = evaluating(task="own")
    upload(seen, "mine.csv", OWN)
    seen.assert_whole("Evaluate")
    assert [(row["row"], row["reason"]) for row in table(seen, "reason")] == [(3, "The prompt is empty.")]
    assert "does not hold this file" in seen.captions
    for key in ("measure_plans", "sweep_task"):
        seen.click(key)
        seen.assert_whole("Evaluate")
    assert HOSTILE in [row["value"] for row in table(seen, "templates")]
    assert not any(HOSTILE in text for text in seen.markdown())
    assert "2021" not in seen.url.get("task", "")
    other = evaluating(task="own")
    assert "mine.csv" not in other.captions
    assert any(sentence.startswith("Choose a file.") for sentence in other.sentences)


def test_a_file_that_is_none_is_said() -> None:
    seen = evaluating(task="own")
    upload(seen, "mine.csv", b"a,b\n1,2\n")
    assert [error.message for error in seen.at.exception] == []
    assert any("prompt and target" in sentence for sentence in seen.sentences)


def test_a_task_that_the_model_is_not_offered_gives_way() -> None:
    seen = evaluating(model=MINILM, task="dates", typed="", site="", text="The cat slept.")
    box = next(box for box in seen.at.selectbox if box.key == "w_task")
    assert box.value == "similarity"
    assert "right in" in seen.captions


def test_the_unchanged_model_alone_and_exports() -> None:
    seen = evaluating(model=MINILM, typed="", site="", text="The cat slept.")
    assert not any(button.key == "report" for button in seen.at.get("download_button"))  # type: ignore[union-attr]
    seen.click("measure_plans")
    seen.assert_whole("Evaluate")
    assert any(text.startswith("All 12 prompts") for text in plain_markdown(seen))
    assert "plans_kept" not in charts(seen)
    labels = {button.proto.label for button in seen.at.get("download_button")}  # type: ignore[union-attr]
    assert {"Plans, CSV", "Plans, JSON", "HTML report"} <= labels
    assert any(text.value.startswith("We measured") for text in seen.at.text)
