"""The address is a link to what is seen: it comes in, it goes out, and whatever it says breaks nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.pages.driver import Visitor

BOTH = ("Heads", "Ablate")
OWN, MINILM = "own-layer", "all-minilm-l6-v2"
TEXT = "R&D #1 = 50%"
Regular = Callable[..., Visitor]


# ---------------------------------------------------------------- in and out


@pytest.mark.parametrize("page", BOTH)
def test_the_default_page_has_a_clean_address(page: str) -> None:
    assert Visitor(page).url == {}


@pytest.mark.parametrize("text", [TEXT, "123", "null", "a\nb", "💩", "هذا اختبار", "  spaces  ", "+1", ","])
def test_a_text_in_the_address_is_in_the_field_and_back(text: str, regular: Regular) -> None:
    visitor = regular("Heads", model=OWN, text=text)
    visitor.assert_whole("Heads")
    assert visitor.text == text
    assert visitor.view("layer").provenance["text"] == text
    assert visitor.url == {"model": OWN, "text": text}


def test_a_link_opens_what_it_says() -> None:
    visitor = Visitor(model=MINILM, text=TEXT, layer="4", head="10", query="2", ring="self")
    visitor.assert_whole("Heads")
    assert visitor.view("overview").meta["selected"] == [4, 10]
    assert visitor.view("overview").meta["values_label"] == "self"
    assert visitor.view("layer").meta["selected_head"] == 10
    assert visitor.view("layer").provenance["layer"] == 4
    assert visitor.at.slider(key="w_layer").value == 4


def test_choices_go_into_the_address() -> None:
    visitor = Visitor(model=MINILM)
    visitor.type("one two three")
    visitor.at.slider(key="w_layer").set_value(2).run()
    visitor.choose("w_query", 3)
    assert visitor.url == {"model": MINILM, "text": "one two three", "layer": "2", "query": "3"}


def test_the_address_of_one_visitor_shows_another_the_same() -> None:
    first = Visitor(model=MINILM, layer="3", head="7")
    first.type("She read the letter twice.")
    second = Visitor(**first.url)
    assert second.url == first.url
    for key in ("overview", "layer"):
        np.testing.assert_array_equal(second.view(key).arrays["maps"], first.view(key).arrays["maps"])
        assert second.view(key).meta == first.view(key).meta


def test_a_reload_is_a_new_visit_with_the_same_address() -> None:
    before = Visitor("Ablate", model=MINILM, text=TEXT, off="L0H3,L5H11", kinds="zero")
    after = Visitor("Ablate", **before.url)
    assert after.url == before.url
    assert after.one("grid_")["off"] == ["L0H3", "L5H11"]
    assert after.metrics == before.metrics


def test_the_back_button_brings_the_choices_back() -> None:
    visitor = Visitor(model=OWN)
    visitor.type("one two three")
    earlier = visitor.url
    visitor.type("something else")
    visitor.follow(**earlier)
    assert visitor.text == "one two three"
    visitor.assert_whole("Heads")


# ---------------------------------------------------------------- from page to page


def test_a_page_switch_keeps_model_sentence_head_and_heads_off() -> None:
    visitor = Visitor(model=MINILM, text=TEXT, layer="2", head="5", off="L0H3,L1H1", kinds="mean")
    for page in ("Ablate", "Heads", "Ablate"):
        visitor.open(page)
        visitor.assert_whole(page)
        assert visitor.text == TEXT
        assert visitor.url == {
            "model": MINILM, "text": TEXT, "layer": "2", "head": "5", "off": "L0H3,L1H1", "kinds": "mean",
        }  # fmt: skip
    assert visitor.one("grid_")["off"] == ["L0H3", "L1H1"]


@pytest.mark.parametrize("page", BOTH)
def test_what_was_typed_before_a_page_switch_stays(page: str) -> None:
    visitor = Visitor(page, model=OWN)
    visitor.type("typed here")
    visitor.open(next(other for other in BOTH if other != page))
    assert visitor.text == "typed here"
    visitor.open(page)
    assert visitor.text == "typed here"


def test_an_empty_text_stays_empty_on_the_next_page() -> None:
    visitor = Visitor(model=OWN)
    visitor.type("")
    visitor.open("Ablate")
    assert visitor.text == ""
    assert any("Type a sentence" in sentence for sentence in visitor.sentences)


def test_another_model_keeps_the_sentence_and_a_head_it_has() -> None:
    visitor = Visitor(layer="29", head="8", text=TEXT)
    visitor.choose("w_model", MINILM)
    visitor.assert_whole("Heads")
    assert visitor.text == TEXT
    assert visitor.view("overview").meta["selected"] == [5, 8]


def test_heads_of_another_model_are_named_and_left_out() -> None:
    visitor = Visitor("Ablate", model=MINILM, off="L0H3,L20H2")
    visitor.assert_whole("Ablate")
    assert visitor.one("grid_")["off"] == ["L0H3"]
    visitor = Visitor("Ablate", off="L20H2,L1H3", kinds="zero")
    visitor.choose("w_model", MINILM)
    visitor.assert_whole("Ablate")
    assert any("L20H2" in sentence for sentence in visitor.sentences)
    assert visitor.one("grid_")["off"] == ["L1H3"]


# ---------------------------------------------------------------- addresses that are wrong


@pytest.mark.parametrize(
    "query",
    [
        {"layer": "999"}, {"layer": "-1"}, {"layer": "x"}, {"layer": "1e9"}, {"layer": "0" * 6 + "9" * 5000},
        {"head": "999"},
        {"head": "-1"}, {"query": "9999"}, {"query": "-2"}, {"query": ""}, {"ring": "sink"}, {"ring": "special"},
        {"site": "cross"}, {"site": "enc"}, {"site": "nowhere"}, {"off": "L99H99,garbage"}, {"off": "garbage"},
        {"off": "cross.L0H0"}, {"off": "," * 5000}, {"kinds": "foo"}, {"kinds": ""}, {"unknown": "x"}, {"w_text": "x"},
        {"text": "x" * 100_000}, {"pair": "second"}, {"other": "<b>"},
    ],
    ids=lambda query: ",".join(f"{name}={value[:20]}" for name, value in query.items()),
)  # fmt: skip
def test_no_value_of_an_address_breaks_a_page(query: dict[str, str]) -> None:
    visitor = Visitor(model=OWN, **query)
    visitor.assert_whole("Heads")
    visitor.open("Ablate")
    visitor.assert_whole("Ablate")
    again = Visitor(**visitor.url)
    again.assert_whole("Heads")
    assert again.url == visitor.url


def test_a_wrong_layer_becomes_one_that_is_there() -> None:
    assert Visitor(model=MINILM, layer="999").view("layer").provenance["layer"] == 5
    assert Visitor(model=MINILM, layer="x").view("layer").provenance["layer"] == 0
    assert Visitor(model=MINILM, head="999").view("overview").meta["selected"] == [0, 11]


def test_only_heads_that_are_there_are_off() -> None:
    visitor = Visitor("Ablate", model=MINILM, off="L99H99,garbage,L0H3")
    assert visitor.one("grid_")["off"] == ["L0H3"]
    assert visitor.url["off"] == "L0H3"


def test_a_text_that_is_too_long_for_an_address_is_capped_and_said() -> None:
    visitor = Visitor(model=OWN, text="x " * 50_000)
    visitor.assert_whole("Heads")
    assert len(visitor.text) == 60_000
    assert any("60,000" in sentence or "100,000" in sentence for sentence in visitor.sentences)


# ---------------------------------------------------------------- three steps


def test_the_first_step_shows_a_layer_from_it() -> None:
    visitor = Visitor("Ablate", model=OWN, text="something else", off="L0H1")
    visitor.click("try_it")
    visitor.assert_whole("Heads")
    assert visitor.text == "The animal crossed the road because it was frightened."
    assert visitor.url["model"] == MINILM
    assert visitor.view("layer").provenance["layer"] == int(visitor.url["layer"])
    assert visitor.view("layer").meta["query_labels"][int(visitor.url["query"])] == "it"


@pytest.mark.parametrize("page", BOTH)
def test_the_second_step_loses_mary(page: str) -> None:
    visitor = Visitor(page, model=OWN, text="something else")
    visitor.click("try_zero")
    visitor.assert_whole("Ablate")
    assert visitor.one("grid_")["off"] == ["L1H3", "L1H5"]
    assert visitor.metrics["P(“ Mary”), zero"] == "0.923 → 0.056"


def test_the_third_step_brings_mary_back() -> None:
    visitor = Visitor()
    visitor.click("try_zero")
    visitor.click("try_mean")
    visitor.assert_whole("Ablate")
    before, after = visitor.metrics["P(“ Mary”), mean"].split(" → ")
    assert float(after) == pytest.approx(float(before), abs=0.01)
    assert not any(label.endswith("zero") for label in visitor.metrics)


def test_the_steps_are_not_offered_without_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_MODELS", OWN)
    visitor = Visitor(model=OWN)
    visitor.assert_whole("Heads")
    assert not [button for button in visitor.at.button if str(button.key).startswith("try_")]
