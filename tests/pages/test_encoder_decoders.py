"""Encoder–decoders on the pages: our own, and T5, BART and Marian from a local folder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mha_core import HeadAblation, Trace, head_ablation_sweep
from mha_core.continuation import continuation
from mha_core.effects import written
from mha_core.examples import DATES, EXAMPLES
from mha_core.model import Model
from mha_core.ui.stores import store
from tests.pages.driver import Visitor
from tests.tiny import ENCODER_DECODERS, tiny_model_dir

DATE = "date-translator"
TEXT, ISO = "Mar 3 21", "2021-03-03"
SENTENCE, TARGET = "The cat slept.", "The dog is old."
SITES = ("enc", "dec", "cross")

Regular = Callable[..., Visitor]


@pytest.fixture(scope="module", params=[DATE, *ENCODER_DECODERS])
def name(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `load_model` takes: our own model's name, or the folder of a tiny one of the family."""
    return DATE if request.param == DATE else str(tiny_model_dir(request.param, tmp_path_factory))


def model_of(name: str) -> Model:
    """The model as the app keeps it."""
    return store().model(name, lambda message: None)


def clean(name: str) -> Trace:
    text, target = (TEXT, ISO) if name == DATE else (SENTENCE, TARGET)
    return model_of(name).run(text, target=target)


def asked(name: str, **more: str) -> dict[str, str]:
    """The address of the page for a model; the text and its target are given."""
    text, target = (TEXT, ISO) if name == DATE else (SENTENCE, TARGET)
    return {"model": name, "text": text, "pair": target, **more}


# ---------------------------------------------------------------- every one of them


@pytest.mark.parametrize("site", SITES)
def test_heads_draws_the_maps_of_each_attention(name: str, site: str, regular: Regular) -> None:
    visitor = regular("Heads", **asked(name, site=site, layer="1", head="2"))
    visitor.assert_whole("Heads")
    trace = clean(name)
    view = visitor.view("layer")
    np.testing.assert_array_equal(view.arrays["maps"], trace.weights(1, site).numpy())
    queries, keys = trace.site_tokens(site)
    assert list(view.meta["query_labels"]) == list(queries.labels)
    assert list(view.meta["key_labels"]) == list(keys.labels)
    assert (len(queries) == len(keys)) == (site != "cross")
    assert view.provenance["target"] == trace.tokens.text
    assert view.provenance["model_sha256"] == model_of(name).details.sha256 != ""


@pytest.mark.parametrize("mode", ["text", "lines"])
def test_a_cross_head_is_drawn_in_each_way(name: str, mode: str, regular: Regular) -> None:
    visitor = regular("Heads", **asked(name, site="cross", mode=mode))
    visitor.assert_whole("Heads")
    view = visitor.view(mode)
    queries, keys = clean(name).site_tokens("cross")
    assert view.kind == mode
    assert (view.meta["query_labels"], view.meta["key_labels"]) == (list(queries.labels), list(keys.labels))


def test_compare_subtracts_two_cross_heads(name: str, regular: Regular) -> None:
    panels = '[{"site":"cross","head":"0"},{"site":"cross","head":"3"}]'
    visitor = regular("Compare", **asked(name, panels=panels))
    visitor.assert_whole("Compare")
    weights = clean(name).weights(0, "cross").numpy()
    view = visitor.view("difference_map")
    np.testing.assert_allclose(view.arrays["map"], weights[3] - weights[0], atol=1e-6)
    queries, keys = clean(name).site_tokens("cross")
    assert (view.meta["query_labels"], view.meta["key_labels"]) == (list(queries.labels), list(keys.labels))


def test_compare_does_not_subtract_cross_from_self_attention(name: str, regular: Regular) -> None:
    visitor = regular("Compare", **asked(name, panels='[{"site":"cross"},{"site":"dec"}]'))
    visitor.assert_whole("Compare")
    assert any("their keys are of different texts" in said for said in visitor.sentences)


@pytest.mark.parametrize("site", SITES)
def test_ablate_shows_what_is_still_written(name: str, site: str, regular: Regular) -> None:
    off = [f"{site}.L0H{head}" for head in range(4)]
    visitor = regular("Ablate", **asked(name, site=site, off=",".join(off), kinds="zero"))
    visitor.assert_whole("Ablate")
    assert visitor.one("grid_")["off"] == off
    trace = clean(name)
    changed = model_of(name).run(trace.source_tokens or "", HeadAblation(off), target=trace.tokens)
    expected = written(model_of(name), trace, changed)
    strip = visitor.one("written_zero")
    assert strip["values"] == pytest.approx(list(expected.moved), abs=1e-5)
    assert f"zero: {expected.differ} of {len(trace.tokens)} differ" in visitor.captions
    assert "the library's own attention" in visitor.captions
    most = int(np.argmax(expected.moved))
    top = int(trace.logits_at([most])[0].argmax())
    assert visitor.one("words")["rows"][0]["word"] == model_of(name).surface(top)
    assert "where most has changed" in visitor.captions


