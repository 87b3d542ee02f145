"""Figures for notebooks: from a trace, or from attentions that somebody already has."""

from __future__ import annotations

import html
import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from mha_core import Trace, load_model
from mha_core.figures import MAX_CELLS, difference_figure, show_head, show_heads
from mha_core.palette import Theme, diverging, sequential
from tests.tiny import tiny_model_dir

NASTY = ["<b>x</b>", "a&b", "$y$", "%{z}", "\n", ""]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return load_model(str(tiny_model_dir("bert", tmp_path_factory))).run("The keys are on the table.")


def heatmap(figure: go.Figure) -> go.Heatmap:
    (only,) = figure.data
    assert isinstance(only, go.Heatmap)
    return only


def attentions(n: int, heads: int = 3, layers: int = 2) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, heads, n, n, generator=g).softmax(-1) for _ in range(layers))


def test_three_lines_show_a_head_of_a_model(trace: Trace) -> None:
    figure = show_head(trace, layer=1, head=2)
    drawn = heatmap(figure)
    np.testing.assert_array_equal(drawn.z, trace.weights(1)[2].numpy())
    assert isinstance(drawn.z, np.ndarray)
    assert (drawn.zmin, drawn.zmax) == (0, 1)
    assert list(figure.layout.xaxis.ticktext) == [html.escape(label, quote=False) for label in trace.tokens.labels]
    assert list(figure.layout.xaxis.tickvals) == list(range(len(trace.tokens)))  # numbers: repeated tokens stay apart
    assert figure.layout.yaxis.autorange == "reversed"
    assert figure.layout.title.text == "L1H2"


