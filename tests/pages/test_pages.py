"""Every kind of model on the pages: what is drawn belongs to what was chosen, and nothing that is typed breaks it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mha_core.examples import EXAMPLES
from mha_core.model import Model
from mha_core.ui.stores import store
from tests.pages.driver import Visitor
from tests.tiny import tiny_model_dir

BOTH = ("Heads", "Ablate")
SMOLLM2, MINILM, OWN = "smollm2-135m-instruct", "all-minilm-l6-v2", "own-layer"
DEFAULT = "When Mary and John went to the store, John gave a drink to"
PAIR = "The animal crossed the road because it was frightened."
SHAPES = {SMOLLM2: (30, 9, 14), MINILM: (6, 12, 16), OWN: (1, 8, 14)}  # layers, heads, tokens of the default sentence
HOSTILE = "**bold** $x$ :red[y] <b>z</b> `c` [a](b) # h ~~s~~ :material/home:"


Regular = Callable[..., Visitor]


def model_of(name: str) -> Model:
    """The model as the app keeps it."""
    return store().model(name, lambda message: None)


# ---------------------------------------------------------------- every page, every model


@pytest.mark.parametrize("page", BOTH)
@pytest.mark.parametrize("model", SHAPES)
def test_a_page_is_drawn_with_its_title_and_token_count(page: str, model: str) -> None:
    visitor = Visitor(page, model=model)
    visitor.assert_whole(page)
    layers, heads, tokens = SHAPES[model]
    assert f"{tokens} tokens of at most" in visitor.captions
    assert f"{layers} layer" in visitor.captions
    assert f"× {heads} heads" in visitor.captions
    assert visitor.text == DEFAULT


@pytest.mark.parametrize("model", SHAPES)
def test_heads_draws_every_head_and_one_layer(model: str, regular: Regular) -> None:
    visitor = regular("Heads", model=model)
    layers, heads, tokens = SHAPES[model]
    assert visitor.view("overview").arrays["maps"].shape[:2] == (layers, heads)
    assert visitor.view("layer").arrays["maps"].shape == (heads, tokens, tokens)
    assert visitor.view("overview").provenance["text"] == DEFAULT


@pytest.mark.parametrize("model", SHAPES)
def test_what_is_drawn_is_the_models_own_run(model: str, regular: Regular) -> None:
    visitor = regular("Heads", model=model, layer="3", head="5", text=PAIR)
    layer = min(3, SHAPES[model][0] - 1)
    weights = model_of(model).run(PAIR).weights(layer).numpy()
    np.testing.assert_array_equal(visitor.view("layer").arrays["maps"], weights)
    assert visitor.view("layer").meta["selected_head"] == 5
    assert visitor.view("overview").meta["selected"] == [layer, 5]


@pytest.mark.parametrize("model", SHAPES)
def test_ablate_offers_every_head_and_shows_no_change_at_first(model: str, regular: Regular) -> None:
    visitor = regular("Ablate", model=model)
    layers, heads, _ = SHAPES[model]
    grid = visitor.one("grid_")
    assert (grid["n_layers"], grid["n_heads"], grid["off"]) == (layers, heads, [])
    assert not [key for key in visitor.components() if "zero" in key or "mean" in key]
    assert "the library's own attention" in visitor.captions
    assert "contributions sum" in visitor.captions


def test_the_next_words_stand_before_and_after(regular: Regular) -> None:
    visitor = regular("Ablate", off="L1H3,L1H5")
    visitor.assert_whole("Ablate")
    assert visitor.one("grid_")["off"] == ["L1H3", "L1H5"]
    words = visitor.one("words")
    assert [column["name"] for column in words["columns"]] == ["clean", "zero", "mean"]
    mary = next(row for row in words["rows"] if row["word"] == " Mary")
    assert mary["values"] == pytest.approx([0.923, 0.056, 0.923], abs=1e-3)
    assert visitor.metrics["KL(clean‖zero), nats"] == "2.49"
    assert float(visitor.metrics["KL(clean‖mean), nats"]) < 0.01
    assert visitor.one("loss_zero")["labels"][:2] == ["When", "Mary"]
    assert visitor.one("loss_zero")["values"][0] is None
    assert re.search(r"zero: .*\b2 heads", visitor.captions)


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_only_the_chosen_kind_is_run(kind: str, regular: Regular) -> None:
    visitor = regular("Ablate", off="L1H3,L1H5", kinds=kind)
    assert [column["name"] for column in visitor.one("words")["columns"]] == ["clean", kind]
    assert visitor.url == {"off": "L1H3,L1H5", "kinds": kind}


def test_sentences_stand_beside_each_other_for_an_encoder(regular: Regular) -> None:
    visitor = regular("Ablate", model=MINILM, text=PAIR, off="L0H1,L2H3")
    visitor.assert_whole("Ablate")
    values = [float(value) for label, value in visitor.metrics.items() if label.startswith("similarity")]
    assert len(values) == 3
    assert all(-1 <= value <= 1 for value in values)
    assert values[1] != values[0]
    assert min(visitor.one("movement_zero")["values"]) > 0


def test_similarity_is_asked_for_with_a_second_sentence(regular: Regular) -> None:
    visitor = regular("Ablate", model=MINILM, other="")
    visitor.assert_whole("Ablate")
    assert any("second sentence" in sentence for sentence in visitor.sentences)
    visitor.type(PAIR, "w_other")
    same = regular("Ablate", model=MINILM, text=PAIR, other=PAIR)
    assert same.metrics["similarity, clean"] == "1.000"


def test_our_own_layer_shows_how_its_output_moved(regular: Regular) -> None:
    visitor = regular("Ablate", model=OWN, off="L0H3")
    visitor.assert_whole("Ablate")
    moved = visitor.one("movement_zero")
    assert moved["labels"] == DEFAULT.replace(",", " ,").split()
    assert all(value > 0 for value in moved["values"])


# ---------------------------------------------------------------- choosing and typing


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_becomes_the_text_and_its_maps(number: int, regular: Regular) -> None:
    visitor = regular("Heads", model=OWN, text="nothing of the kind")
    visitor.click(f"example_{number}")
    visitor.assert_whole("Heads")
    assert visitor.text == EXAMPLES[number].text
    assert visitor.view("layer").provenance["text"] == EXAMPLES[number].text
    assert visitor.view("overview").provenance["text"] == EXAMPLES[number].text


@pytest.mark.parametrize("page", BOTH)
@pytest.mark.parametrize("model", [MINILM, OWN])
def test_typing_redraws(page: str, model: str, regular: Regular) -> None:
    visitor = regular(page, model=model, off="L0H1")
    for text in ("one two three", "one two", "one two three four five", "one"):
        visitor.type(text)
        visitor.assert_whole(page)
        assert visitor.text == text
        assert visitor.url["text"] == text


@pytest.mark.parametrize("page", BOTH)
@pytest.mark.parametrize("model", [MINILM, OWN])
@pytest.mark.parametrize("text", ["", "   "])
def test_no_text_is_said_and_what_was_typed_stays(page: str, model: str, text: str, regular: Regular) -> None:
    visitor = regular(page, model=model)
    visitor.type(text)
    assert not visitor.at.exception
    assert any("Type a sentence" in sentence for sentence in visitor.sentences)
    assert visitor.text == text
    visitor.type("a sentence")
    visitor.assert_whole(page)


@pytest.mark.parametrize("page", BOTH)
@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize(
    "text",
    [
        "Hi",
        "💩💩 👨\u200d👩\u200d👧",
        "هذا 東京",
        "café\nnaïve\tend",
        "</script> <s> &amp; <b>x</b>",
        "[SEP] [MASK]",
        "\x00\u200b",
    ],
)
def test_no_text_breaks_a_page(page: str, model: str, text: str, regular: Regular) -> None:
    visitor = regular(page, model=model, text=text, off="L0H3", kinds="zero")
    visitor.assert_whole(page)
    assert visitor.text == text
    assert visitor.url["text"] == text


@pytest.mark.parametrize("page", BOTH)
@pytest.mark.parametrize(("model", "limit"), [(MINILM, "512"), (OWN, "512")])
def test_a_text_beyond_the_limit_is_shown_up_to_it_and_said(
    page: str, model: str, limit: str, regular: Regular
) -> None:
    visitor = regular(page, model=model, text="word " * 3000, off="L0H1", kinds="zero")
    visitor.assert_whole(page)
    assert any("3,00" in sentence and limit in sentence and "cut" in sentence for sentence in visitor.sentences)
    assert visitor.text == "word " * 3000


def test_a_typed_mark_is_explained(regular: Regular) -> None:
    visitor = regular("Heads", model=MINILM, text="What is [SEP] and what")
    assert "[SEP] in the text was taken as this model's special token." in visitor.sentences


def test_two_sentences_are_read_as_a_pair(regular: Regular) -> None:
    visitor = regular("Heads", model=MINILM, text="I love", pair="love it")
    visitor.assert_whole("Heads")
    assert visitor.view("layer").meta["key_labels"] == ["[CLS]", "i", "love", "[SEP]", "love", "it", "[SEP]"]
    visitor.type("", "w_pair")
    assert visitor.view("layer").meta["key_labels"] == ["[CLS]", "i", "love", "[SEP]"]


def test_a_list_of_tokens_from_a_longer_text_does_no_harm() -> None:
    """Typing on: a browser still sends the token it showed, as it was written, when the list has become another."""
    visitor = Visitor(model=OWN, text="one two three four five")
    visitor.choose("w_query", 4)
    before = visitor.at._tree.get_widget_states()
    visitor.type("uno due")
    stale = next(widget for widget in before.widgets if widget.id.endswith("w_query"))
    now = visitor.at._tree.get_widget_states()
    for widget in now.widgets:
        if widget.id == stale.id:
            widget.CopyFrom(stale)
        if widget.id.endswith("w_text"):
            widget.string_value = "uno due tre"
    visitor.at._run(now)
    visitor.assert_whole("Heads")
    assert visitor.text == "uno due tre"


def test_typing_on_a_slow_line_loses_nothing() -> None:
    """The browser shows the address of the text before while the next one is already typed."""
    visitor = Visitor(model=OWN, text="one")
    seen = visitor.url
    visitor.type("one two")
    visitor.type("one two three", seen=seen)
    assert visitor.text == "one two three"
    assert visitor.view("layer").provenance["text"] == "one two three"


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("page", BOTH)
@pytest.mark.parametrize(
    "name",
    ["no model at all", "<script>alert(1)</script>", "own-layer/63x8", "own-layer/many", "~nobody-here/x", "a--b"],
)
def test_a_model_that_is_none_is_said_and_the_text_stays(page: str, name: str, regular: Regular) -> None:
    visitor = regular(page, model=OWN, text="keep me")
    visitor.follow(model=name, text="keep me")
    assert [error.message for error in visitor.at.exception] == []
    assert len(visitor.at.error) == 1
    assert visitor.text == "keep me"
    assert visitor.url == {"model": name, "text": "keep me"}
    visitor.follow(model=OWN, text="keep me")
    visitor.assert_whole(page)


def test_a_model_that_is_not_allowed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_MODELS", OWN)
    visitor = Visitor(model="someone/else")
    assert any("cannot be loaded here" in sentence for sentence in visitor.sentences)
    visitor.choose("w_model", OWN)
    visitor.assert_whole("Heads")


def test_the_first_page_of_a_restricted_server_is_an_allowed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_MODELS", OWN)
    visitor = Visitor()
    visitor.assert_whole("Heads")


@pytest.mark.parametrize("family", ["gpt2", "bert", "bart", "t5"])
def test_models_from_a_folder_work_on_both_pages(family: str, tmp_path: Path) -> None:
    folder = tiny_model_dir(family, tmp_path)
    visitor = Visitor(model=str(folder), text=PAIR)
    visitor.assert_whole("Heads")
    visitor.open("Ablate")
    visitor.assert_whole("Ablate")
    site = "dec." if family in ("bart", "t5") else ""
    visitor.follow(model=str(folder), text=PAIR, off=f"{site}L1H2", kinds="zero")
    visitor.assert_whole("Ablate")
    assert visitor.one("grid_")["off"] == [f"{site}L1H2"]


def test_the_masked_word_is_predicted_where_the_mask_is(tmp_path: Path) -> None:
    folder = tiny_model_dir("bert", tmp_path)
    visitor = Visitor("Ablate", model=str(folder), text="the animal [MASK] the road", off="L1H2", kinds="zero")
    visitor.assert_whole("Ablate")
    assert len(visitor.one("words")["rows"]) >= 10


# ---------------------------------------------------------------- our own layer's sizes


def test_the_sizes_of_our_own_layer_can_be_chosen() -> None:
    visitor = Visitor(model=OWN)
    visitor.choose("own_d_model", 128)
    visitor.choose("own_heads", 4)
    visitor.assert_whole("Heads")
    assert visitor.url["model"] == "own-layer/128x4/0"
    assert visitor.view("layer").arrays["maps"].shape[0] == 4
    assert "d_model 128, 4 heads of 32" in visitor.captions


def test_another_seed_is_another_layer() -> None:
    visitor = Visitor(model=OWN)
    before = visitor.view("layer").arrays["maps"]
    visitor.at.sidebar.number_input(key="own_seed").set_value(7).run()
    assert visitor.url["model"] == "own-layer/64x8/7"
    assert not np.allclose(visitor.view("layer").arrays["maps"], before)


def test_heads_that_do_not_divide_the_width_become_the_next_that_do() -> None:
    visitor = Visitor(model="own-layer/96x12/0")
    visitor.choose("own_d_model", 64)
    visitor.assert_whole("Heads")
    assert visitor.url["model"] == "own-layer/64x8/0"


def test_a_link_to_other_sizes_shows_those_sizes() -> None:
    visitor = Visitor(model=OWN)
    visitor.follow(model="own-layer/96x6/3")
    shown = {box.key: box.value for box in visitor.at.sidebar.selectbox}
    assert (shown["own_d_model"], shown["own_heads"]) == (96, 6)
    assert visitor.at.sidebar.number_input(key="own_seed").value == 3


def test_sizes_chosen_after_a_link_start_from_the_link() -> None:
    visitor = Visitor(model=OWN)
    visitor.follow(model="own-layer/96x6/3")
    visitor.choose("own_heads", 3)
    assert visitor.url["model"] == "own-layer/96x3/3"


# ---------------------------------------------------------------- shown literally


@pytest.mark.parametrize("page", BOTH)
@pytest.mark.parametrize("model", SHAPES)
def test_typed_text_is_never_markdown(page: str, model: str, regular: Regular) -> None:
    visitor = regular(page, model=model, text=HOSTILE, other=HOSTILE, off="L0H3", kinds="zero")
    for text in visitor.markdown():
        for part in ("**bold**", "$x$", ":red[", "<b>z", "`c`", "[a](", "~~s~~", ":material/home"):
            assert part not in text


def test_a_note_that_quotes_the_text_quotes_it_literally(regular: Regular) -> None:
    text = "word " * 509 + HOSTILE
    visitor = regular("Heads", model=MINILM, text=text)
    assert any("**" in sentence and "bold" in sentence for sentence in visitor.sentences)
    assert not [body for body in visitor.markdown() if "**" in body and "bold" in body]


def test_a_models_name_is_quoted_literally(regular: Regular) -> None:
    visitor = regular("Heads", model="**m** :red[n] <b>o</b>")
    assert any("**m** :red[n] <b>o</b>" in sentence for sentence in visitor.sentences)
    assert not [text for text in visitor.markdown() if "**m**" in text or ":red[" in text or "<b>o" in text]


def test_a_word_that_is_a_line_break_can_be_read(regular: Regular) -> None:
    """The most likely next word after a colon is a line break; a card that says P(“”) says nothing."""
    visitor = regular("Ablate", text="Here is a list of the three animals:")
    words = visitor.one("words")["rows"]
    assert words[0]["word"].isspace()
    label = next(label for label in visitor.metrics if label.startswith("P("))
    assert "⏎" in label or "↵" in label
