"""Views carry a run's own numbers, exact or pooled by their maximum, with what made them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mha_core import HeadAblation, Model, Trace, load_model
from mha_core.view import View, max_pool
from mha_core.views import (
    EXACT_CELLS,
    THUMBNAIL,
    Overview,
    layer_view,
    overview_view,
    provenance,
    token_view,
    top_keys,
    whole_words,
)
from tests.tiny import tiny_model_dir

TEXT = "The animal crossed the road because it was frightened."
HOSTILE = "</script> **b** $x$ <b>y</b>"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Tiny models by family, loaded once."""
    loaded: dict[str, Model] = {"own": load_model("own-layer/32x4/0")}

    def load(family: str) -> Model:
        if family not in loaded:
            loaded[family] = load_model(str(tiny_model_dir(family, tmp_path_factory)))
        return loaded[family]

    return load


@pytest.fixture(scope="module")
def llama(tiny: Callable[[str], Model]) -> Model:
    return tiny("llama")


@pytest.fixture(scope="module")
def trace(llama: Model) -> Trace:
    return llama.run(TEXT)


@pytest.fixture(scope="module")
def long(tiny: Callable[[str], Model]) -> Trace:
    """300 words through our own layer: longer than maps are drawn cell by cell."""
    return tiny("own").run(" ".join(f"word{n}" for n in range(300)))


def travelled(view: View) -> View:
    """The view as a browser gets it."""
    return View.unpack(view.pack())


# ---------------------------------------------------------------- one layer's heads


def test_a_short_layer_travels_exactly(llama: Model, trace: Trace) -> None:
    view = travelled(layer_view(llama, trace, site="self", layer=1, selected=2))
    np.testing.assert_array_equal(view.arrays["maps"], trace.weights(1).numpy())
    assert view.meta["query_labels"] == view.meta["key_labels"] == list(trace.tokens.labels)
    assert view.meta["block"] == [1, 1]
    assert view.meta["titles"] == ["H0", "H1", "H2", "H3"]
    assert view.meta["selected_head"] == 2
    assert view.meta["causal"] is True


def test_one_head_alone_is_the_same_map(llama: Model, trace: Trace) -> None:
    view = layer_view(llama, trace, site="self", layer=1, heads=[2], selected=2)
    np.testing.assert_array_equal(view.arrays["maps"][0], trace.weights(1)[2].numpy())
    assert (view.meta["titles"], view.meta["selected_head"]) == (["H2"], 0)


def test_heads_are_never_averaged(llama: Model, trace: Trace) -> None:
    maps = layer_view(llama, trace, site="self", layer=0).arrays["maps"]
    assert maps.shape[0] == 4
    assert not any(np.allclose(maps[head], maps.mean(axis=0), atol=1e-3) for head in range(4))


def test_a_long_layer_is_pooled_by_its_maximum_and_says_so(tiny: Callable[[str], Model], long: Trace) -> None:
    view = travelled(layer_view(tiny("own"), long, site="self", layer=0))
    weights = long.weights(0).numpy()
    assert weights.shape[1] > EXACT_CELLS
    assert view.meta["block"] == [2, 2]
    assert view.arrays["maps"].shape == (4, 150, 150)
    assert view.arrays["maps"][3, 7, 11] == weights[3, 14:16, 22:24].max()
    assert len(view.meta["query_labels"]) == 300


def test_switched_off_heads_are_marked(llama: Model) -> None:
    trace = llama.run(TEXT, HeadAblation(["L1H3", "L0H1"]))
    assert layer_view(llama, trace, site="self", layer=1).meta["off"] == [3]
    assert layer_view(llama, trace, site="self", layer=0).meta["off"] == [1]
    assert layer_view(llama, trace, site="self", layer=1, heads=[2, 3]).meta["off"] == [1]


def test_cross_attention_has_two_texts(tiny: Callable[[str], Model]) -> None:
    model = tiny("bart")
    trace = model.run(TEXT, target="I love")
    view = travelled(layer_view(model, trace, site="cross", layer=0, ring="previous"))
    assert trace.source_tokens is not None
    assert view.meta["query_labels"] == list(trace.tokens.labels)
    assert view.meta["key_labels"] == list(trace.source_tokens.labels)
    assert view.arrays["maps"].shape[1:] == (len(trace.tokens), len(trace.source_tokens))
    assert all("first token" in subtitle for subtitle in view.meta["subtitles"])


