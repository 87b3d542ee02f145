"""The Lesson page: every step, every control, and what cannot be used gets a sentence and keeps the rest."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from mha_core.lesson import TOY, Sizes, sentence_example, toy, work
from mha_core.lesson_edits import matrices_of
from mha_core.lesson_more import removals
from mha_core.lesson_questions import QUESTIONS
from mha_core.lesson_steps import STEP_NAMES, STEPS
from mha_core.model import Model
from mha_core.ui.lesson_state import MASKS, SECTIONS
from mha_core.ui.matrices import read_typed
from mha_core.ui.stores import Store
from tests.pages.driver import ROOT, Visitor, unescaped

OWN = "own-layer/16x2/0"
SENTENCE = "The animal crossed the road because it was frightened."
_VISITOR: list[Visitor] = []


def lesson(**query: str) -> Visitor:
    """One visitor who stays on the page and follows links within it."""
    query = {"model": OWN, **query}
    if not _VISITOR:
        _VISITOR.append(Visitor("Lesson", **query))
    else:
        _VISITOR[0].follow(**query)
    _VISITOR[0].assert_whole("Lesson")
    return _VISITOR[0]


def drawn(visitor: Visitor, key: str) -> dict[str, Any]:
    """The matrices of one drawing by name; of equal names the last."""
    groups = visitor.components()[key]["groups"]
    items = [item for group in groups for line in group["lines"] for item in line["items"]]
    return {item["name"]: item for item in items if isinstance(item, dict)}


def numbers(item: dict[str, Any]) -> list[list[float]]:
    return [list(row) for row in item["values"]]


def near(item: dict[str, Any], tensor: Any) -> bool:
    return bool([value for row in numbers(item) for value in row] == pytest.approx(tensor.flatten().tolist(), abs=1e-5))


def said(visitor: Visitor) -> str:
    return "\n".join(unescaped(one.value) for one in visitor.at.markdown)


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("step", STEPS, ids=STEP_NAMES)
def test_each_step_has_an_address_and_shows_its_formula_and_numbers(step: Any) -> None:
    visitor = lesson(step=step.name)
    assert [key for key in visitor.components() if key.startswith("mx_")] == [f"mx_{step.name}"]
    assert [one.value for one in visitor.at.latex] == [f"$$\n{step.formula}\n$$"]
    assert step.title in visitor.at.subheader[0].value
    assert step.about in said(visitor)
    assert [one.value for one in visitor.at.code] == [step.code]
    assert visitor.url.get("step", "embed") == step.name


def test_the_worked_example_is_on_the_page() -> None:
    visitor = lesson(step="softmax")
    assert near(drawn(visitor, "mx_softmax")["A"], work(toy()).weights[1])
    assert "“learn.” gives 0.67 to “learn.” and 0.33 to “I”; its row sums to 1.00" in said(visitor)
    assert drawn(visitor, "mx_softmax")["A"]["scale"] == "share"


def test_side_by_side_stands_beside_sum_and_average() -> None:
    items = drawn(lesson(step="concat"), "mx_concat")
    assert [len(items[name]["values"][0]) for name in ("Z", "sum", "average")] == [4, 2, 2]


def test_next_and_back_walk_through_all_steps() -> None:
    visitor = lesson()
    for name in STEP_NAMES[1:]:
        visitor.click("lesson_next")
        assert visitor.url["step"] == name
    assert next(one for one in visitor.at.button if one.key == "lesson_next").disabled
    for name in reversed(STEP_NAMES[:-1]):
        visitor.click("lesson_back")
        assert visitor.url.get("step", "embed") == name
    assert next(one for one in visitor.at.button if one.key == "lesson_back").disabled


def test_all_steps_can_be_seen_at_once() -> None:
    visitor = lesson(step="all")
    assert [key for key in visitor.components() if key.startswith("mx_")] == [f"mx_{name}" for name in STEP_NAMES]


def test_the_mask_of_the_steps() -> None:
    visitor = lesson(step="mask", mask="causal")
    assert drawn(visitor, "mx_mask")["M"]["values"] == [[0, None], [0, 0]]
    assert "1 of 4 cells are closed" in said(visitor)


# ---------------------------------------------------------------- numbers that are changed


def test_a_linked_number_flows_through() -> None:
    visitor = lesson(step="output", edits="X.0.1=3,O.0.2=-1")
    changed, _ = matrices_of("X.0.1=3,O.0.2=-1")
    assert near(drawn(visitor, "mx_output")["output"], work(toy(changed)).output)
    assert "2 of 72 numbers changed" in visitor.captions


def test_the_original_numbers_come_back() -> None:
    visitor = lesson(step="embed", edits="X.0.1=3")
    visitor.click("lesson_reset")
    assert "edits" not in visitor.url
    assert numbers(drawn(visitor, "mx_embed")["X"]) == [list(row) for row in TOY["X"]]


@pytest.mark.parametrize(
    ("edits", "sentence"),
    [
        ("X.0.0=abc", "“abc” is not a number. Type one such as 0.5 or -2. X, row 0, column 0 keeps 1."),
        ("X.0.0=nan", "“nan” is not a number to calculate with"),
        ("X.0.0=inf", "“inf” is not a number to calculate with"),
        ("X.0.0=99999", "too large"),
        ("X.0.7=1", "There is no cell X.0.7"),
        ("<b>x</b>", "“<b>x</b>” names no cell"),
    ],
)
def test_a_bad_number_gets_a_sentence_and_the_rest_is_kept(edits: str, sentence: str) -> None:
    visitor = lesson(step="embed", edits=f"{edits},X.1.1=7")
    assert any(sentence in one for one in visitor.sentences)
    assert numbers(drawn(visitor, "mx_embed")["X"]) == [[1, 0, 1, 0], [0, 7, 0, 1]]


def type_matrix(visitor: Visitor, text: str) -> None:
    next(one for one in visitor.at.text_area if (one.key or "").startswith("lesson_text")).set_value(text)
    visitor.click("lesson_take")
    visitor.assert_whole("Lesson")


def test_a_whole_matrix_can_be_typed() -> None:
    visitor = lesson(step="output")
    type_matrix(visitor, "2 0 0 0\n0 2 0 0\n0 0 2 0\n0 0 0 2")
    assert near(drawn(visitor, "mx_output")["output"], 2 * work(toy()).output)
    assert visitor.url["edits"] == "O.0.0=2,O.1.1=2,O.2.2=2,O.3.3=2"


@pytest.mark.parametrize(("text", "sentence"), [("1 2\n3 4", "W_O is 4 × 4 and 2 × 2 was given"), ("x", "1 × 1 was")])
def test_a_shape_that_does_not_fit_gets_a_sentence(text: str, sentence: str) -> None:
    visitor = lesson(step="output", edits="X.0.1=3")
    type_matrix(visitor, text)
    assert any(sentence in one for one in visitor.sentences)
    assert visitor.url["edits"] == "X.0.1=3"
    lesson(step="output")


@pytest.mark.parametrize(
    "message", [{}, {"seq": 1}, {"seq": "1", "cells": []}, {"seq": True, "cells": []}, {"seq": -1, "cells": []}]
)
def test_a_message_that_is_not_ours_is_nothing(message: dict[str, object]) -> None:
    assert read_typed(message) is None


def test_of_a_message_only_cells_are_taken() -> None:
    cells: list[object] = [["X", 0, 1, "3"], ["X", -1, 0, "3"], ["X", 0, "1", "3"], "X", None, ["X", 0, 0, 3], [[]] * 4]
    typed = read_typed({"seq": 7, "cells": cells, "paste": {"matrix": "X", "text": 5}})
    assert typed is not None
    assert (typed.cells, typed.paste, typed.seq) == ((("X", 0, 1, "3"),), None, 7)
    pasted = read_typed({"seq": 7, "cells": [], "paste": {"matrix": "X", "text": "1 2"}})
    assert pasted is not None
    assert pasted.paste == ("X", "1 2")


# ---------------------------------------------------------------- a sentence


@pytest.mark.parametrize("step", STEP_NAMES)
def test_a_sentence_goes_through_the_same_steps(step: str) -> None:
    visitor = lesson(given="sentence", step=step, sizes="16x4", text=SENTENCE)
    assert visitor.components()[f"mx_{step}"]["groups"]


def test_the_numbers_of_a_sentence_are_the_layers() -> None:
    visitor = lesson(given="sentence", step="softmax", sizes="12x3x5/4", text=SENTENCE, head="2")
    worked = work(sentence_example(SENTENCE, Sizes(12, 3, 5, 4)))
    groups = visitor.components()["mx_softmax"]["groups"]
    assert [group["title"] for group in groups] == ["H2", "H0", "H1"], "the chosen one first, and every other"
    for group, head in zip(groups, (2, 0, 1), strict=True):
        assert near(group["lines"][0]["items"][-1], worked.weights[head])


def size(visitor: Visitor, name: str, value: int | None) -> None:
    next(one for one in visitor.at.number_input if one.key == f"lesson_{name}").set_value(value).run()
    visitor.assert_whole("Lesson")


def test_sizes_are_chosen_and_those_that_do_not_divide_get_a_sentence() -> None:
    visitor = lesson(given="sentence", step="project", sizes="8x2", text=SENTENCE)
    size(visitor, "n_heads", 3)
    assert any(
        "d_model 8 is not divisible by h = 3" in one and "Kept: d_model 8, h 2." in one for one in visitor.sentences
    )
    assert visitor.url.get("sizes", "8x2") == "8x2"
    size(visitor, "d_head", 3)
    size(visitor, "n_heads", 3)
    assert visitor.sentences == []
    assert visitor.url["sizes"] == "8x3x3"
    assert len(drawn(visitor, "mx_project")["Q"]["values"][0]) == 3


@pytest.mark.parametrize("sizes", ["10x3", "999x1", "8x99", "8x2x99", "0x0"])
def test_sizes_of_a_link_that_do_not_fit_get_a_sentence(sizes: str) -> None:
    visitor = lesson(given="sentence", sizes=sizes, text=SENTENCE)
    assert visitor.sentences
    assert "Shown with d_model 8, h 2." in visitor.captions


def test_an_empty_sentence_and_a_long_one() -> None:
    visitor = lesson(given="sentence", text=" ")
    assert any("There is no word" in one for one in visitor.sentences)
    visitor = lesson(given="sentence", text="word " * 40)
    assert "The first 12 words are taken; 28 more words are left out." in visitor.captions


def test_what_is_typed_stays_text() -> None:
    visitor = lesson(given="sentence", step="scores", text="**b** $x$ :red[y] <b>")
    assert "**b**" not in "".join(visitor.markdown())
    assert "<b>" not in "".join(one.replace("\\<b\\>", "") for one in visitor.markdown())


# ---------------------------------------------------------------- a real head, and none


def test_a_head_of_a_model_step_by_step() -> None:
    model = "own-layer/64x8/0"
    visitor = lesson(given="head", model=model, head="5", step="softmax", text=SENTENCE)
    from mha_core.ui.stores import store

    trace = store().model(model, lambda message: None).run(SENTENCE)
    assert near(drawn(visitor, "mx_softmax")["A"], trace.weights(0)[5])
    for step in ("project", "scores", "scale", "mask", "values", "concat", "output"):
        assert lesson(given="head", model=model, head="5", step=step, text=SENTENCE).components()[f"mx_{step}"]
    items = drawn(lesson(given="head", model=model, head="5", step="concat", text=SENTENCE), "mx_concat")
    assert items["Z"]["marked"] == [40, 48]


def test_a_step_that_a_real_head_has_not_becomes_the_first_that_it_has() -> None:
    visitor = lesson(given="head", step="residual", text=SENTENCE)
    assert "mx_project" in visitor.components()


def test_the_heads_page_leads_here() -> None:
    visitor = Visitor("Heads", model="own-layer/64x8/0", head="3")
    visitor.click("to_lesson")
    visitor.assert_whole("Lesson")
    assert (visitor.url["given"], visitor.url["step"], visitor.url["head"]) == ("head", "scores", "3")
    assert visitor.components()["mx_scores"]["groups"][0]["title"] == "L0H3"


def bare(**query: str) -> AppTest:
    """A visitor who comes to this page first."""
    at = AppTest.from_file(ROOT / "app.py", default_timeout=60)
    at.switch_page("pages/lesson.py")
    at.query_params.update(query)
    return at.run()


@pytest.mark.parametrize("section", SECTIONS)
def test_no_model_is_loaded_unless_a_real_head_is_asked_for(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Store, name: str, report: Any) -> Model:
        raise AssertionError(f"{name} was loaded")

    monkeypatch.setattr(Store, "model", refuse)
    at = bare(model="nobody/not-installed", lesson=section)
    assert not at.exception
    assert not at.error
    assert [title.value for title in at.title] == ["Lesson"]
    assert any("this page works without it" in caption.value for caption in at.sidebar.caption)


def test_without_the_model_a_real_head_gets_a_sentence_and_the_way_back_stays() -> None:
    at = bare(model="./no-such-folder", given="head")
    assert not at.exception
    assert len(at.error) == 1
    assert any(button.key == "lesson_open" for button in at.button), "the controls above it are drawn"


# ---------------------------------------------------------------- the other sections


@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind: str) -> None:
    visitor = lesson(lesson="masks", closing=kind, at="1")
    items = drawn(visitor, "mx_masks")
    closed = [value for row in items["M"]["values"] for value in row if value is None]
    assert len(closed) == {"none": 0, "causal": 10, "padding": 14}[kind]
    assert items["A"]["marked_row"] == 1
    cards = list(visitor.metrics.values())
    assert cards[0] == "0"
    assert float(cards[1]) > 0.1


def test_stepping_through_the_positions_opens_one_word_at_a_time() -> None:
    visitor = lesson(lesson="masks")
    for at in range(5):
        visitor.at.slider[0].set_value(at).run()
        words = ["I", "love", "building", "software", "."]
        text = said(visitor)
        assert "open: " + " · ".join(words[: at + 1]) in text
        assert ("closed: " + " · ".join(words[at + 1 :]) in text) == (at < 4)


def test_what_comes_later_can_be_typed_and_nothing_leaks_at_the_end() -> None:
    visitor = lesson(lesson="masks")
    visitor.type("nothing at all", key="w_later")
    assert any("I love nothing at all" in one.value for one in visitor.at.text)
    visitor = lesson(lesson="masks", at="4", later="")
    assert "Nothing comes after" in said(visitor)
    visitor = lesson(lesson="masks", sample=" ")
    assert any("There is no word" in one for one in visitor.sentences)


@pytest.mark.parametrize("narrow", ["2", "4", "8"])
def test_one_wide_head_beside_narrow_ones(narrow: str) -> None:
    visitor = lesson(lesson="heads", narrow=narrow)
    groups = visitor.components()["mx_wide"]["groups"]
    assert [len(group["lines"][0]["items"][0]["values"]) for group in groups] == [1, int(narrow)]
    assert {group["note"] for group in groups} == {"1,024 parameters"}
    assert "From “she”" in said(visitor)


def test_no_slider_setting_gives_both_rows() -> None:
    visitor = lesson(lesson="heads")
    assert list(visitor.metrics.values()) == ["0.40", "0.40", "0.40"]
    visitor.click("row_0")
    assert list(visitor.metrics.values()) == ["0.00", "0.80", "0.40"]
    visitor.click("row_1")
    assert list(visitor.metrics.values()) == ["0.80", "0.00", "0.40"]
    visitor.click("row_best")
    assert max(map(float, visitor.metrics.values())) == pytest.approx(0.40, abs=0.011)
    next(one for one in visitor.at.slider if one.key == "lesson_row_0").set_value(100).run()
    assert visitor.url["row"].startswith("100,")
    assert float(visitor.metrics["Distance to H1's row"]) > 0.40


def test_a_row_of_nothing_gets_a_sentence() -> None:
    visitor = lesson(lesson="heads", row="0,0,0,0")
    assert any("Move one slider up" in one for one in visitor.sentences)


def test_the_trap_is_shown_with_its_shapes_and_errors() -> None:
    visitor = lesson(lesson="average")
    table = visitor.at.dataframe[0].value
    assert list(table["shape"]) == ["(2, 128, 512)", "(2, 128, 512)", "(2, 128, 128)", "(2, 8, 128, 128)"]
    assert "the weights differ by" in said(visitor)


def test_the_average_of_opposite_heads_follows_the_slider() -> None:
    visitor = lesson(lesson="average", sharp="8.0")
    assert "more decided than their average" in said(visitor)
    visitor.at.slider[0].set_value(0.0).run()
    assert "the average hides nothing" in said(visitor)
    assert visitor.metrics["Between H0 and H1"] == "0.00"


@pytest.mark.parametrize("head", [0, 1])
def test_a_head_taken_out_leaves_its_block_empty(head: int) -> None:
    rows = numbers(drawn(lesson(lesson="redundant", gone=str(head)), "mx_gone")["Z"])
    for row in rows:
        assert [value == 0 for value in row] == [place // 2 == head for place in range(4)]


@pytest.mark.parametrize("copied", [False, True])
def test_a_copy_can_go(copied: bool) -> None:
    visitor = lesson(lesson="redundant", copied="1" if copied else "0")
    table = visitor.at.dataframe[0].value
    assert list(table["error, W_O as it was"]) == [f"{one.before:.3f}" for one in removals(TOY, copied)]
    assert all(text.startswith("0 (rounding") for text in table["error, W_O refitted"]) == copied
    assert ("Either head can go" in said(visitor)) == copied


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_each_question_leads_to_what_shows_it(number: int) -> None:
    visitor = lesson(lesson="questions")
    assert QUESTIONS[number].answer() in said(visitor)
    visitor.click(f"question_{number}")
    visitor.assert_whole("Lesson")
    wanted = QUESTIONS[number].changes()
    assert visitor.url.get("lesson", "steps") == wanted["lesson"]
    assert [key for key in visitor.components() if key.startswith("mx_")]
    if "step" in wanted:
        assert f"mx_{wanted['step']}" in visitor.components()


@pytest.mark.parametrize(
    "query",
    [
        {"step": "nonsense"}, {"lesson": "x"}, {"given": "x"}, {"sizes": "8"}, {"row": "1,2"}, {"narrow": "3"},
        {"at": "9999", "lesson": "masks"}, {"sharp": "1e9", "lesson": "average"}, {"gone": "77", "lesson": "redundant"},
        {"query": "900", "lesson": "heads"}, {"sharp": "nan", "lesson": "average"}, {"row": "999,0,0,0"},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_an_address_says_the_page_is_drawn(query: dict[str, str]) -> None:
    lesson(**query)
