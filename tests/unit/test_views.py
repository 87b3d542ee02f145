"""Views carry a run's own numbers, exact or pooled by their maximum, with what made them."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from itertools import product

import numpy as np
import pytest
import torch

from mha_core import HeadAblation, Model, Trace, load_model
from mha_core.layer_numbers import EXACT_CELLS, Look
from mha_core.maps import TEXT_KEYS, LayerMaps
from mha_core.metrics import MEASURES
from mha_core.norms import value_weighted
from mha_core.pooling import MapOptions
from mha_core.view import View, max_pool
from mha_core.views import THUMBNAIL, Overview, head_measures, overview_view, provenance, top_keys, whole_words
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


def maps_of(model: Model, trace: Trace, layer: int, site: str = "self", **look: object) -> LayerMaps:
    return LayerMaps(model, trace, site, layer, Look(**look))  # type: ignore[arg-type]


def ringed(overview: Overview, model: Model, trace: Trace, ring: str, site: str = "self") -> View:
    place = {"layer": 1 if site == "self" else 0, "head": 3}
    return overview_view(overview, model, trace, site=site, ring=ring, values=overview.values(ring), **place)


# ---------------------------------------------------------------- one layer's heads


def test_a_short_layer_travels_exactly(llama: Model, trace: Trace) -> None:
    view = travelled(maps_of(llama, trace, 1).grid_view(2, "first"))
    np.testing.assert_array_equal(view.arrays["maps"], trace.weights(1).numpy())
    assert view.meta["query_labels"] == view.meta["key_labels"] == list(trace.tokens.labels)
    assert view.meta["block"] == [1, 1]
    assert view.meta["titles"] == ["H0", "H1", "H2", "H3"]
    assert view.meta["selected_head"] == 2
    assert view.meta["causal"] is True


def test_one_head_alone_is_the_same_map(llama: Model, trace: Trace) -> None:
    view = travelled(maps_of(llama, trace, 1).matrix_view(2))
    np.testing.assert_array_equal(view.arrays["map"], trace.weights(1)[2].numpy())
    assert view.meta["title"] == "L1H2"


def test_heads_are_never_averaged(llama: Model, trace: Trace) -> None:
    maps = maps_of(llama, trace, 0).grid_view(0, "first").arrays["maps"]
    assert maps.shape[0] == 4
    assert not any(np.allclose(maps[head], maps.mean(axis=0), atol=1e-3) for head in range(4))


def test_a_long_layer_is_pooled_by_its_maximum_and_says_so(tiny: Callable[[str], Model], long: Trace) -> None:
    view = travelled(maps_of(tiny("own"), long, 0).grid_view(0, "first"))
    weights = long.weights(0).numpy()
    assert weights.shape[1] > EXACT_CELLS
    assert view.meta["block"] == [2, 2]
    assert view.arrays["maps"].shape == (4, 150, 150)
    assert view.meta["scale_to"] == [0, 1]
    assert abs(view.arrays["maps"][3, 7, 11] / 65535 - weights[3, 14:16, 22:24].max()) <= 1 / 131070
    assert len(view.meta["query_labels"]) == 300


def test_switched_off_heads_are_marked(llama: Model) -> None:
    trace = llama.run(TEXT, HeadAblation(["L1H3", "L0H1"]))
    assert maps_of(llama, trace, 1).grid_view(0, "first").meta["off"] == [3]
    assert maps_of(llama, trace, 0).grid_view(0, "first").meta["off"] == [1]
    assert [maps_of(llama, trace, 1).matrix_view(head).meta["off"] for head in (2, 3)] == [False, True]


def test_cross_attention_has_two_texts(tiny: Callable[[str], Model]) -> None:
    model = tiny("bart")
    trace = model.run(TEXT, target="I love")
    view = travelled(maps_of(model, trace, 0, "cross").grid_view(0, "previous"))
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
    view = ringed(overview, tiny("own"), long, "first")
    assert "each cell the largest weight of 10 × 10 positions" in view.meta["alt"]


def test_the_overview_rings_the_measure_that_was_asked_for(llama: Model) -> None:
    trace = llama.run(TEXT, HeadAblation(["L0H2"]))
    overview = Overview.of(trace, "self")
    assert {"first", "previous", "self", "entropy"} <= set(overview.measures)
    for ring, measure in overview.measures.items():
        view = travelled(ringed(overview, llama, trace, ring))
        np.testing.assert_allclose(view.arrays["values"], overview.values(ring))
        assert view.meta["values_label"] == measure.name
        low, high = view.meta["values_range"]
        assert low <= view.arrays["values"].min() <= view.arrays["values"].max() <= high + 1e-5
        assert (view.meta["selected"], view.meta["off"]) == ([1, 3], [[0, 2]])


def test_cross_attention_has_only_measures_that_need_no_square(tiny: Callable[[str], Model]) -> None:
    model = tiny("bart")
    trace = model.run(TEXT, HeadAblation(["cross.L0H1", "enc.L0H2"]), target="I love")
    overview = Overview.of(trace, "cross")
    assert "first" in overview.measures
    assert not any(measure.needs_square for measure in overview.measures.values())
    view = ringed(overview, model, trace, "first", "cross")
    assert view.meta["values_label"] == "first token"
    assert view.meta["site_prefix"] == "cross."
    assert view.meta["off"] == [[0, 1]]


# ---------------------------------------------------------------- other ways to look


def test_the_text_view_carries_every_heads_rows(llama: Model, trace: Trace) -> None:
    view = travelled(maps_of(llama, trace, 1).text_view(2, 4))
    np.testing.assert_array_equal(view.arrays["maps"], trace.weights(1).numpy())
    assert view.meta["titles"] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert (view.meta["row_selected"], view.meta["query"]) == (2, 4)


def test_a_long_text_view_keeps_each_querys_strongest_keys(tiny: Callable[[str], Model], long: Trace) -> None:
    view = travelled(maps_of(tiny("own"), long, 0).text_view(0, 0))
    values, keys = view.arrays["top_values"], view.arrays["top_keys"]
    weights = long.weights(0).numpy()
    assert values.shape == keys.shape == (4, 300, TEXT_KEYS)
    np.testing.assert_array_equal(values, np.take_along_axis(weights, keys, axis=-1))
    np.testing.assert_allclose(np.sort(values), np.sort(weights)[..., -TEXT_KEYS:])


def test_a_long_matrix_is_exact_to_the_fifth_digit(tiny: Callable[[str], Model], long: Trace) -> None:
    view = travelled(maps_of(tiny("own"), long, 0).matrix_view(1))
    assert view.arrays["map"].dtype == np.uint16
    low, high = view.meta["scale_to"]
    assert low == 0
    np.testing.assert_allclose(view.arrays["map"] / 65535 * high, long.weights(0)[1].numpy(), atol=8e-6 * high)


def test_value_weighted_maps_have_their_own_range_and_say_so(llama: Model, trace: Trace) -> None:
    maps = maps_of(llama, trace, 1, quantity="value")
    view = maps.grid_view(0, "first")
    np.testing.assert_allclose(view.arrays["maps"], value_weighted(trace, 1).numpy(), rtol=1e-6)
    assert view.meta["range"] == [0, pytest.approx(float(view.arrays["maps"].max()))]
    assert any("Kobayashi" in note for note in maps.notes())


def test_hiding_never_renormalises_and_says_how_much_is_hidden(llama: Model, trace: Trace) -> None:
    maps = maps_of(llama, trace, 1, options=MapOptions(hide="first"))
    expected = trace.weights(1)[:, 1:, 1:].numpy()
    np.testing.assert_allclose(maps.grid_view(0, "first").arrays["maps"], expected, rtol=1e-6)
    assert maps.notes()[0]
    assert maps.query_index(5) == 4


def test_an_average_is_only_there_under_its_name(llama: Model, trace: Trace) -> None:
    view = maps_of(llama, trace, 1).average_view()
    np.testing.assert_allclose(view.arrays["map"], trace.weights(1).mean(dim=0).numpy(), rtol=1e-5, atol=1e-7)
    assert "average" in view.meta["title"]
    assert "average" in view.provenance["quantity"]


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
        ringed(Overview.of(trace, "self"), llama, trace, "first"),
        maps_of(llama, trace, 1).grid_view(0, "first"),
        maps_of(llama, trace, 1).matrix_view(0),
        maps_of(llama, trace, 1).text_view(0, 0),
        maps_of(llama, trace, 1).lines_view(0),
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
            ringed(overview, llama, of, "first").meta["id"],
            maps_of(llama, of, 0).grid_view(0, "first").meta["id"],
            maps_of(llama, of, 1).grid_view(0, "first").meta["id"],
            maps_of(llama, of, 1).matrix_view(2).meta["id"],
            maps_of(llama, of, 1).matrix_view(1).meta["id"],
            maps_of(llama, of, 1).text_view(0, 1).meta["id"],
        }

    clean, ablated = identities(trace), identities(llama.run(TEXT, HeadAblation(["L0H1"])))
    assert len(clean) == len(ablated) == 6
    assert not clean & ablated
    assert clean == identities(llama.run(TEXT))


@pytest.mark.parametrize("family", ["llama", "bert", "own"])
def test_hostile_text_travels_as_it_is(family: str, tiny: Callable[[str], Model]) -> None:
    model = tiny(family)
    trace = model.run(HOSTILE)
    view = travelled(maps_of(model, trace, 0).grid_view(0, "first"))
    assert view.provenance["text"] == HOSTILE
    assert view.meta["key_labels"] == list(trace.tokens.labels)
    json.dumps(view.meta, allow_nan=False)


def test_the_table_of_measures_has_every_heads_own_numbers(llama: Model, trace: Trace) -> None:
    overview = Overview.of(trace, "self")
    extra = np.arange(llama.n_layers * llama.n_heads, dtype=np.float32).reshape(llama.n_layers, llama.n_heads)
    rows = head_measures(overview, "self", {"induction": extra})
    assert [row["head"] for row in rows] == [f"L{i}H{j}" for i in range(llama.n_layers) for j in range(llama.n_heads)]
    assert [row["induction"] for row in rows] == extra.ravel().tolist()
    for name in overview.measures:
        assert [row[MEASURES[name].name] for row in rows] == pytest.approx(overview.values(name).ravel().tolist())


# ---------------------------------------------------------------- what is kept


class Kept:
    """Keeps everything, and counts what was made."""

    def __init__(self) -> None:
        self.results: dict[Hashable, object] = {}

    def __call__(self, key: Hashable, make: Callable[[], object]) -> object:
        if key not in self.results:
            self.results[key] = make()
        return self.results[key]


def drawings(maps: LayerMaps) -> list[View]:
    """Everything that can be drawn of a layer, several heads and measures of it."""
    return [
        *(maps.grid_view(0, ring) for ring in ("first", "previous", "entropy")),
        *(maps.matrix_view(head) for head in (2, 0)),
        maps.matrix_view(1, exact=True),
        maps.text_view(1, 4),
        *(maps.lines_view(head) for head in (3, 1)),
        maps.average_view(),
    ]


def test_what_is_kept_is_what_would_be_made_again(tiny: Callable[[str], Model], long: Trace) -> None:
    """All looks at several layers of several runs through one store, twice: nothing is ever taken for another."""
    model, kept = tiny("own"), Kept()
    ablated = model.run(long.tokens, HeadAblation(["L0H1"], "uniform"))
    other = model.run(" ".join(f"other{n}" for n in range(300)))
    short = model.run(TEXT)
    options = [MapOptions(), MapOptions(hide="first"), MapOptions(words=True)]
    looks = [Look(*given) for given in product(("weights", "value"), options, (False, True), (False, True))]
    made: list[int] = []
    for _ in range(2):
        for trace, look in product((long, ablated, other, short), looks):
            for top in (None, 0.5):
                found = drawings(LayerMaps(model, trace, "self", 0, look, top, keep=kept))  # type: ignore[arg-type]
                expected = drawings(LayerMaps(model, trace, "self", 0, look, top))
                for view, same in zip(found, expected, strict=True):
                    assert view.pack() == same.pack()
        made.append(len(kept.results))
    assert made[0] == made[1], "the second time nothing was made"


def test_layers_are_kept_apart(llama: Model, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mha_core.layer_numbers.EXACT_CELLS", 4)
    monkeypatch.setattr("mha_core.layer_numbers.POOLED_CELLS", 4)
    kept = Kept()
    assert LayerMaps(llama, trace, "self", 0).is_long
    for layer in (0, 1, 0):
        for view, same in zip(
            drawings(LayerMaps(llama, trace, "self", layer, keep=kept)),  # type: ignore[arg-type]
            drawings(LayerMaps(llama, trace, "self", layer)),
            strict=True,
        ):
            assert view.pack() == same.pack()


def test_one_head_alone_is_made_as_it_is_among_the_others(tiny: Callable[[str], Model], long: Trace) -> None:
    for quantity, words in product(("weights", "value"), (False, True)):
        look = Look(quantity, MapOptions(words=words))
        whole = LayerMaps(tiny("own"), long, "self", 0, look)
        for head in range(4):
            alone = LayerMaps(tiny("own"), long, "self", 0, look).map_of(head)
            np.testing.assert_array_equal(alone, whole.array[head])
