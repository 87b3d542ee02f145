"""The sweep on the Ablate page: its numbers are the function's, for what the page says, and never those of before."""

from __future__ import annotations

import numpy as np
import pytest

from mha_core.sweep import head_ablation_sweep
from mha_core.ui.stores import store
from tests.pages.driver import Visitor

MINILM = "all-minilm-l6-v2"
TEXT = "The cat slept under the table."
OTHER = "A kitten dozed below the desk."
AS_LONG = "The dog slept under the chair."


def ablating(**query: str) -> Visitor:
    seen = Visitor("Ablate", **{"model": MINILM, "text": TEXT, "off": "L0H0", **query})
    seen.assert_whole("Ablate")
    return seen


@pytest.fixture(autouse=True)
def forget_sweeps() -> None:
    with store()._lock:
        for key in [key for key in store()._small if isinstance(key, tuple) and key[0] == "sweep"]:
            del store()._small[key]


def sweep_kinds(seen: Visitor) -> list[str]:
    return [key.split("_")[1] for key in seen.components() if key.startswith("sweep_") and key.endswith("_kept")]


@pytest.mark.parametrize(
    ("query", "metric", "kind", "arguments"),
    [
        ({}, "cosine_distance", "zero", {}),
        ({}, "cosine_distance", "mean", {}),
        ({"lines": "One.\nTwo words."}, "cosine_distance", "mean", {"reference": ("One.", "Two words.")}),
        ({"other": OTHER}, "similarity", "zero", {"other": OTHER}),
        ({"kinds": "resample", "source": AS_LONG}, "cosine_distance", "resample", {"source": AS_LONG}),
    ],
)
def test_the_maps_are_the_functions_numbers(
    query: dict[str, str], metric: str, kind: str, arguments: dict[str, object]
) -> None:
    seen = ablating(**query)
    seen.choose("w_sweep_metric", metric)
    seen.click("sweep")
    seen.assert_whole("Ablate")
    view = seen.view(f"sweep_{kind}_kept")
    model = store().model(MINILM, print)
    expected = head_ablation_sweep(model, TEXT, metric=metric, kind=kind, **arguments)  # type: ignore[arg-type]
    np.testing.assert_allclose(view.arrays["map"], expected.effects, atol=1e-6)
    assert view.provenance["kind"] == kind
    assert view.meta["unit"] == metric


def test_another_sentence_to_compare_with_is_another_sweep() -> None:
    seen = ablating(other=OTHER)
    seen.choose("w_sweep_metric", "similarity")
    seen.click("sweep")
    assert sweep_kinds(seen) == ["zero", "mean"]
    seen.type("Stock prices fell on Monday.", key="w_other")
    seen.assert_whole("Ablate")
    assert sweep_kinds(seen) == []


def test_a_counterfactual_of_another_length_is_said_and_the_rest_is_swept() -> None:
    seen = ablating(kinds="resample", source="Too short.")
    seen.click("sweep")
    seen.assert_whole("Ablate")
    assert sweep_kinds(seen) == ["zero", "mean"]
    assert any(sentence.startswith("resample:") for sentence in seen.sentences)


def test_maps_share_a_scale_until_asked_otherwise() -> None:
    seen = ablating()
    seen.click("sweep")
    shared = [seen.view(f"sweep_{kind}_kept").meta["range"] for kind in ("zero", "mean")]
    assert shared[0] == shared[1]
    next(toggle for toggle in seen.at.toggle if toggle.key == "w_sweep_scale").set_value(False).run()
    for kind in ("zero", "mean"):
        view = seen.view(f"sweep_{kind}_kept")
        assert view.meta["range"][1] == pytest.approx(float(np.abs(view.arrays["map"]).max()), rel=1e-6)


def test_pairs_and_controls_are_drawn_on_request() -> None:
    seen = ablating()
    seen.click("sweep")
    for key in ("pairs", "control", "directions"):
        seen.click(key)
        seen.assert_whole("Ablate")
    pairs = seen.view("pairs_map").arrays["map"]
    np.testing.assert_allclose(pairs, pairs.T, atol=1e-7)
    assert "random sets of 1 heads" in seen.captions


def test_another_model_begins_with_its_own_usual_metric() -> None:
    seen = ablating()
    seen.click("sweep")
    seen.follow(model="smollm2-135m-instruct", off="L0H0")
    box = next(box for box in seen.at.selectbox if box.key == "w_sweep_metric")
    assert (box.options[0], box.value) == ("kl", "kl")
