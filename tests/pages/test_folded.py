"""What is folded away on the Heads page costs nothing until it is opened, and is all there then."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from mha_core.ui.stores import store
from mha_core.why import explain_weight
from tests.pages.driver import Visitor, unescaped

MINILM = "all-minilm-l6-v2"
TEXT = "The animal crossed the road because it was frightened."


def looking(**query: str) -> Visitor:
    seen = Visitor(**{"model": MINILM, "text": TEXT, "layer": "4", "head": "10", **query})
    seen.assert_whole("Heads")
    return seen


def downloads(seen: Visitor) -> list[str]:
    return [unescaped(button.proto.label) for button in seen.at.get("download_button")]  # type: ignore[union-attr]


def opened(seen: Visitor, key: str) -> Visitor:
    seen.at.session_state[key] = True
    seen.at.run()
    seen.assert_whole("Heads")
    return seen


def test_a_typed_key_makes_no_table_no_chart_and_no_downloads() -> None:
    seen = looking()
    seen.type("The animal crossed the road because it was hungry.")
    assert not seen.at.dataframe
    assert not seen.at.get("plotly_chart")
    assert not downloads(seen)


def test_the_table_of_strongest_keys_is_the_head_that_is_shown() -> None:
    table = opened(looking(), "focus_table").at.dataframe[0].value
    strongest = store().model(MINILM, lambda message: None).run(TEXT).weights(4)[10].amax(dim=-1).numpy()
    np.testing.assert_allclose(table["weight 1"], strongest, atol=1e-6)


def test_the_table_of_measures_has_every_head() -> None:
    assert len(opened(looking(), "heads_table").at.dataframe[0].value) == 72


@pytest.mark.parametrize("key", ["export_overview", "export_focus", "export_layer"])
def test_each_picture_can_be_taken_away_in_four_ways(key: str) -> None:
    assert downloads(opened(looking(), key)) == ["CSV", "JSON", "NPZ", "HTML, opens offline"]


def test_a_chosen_cell_shows_why_dimension_by_dimension() -> None:
    seen = looking(query="7", key="2")
    (chart,) = seen.at.get("plotly_chart")
    bars = json.loads(chart.proto.spec)["data"]  # type: ignore[union-attr]
    trace = store().model(MINILM, lambda message: None).run(TEXT)
    why = explain_weight(trace, 4, 10, 7, 2)
    for drawn, values in zip(bars, (why.q, why.k, why.product), strict=True):
        sent = np.frombuffer(base64.b64decode(drawn["y"]["bdata"]), drawn["y"]["dtype"])
        np.testing.assert_array_equal(sent, values)
    assert max(seen.at.dataframe[0].value["weight"]) == pytest.approx(float(max(why.row_weights)), abs=1e-4)


def test_the_strongest_heads_are_listed_and_lead_there() -> None:
    seen = looking(ring="previous")
    pills = next(group for group in seen.at.button_group if group.key == "w_strongest")
    measured = seen.view("overview").arrays["values"]
    best = int(np.argmax(measured))
    assert pills.options[0].startswith(f"L{best // 12}H{best % 12} ")
    pills.select(best).run()
    seen.assert_whole("Heads")
    assert seen.view("overview").meta["selected"] == list(divmod(best, 12))