@pytest.mark.parametrize("site", SITES)
def test_places_are_those_of_the_queries(name: str, site: str, regular: Regular) -> None:
    """The tokens that can be chosen for an ablation are the ones that the chosen attention has rows for."""
    visitor = regular("Ablate", **asked(name, site=site, off=f"{site}.L0H1", where="1", kinds="zero"))
    visitor.assert_whole("Ablate")
    queries = clean(name).site_tokens(site)[0]
    choices = next(group for group in visitor.at.button_group if group.key == "w_where_tokens")
    assert len(choices.options) == len(queries)


def test_the_sweep_measures_the_loss_of_the_target_first(name: str, regular: Regular) -> None:
    visitor = regular("Ablate", **asked(name, site="cross"))
    box = next(box for box in visitor.at.selectbox if box.key == "w_sweep_metric")
    assert (box.options[0], box.value) == ("loss", "loss")


@pytest.mark.parametrize("site", SITES)
def test_the_sweep_of_the_page_is_the_exact_one(name: str, site: str, regular: Regular) -> None:
    visitor = regular("Ablate", **asked(name, site=site, kinds="zero"))
    visitor.click("sweep")
    visitor.assert_whole("Ablate")
    trace, model = clean(name), model_of(name)
    source = trace.source_tokens
    assert source is not None
    expected = head_ablation_sweep(model, source, metric="loss", site=site, target=trace.tokens)
    np.testing.assert_allclose(visitor.view("sweep_zero_kept").arrays["map"], expected.effects, atol=1e-5)


def test_everything_folded_away_opens(name: str) -> None:
    visitor = Visitor("Ablate", **asked(name, site="cross", off="cross.L0H1", kinds="zero"))
    for key in ("continuation", "downstream", "direct", "plans", "knockout"):
        visitor.at.session_state[key] = True
        visitor.at.run()
        visitor.assert_whole("Ablate")
    assert {"downstream_map", "knockout_map"} <= set(visitor.components())
    next(button for button in visitor.at.button if button.label == "Write on").click().run()
    visitor.assert_whole("Ablate")
    off = HeadAblation(["cross.L0H1"])
    target = clean(name).tokens
    on_page = [text.value for text in visitor.at.text]
    for plan in (None, off):
        text = continuation(model_of(name), clean(name).source_tokens or "", plan, 20, target=target).strip()
        assert text in on_page


def test_pictures_are_exported_with_what_made_them(name: str) -> None:
    visitor = Visitor("Heads", **asked(name, site="cross"))
    for key in ("export_overview", "export_focus", "export_layer"):
        visitor.at.session_state[key] = True
    visitor.at.run()
    visitor.assert_whole("Heads")
    assert len(visitor.at.get("download_button")) == 12


# ---------------------------------------------------------------- our own


def test_switching_to_it_brings_a_date_and_back_a_sentence() -> None:
    visitor = Visitor()
    visitor.choose("w_model", DATE)
    visitor.assert_whole("Heads")
    assert visitor.text == DATES[0].text
    assert visitor.url == {"model": DATE}
    assert visitor.view("layer").provenance["target"] == ISO
    visitor.click("example_2")
    assert (visitor.text, visitor.view("layer").provenance["target"]) == (DATES[2].text, ISO)
    visitor.type("5 May 1955")
    assert visitor.view("layer").provenance["target"] == "1955-05-05"
    visitor.choose("w_model", "own-layer")
    assert visitor.text == "5 May 1955"
    visitor.click("example_1")
    assert visitor.text == EXAMPLES[1].text


def test_the_sidebar_says_what_it_was_trained_on(regular: Regular) -> None:
    visitor = regular("Heads", model=DATE, text=TEXT)
    for said in ("Trained on dates of 1900 to 2099", "day first with dots", "any text", "not trained on"):
        assert said.lower() in visitor.captions.lower()


def test_its_mean_is_over_dates(regular: Regular) -> None:
    visitor = regular("Ablate", model=DATE, text=TEXT, site="cross", off="cross.L0H0")
    visitor.assert_whole("Ablate")
    assert f"over {len(model_of(DATE).corpus)} reference sentences" in visitor.captions
    trace = clean(DATE)
    changed = model_of(DATE).run(TEXT, HeadAblation(["cross.L0H0"], "mean"), target=trace.tokens)
    expected = written(model_of(DATE), trace, changed)
    assert visitor.one("written_mean")["values"] == pytest.approx(list(expected.moved), abs=1e-5)


def test_text_that_is_no_date_and_strange_characters_are_drawn(regular: Regular) -> None:
    for text in ("no date ☃ <b>$x$</b>", "日本"):
        visitor = regular("Heads", model=DATE, text=text, site="cross")
        visitor.assert_whole("Heads")
        assert list(visitor.view("layer").meta["key_labels"])[:-1] == list(text.replace(" ", "␣"))
        assert any("unknown to this model" in said for said in visitor.sentences)