def test_attentions_of_transformers_give_the_same_figure(
    trace: Trace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tiny_model_dir("bert", tmp_path_factory)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")
    inputs = tokenizer("The keys are on the table.", return_tensors="pt")
    outputs = model(**inputs, output_attentions=True)
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    figure = show_head(outputs.attentions, layer=1, head=2, tokens=tokens)
    np.testing.assert_allclose(heatmap(figure).z, trace.weights(1)[2].numpy(), atol=1e-6)
    assert len(heatmap(show_heads(outputs.attentions, layer=1, tokens=tokens)).z) > len(tokens)


def test_every_head_stands_in_the_tiles_with_its_own_numbers(trace: Trace) -> None:
    figure = show_heads(trace, layer=0)
    drawn = heatmap(figure)
    weights = trace.weights(0).numpy()
    n = len(trace.tokens)
    assert np.count_nonzero(~np.isnan(drawn.z)) == weights.size
    names = [note.text for note in figure.layout.annotations]
    assert names == ["L0H0", "L0H1", "L0H2", "L0H3"]
    for head, note in enumerate(figure.layout.annotations):
        row, column = int(note.y + 0.5), int(note.x + 0.5)
        np.testing.assert_array_equal(drawn.z[row : row + n, column : column + n], weights[head])
        assert drawn.customdata[row, column, 0] == head
        assert drawn.customdata[row, column + 2, 2] == f"{html.escape(trace.tokens.labels[2])} (2)"
    some = show_heads(trace, layer=0, heads=[3, 1])
    assert [note.text for note in some.layout.annotations] == ["L0H3", "L0H1"]


def test_tokens_are_text_and_never_markup() -> None:
    for figure in (show_head(attentions(6), 0, 1, NASTY), show_heads(attentions(6), 0, tokens=NASTY)):
        drawn = heatmap(figure)
        for token in ("<b>", "$y$", "%{z}", "a&b"):
            assert token not in drawn.hovertemplate
        said = json.dumps(drawn.customdata.tolist(), ensure_ascii=False)
        assert "<b>" not in said
        assert "&lt;b&gt;x&lt;/b&gt; (0)" in said
        assert "$" not in said  # MathJax, where a notebook has it, would set it as a formula
        assert "⏎ (4)" in said
    ticks = show_head(attentions(6), 0, 1, NASTY).layout.xaxis.ticktext
    assert list(ticks) == ["&lt;b&gt;x&lt;/b&gt;", "a&amp;b", "&#36;y&#36;", "%{z}", "⏎", "∅"]


def test_labels_thin_out_and_large_maps_name_positions() -> None:
    figure = show_head(attentions(300, heads=1), 0, 0)
    assert len(figure.layout.xaxis.tickvals) <= 40
    customdata = heatmap(figure).customdata
    assert customdata.dtype == np.int16
    assert customdata[7, 9].tolist() == [7, 9]
    assert "query %{customdata[0]} → key %{customdata[1]}" in heatmap(figure).hovertemplate


def test_what_is_too_large_is_pooled_by_maximum_and_says_so() -> None:
    weights = np.zeros((1, 1, 2 * MAX_CELLS, 2 * MAX_CELLS), np.float32)
    weights[0, 0, 101, 333] = 0.75
    figure = show_head([weights], 0, 0)
    drawn = heatmap(figure)
    assert drawn.z.shape == (MAX_CELLS, MAX_CELLS)
    assert drawn.z[50, 166] == 0.75
    assert drawn.customdata[50, 166].tolist() == [100, 332]
    assert "each cell is the largest value of 2 × 2 positions" in figure.layout.title.text
    assert len(figure.to_json()) < 4e6


def test_an_own_range_is_said() -> None:
    figure = show_head(attentions(5), 0, 0, own_range=True)
    top = heatmap(figure).zmax
    assert top == pytest.approx(float(attentions(5)[0][0, 0].max()))
    assert f"colours end at {top:.3g}" in figure.layout.title.text


def test_a_difference_is_centred_on_zero() -> None:
    first, second = (layer[0, 0] for layer in attentions(5))
    drawn = heatmap(difference_figure(first, second, list("abcde")))
    np.testing.assert_allclose(drawn.z, (first - second).numpy(), atol=1e-7)
    assert drawn.zmin == -drawn.zmax
    assert drawn.zmax == pytest.approx(float((first - second).abs().max()))
    assert drawn.colorscale[0][1] == diverging("light")[0]
    large = np.zeros((MAX_CELLS + 2, MAX_CELLS + 2), np.float32)
    large[3, 5] = -0.5
    assert heatmap(difference_figure(large, np.zeros_like(large))).z.min() == -0.5  # the strongest, not the highest


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes(theme: Theme) -> None:
    figure = show_head(attentions(4), 0, 0, theme=theme)
    assert heatmap(figure).colorscale[0][1] == sequential(theme)[0]
    assert show_heads(attentions(4), 0, theme=theme).layout.paper_bgcolor == figure.layout.paper_bgcolor


def test_cross_attention_has_two_kinds_of_labels(tmp_path_factory: pytest.TempPathFactory) -> None:
    run = load_model(str(tiny_model_dir("bart", tmp_path_factory))).run("The keys are lost.", target="I love")
    figure = show_head(run, 0, 1, site="cross")
    assert figure.layout.title.text == "cross.L0H1"
    assert list(figure.layout.yaxis.ticktext) == [html.escape(t, quote=False) for t in run.tokens.labels]
    assert run.source_tokens is not None
    assert len(figure.layout.xaxis.ticktext) == len(run.source_tokens)
    arrays = show_head([np.full((1, 2, 3), 1 / 3)], 0, 0, list("abc"), query_tokens=list("xy"))
    assert list(arrays.layout.yaxis.ticktext) == ["x", "y"]


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        ((), {}, 'attn_implementation="eager"'),
        (attentions(4), {"layer": 5}, "layer is 5; there are 2, numbered 0 to 1"),
        (attentions(4), {"head": 3}, "head is 3"),
        (attentions(4), {"tokens": ["a"]}, "tokens has 1 entries and the map 4 queries"),
        ((torch.rand(2, 3, 4, 4),), {}, "a batch of 2 texts"),
        ((torch.rand(4, 4),), {}, r"have shape \(4, 4\)"),
        (torch.rand(3, 4, 4), {}, "one array"),
    ],
)
def test_what_cannot_be_shown_is_said(given: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        show_head(given, **{"layer": 0, "head": 0, **arguments})


def test_maps_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="same tokens"):
        difference_figure(np.ones((2, 2)), np.ones((3, 3)))
    with pytest.raises(ValueError, match="at least one head"):
        show_heads(attentions(4), 0, heads=[])