# ---------------------------------------------------------------- the whole model


@pytest.mark.parametrize("family", ["llama", "bert", "own"])
def test_thumbnails_and_measures_are_each_heads_own(family: str, tiny: Callable[[str], Model]) -> None:
    model = tiny(family)
    trace = model.run(TEXT)
    seen: list[tuple[int, int]] = []
    overview = Overview.of(trace, "self", lambda done, total: seen.append((done, total)))
    n_layers = trace.sites["self"].n_layers
    assert seen == [(layer, n_layers) for layer in range(n_layers)]
    assert overview.maps.shape[:2] == (n_layers, trace.sites["self"].n_heads)
    for layer in range(n_layers):
        weights = trace.weights(layer)
        np.testing.assert_array_equal(overview.maps[layer], np.rint(255 * weights.numpy()).astype(np.uint8))
        for name, measure in overview.measures.items():
            expected = measure.compute(weights, special=torch.tensor(trace.tokens.special)).numpy()
            np.testing.assert_allclose(overview.values(name)[layer], expected, rtol=1e-5)


def test_long_thumbnails_keep_the_largest_weight_of_each_block(tiny: Callable[[str], Model], long: Trace) -> None:
    overview = Overview.of(long, "self")
    assert max(overview.maps.shape[2:]) <= THUMBNAIL
    expected = max_pool(long.weights(0).numpy(), THUMBNAIL)[0]
    np.testing.assert_array_equal(overview.maps[0], np.rint(255 * expected).astype(np.uint8))
    view = overview_view(overview, tiny("own"), long, site="self", ring="first", layer=0, head=0)
    assert "each cell the largest weight of 10 × 10 positions" in view.meta["alt"]


def test_the_overview_rings_the_measure_that_was_asked_for(llama: Model, trace: Trace) -> None:
    overview = Overview.of(trace, "self")
    assert {"first", "previous", "self", "entropy"} <= set(overview.measures)
    for ring, measure in overview.measures.items():
        view = travelled(overview_view(overview, llama, trace, site="self", ring=ring, layer=1, head=3, off=["L0H2"]))
        np.testing.assert_allclose(view.arrays["values"], overview.values(ring))
        assert view.meta["values_label"] == measure.name
        low, high = view.meta["values_range"]
        assert low <= view.arrays["values"].min() <= view.arrays["values"].max() <= high + 1e-5
        assert (view.meta["selected"], view.meta["off"]) == ([1, 3], [[0, 2]])


def test_cross_attention_has_only_measures_that_need_no_square(tiny: Callable[[str], Model]) -> None:
    model = tiny("bart")
    trace = model.run(TEXT, target="I love")
    overview = Overview.of(trace, "cross")
    assert "first" in overview.measures
    assert not any(measure.needs_square for measure in overview.measures.values())
    off = ["cross.L0H1", "enc.L0H2"]
    view = overview_view(overview, model, trace, site="cross", ring="previous", layer=0, head=0, off=off)
    assert view.meta["values_label"] == "first token"
    assert view.meta["site_prefix"] == "cross."
    assert view.meta["off"] == [[0, 1]]


# ---------------------------------------------------------------- one token's row


def test_a_tokens_row_is_read_from_every_head(llama: Model, trace: Trace) -> None:
    view = travelled(token_view(llama, trace, site="self", layer=1, query=4))
    np.testing.assert_array_equal(view.arrays["maps"][0], trace.weights(1)[:, 4].numpy())
    assert view.meta["query_labels"] == ["H0", "H1", "H2", "H3"]
    assert view.meta["key_labels"] == list(trace.tokens.labels)
    assert trace.tokens.labels[4] in view.meta["caption"]


def test_a_long_row_is_pooled_along_its_keys_only(tiny: Callable[[str], Model], long: Trace) -> None:
    view = token_view(tiny("own"), long, site="self", layer=0, query=299)
    assert view.meta["block"] == [1, 2]
    assert view.arrays["maps"].shape == (1, 4, 150)
    assert view.arrays["maps"][0, 2, 5] == long.weights(0)[2, 299, 10:12].max()


def test_the_last_block_of_a_row_may_be_short(tiny: Callable[[str], Model]) -> None:
    trace = tiny("own").run(" ".join(f"word{n}" for n in range(257)))
    view = token_view(tiny("own"), trace, site="self", layer=0, query=0)
    assert view.arrays["maps"].shape == (1, 4, 129)
    assert view.arrays["maps"][0, 1, 128] == trace.weights(0)[1, 0, 256]


# ---------------------------------------------------------------- the table


def test_the_table_lists_the_strongest_keys_and_what_they_make_up(trace: Trace) -> None:
    rows = top_keys(trace, "self", 1, 2)
    weights = trace.weights(1)[2]
    assert [row["position"] for row in rows] == list(range(len(trace.tokens)))
    for position, row in enumerate(rows):
        best = weights[position].topk(3)
        assert [row[f"weight {rank}"] for rank in (1, 2, 3)] == best.values.tolist()
        assert row["key 1"] == f"{trace.tokens.labels[best.indices[0]]} ({int(best.indices[0])})"
        assert row["shown"] == pytest.approx(float(best.values.sum()))
        assert row["shown"] <= 1 + 1e-6


def test_one_token_has_one_key(tiny: Callable[[str], Model]) -> None:
    assert top_keys(tiny("own").run("Hi"), "self", 0, 0) == [
        {"position": 0, "query": "Hi", "key 1": "Hi (0)", "weight 1": 1.0, "shown": 1.0}
    ]


def test_tokens_are_listed_with_their_positions_and_words(tiny: Callable[[str], Model]) -> None:
    tokens = tiny("own").tokenize("Hi there")
    assert [whole_words(tokens, position) for position in range(2)] == ["0: Hi", "1: there"]


# ---------------------------------------------------------------- what made it


def test_every_view_says_what_made_it(llama: Model) -> None:
    trace = llama.run(TEXT, HeadAblation(["L1H3"]))
    views = [
        overview_view(Overview.of(trace, "self"), llama, trace, site="self", ring="first", layer=0, head=0),
        layer_view(llama, trace, site="self", layer=1),
        token_view(llama, trace, site="self", layer=1, query=0),
    ]
    for view in views:
        made = travelled(view).provenance
        assert made["text"] == TEXT
        assert (made["model"], made["model_sha256"]) == (llama.name, llama.details.sha256)
        assert len(made["model_sha256"]) == 64
        assert made["interventions"] == "zero: L1H3"
        assert made["index_base"] == 0
        assert set(made["versions"]) >= {"torch", "transformers"}


def test_both_texts_of_an_encoder_decoder_are_said(tiny: Callable[[str], Model]) -> None:
    model = tiny("bart")
    made = provenance(model, model.run(TEXT, target="I love"))
    assert made["text"] == TEXT
    assert "love" in str(made["target"])


def test_another_run_has_another_identity(llama: Model, trace: Trace) -> None:
    def identities(of: Trace) -> set[str]:
        overview = Overview.of(of, "self")
        return {
            overview_view(overview, llama, of, site="self", ring="first", layer=0, head=0).meta["id"],
            layer_view(llama, of, site="self", layer=0).meta["id"],
            layer_view(llama, of, site="self", layer=1).meta["id"],
            layer_view(llama, of, site="self", layer=1, heads=[2]).meta["id"],
            token_view(llama, of, site="self", layer=1, query=0).meta["id"],
            token_view(llama, of, site="self", layer=1, query=1).meta["id"],
        }

    clean, ablated = identities(trace), identities(llama.run(TEXT, HeadAblation(["L0H1"])))
    assert len(clean) == len(ablated) == 6
    assert not clean & ablated
    assert clean == identities(llama.run(TEXT))


@pytest.mark.parametrize("family", ["llama", "bert", "own"])
def test_hostile_text_travels_as_it_is(family: str, tiny: Callable[[str], Model]) -> None:
    model = tiny(family)
    trace = model.run(HOSTILE)
    view = travelled(layer_view(model, trace, site="self", layer=0))
    assert view.provenance["text"] == HOSTILE
    assert view.meta["key_labels"] == list(trace.tokens.labels)
    json.dumps(view.meta, allow_nan=False)
