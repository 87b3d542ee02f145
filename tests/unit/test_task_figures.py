"""Figures of measurements on a task: what is drawn is what was measured, and untrusted names stay text."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mha_core import HeadAblation, Interventions, Model, load_model
from mha_core.evaluation import Evaluation, evaluate
from mha_core.palette import Theme, series
from mha_core.pruning import Pruning, pruning_steps
from mha_core.task_figures import (
    curve_of,
    estimate_figure,
    map_figure,
    order_line,
    plans_figure,
    pruning_figure,
    pruning_slices_figure,
    slices_figure,
)
from mha_core.task_sets import built_in

HOSTILE = "<b>x</b> $y$"


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("date-translator")


@pytest.fixture(scope="module")
def result(model: Model) -> Evaluation:
    plans = [Interventions(HeadAblation(["cross.L1H0"], kind)) for kind in ("zero", "uniform")]
    return evaluate(model, built_in("dates", model), plans, n=12, n_controls=3)


@pytest.fixture(scope="module")
def pruning(model: Model) -> Pruning:
    *_, last = pruning_steps(model, built_in("dates", model), orders=("ascending", "random"), site="cross", n=16,
                             n_steps=4, n_random=2)  # fmt: skip
    return last


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plans_are_dots_with_their_intervals_and_random_heads(result: Evaluation, theme: Theme) -> None:
    compared = result.compared("logit_diff")
    figure = plans_figure(result, "logit_diff", [HOSTILE, "cross.L1H0, cross.L1H2, uniform"], compared, theme)
    controls, plans = figure.data
    assert list(plans.x) == [item.difference.mean for item in compared]
    ends = [mean - down for mean, down in zip(plans.x, plans.error_x.arrayminus, strict=True)]
    assert ends == pytest.approx([item.difference.low for item in compared])
    assert sorted(controls.x) == sorted([*result.control_effects(0, "logit_diff"),
                                         *result.control_effects(1, "logit_diff")])  # fmt: skip
    low, high = figure.layout.xaxis.range
    assert low < min(0, *ends)
    assert high > 0
    assert figure.layout.yaxis.ticktext[1] == "cross.L1H0, cross.L1H2,<br>uniform"
    assert figure.layout.yaxis.ticktext[0] == "&lt;b&gt;x&lt;/b&gt; &#36;y&#36;"
    assert plans.marker.color == series(theme)[0]


def test_a_slice_without_an_interval_is_hollow_and_says_so(result: Evaluation) -> None:
    compared = [item for item in result.by_slice("accuracy") if item.slice == "format"]
    few = [math.isnan(item.difference.low) for item in compared if item.plan == 0]
    assert True in few
    trace = slices_figure(compared, "accuracy", ["one", "two"]).data[0]
    assert [symbol.endswith("-open") for symbol in trace.marker.symbol] == few
    assert [said == "no interval: under 5 templates" for said in trace.customdata] == few


def test_plans_in_slices_are_told_apart_without_colour(result: Evaluation) -> None:
    traces = slices_figure(result.by_slice("accuracy"), "accuracy", ["one", "two"]).data
    assert len({trace.marker.symbol[0].removesuffix("-open") for trace in traces}) == 2
    assert not set(traces[0].y) & set(traces[1].y)


def test_a_map_has_zero_in_the_middle() -> None:
    trace = map_figure([[0.0, -2.0], [1.0, 0.5]], ["L0", "L1"], ["H0", "H1"], "accuracy").data[0]
    assert (trace.zmin, trace.zmax) == (-2.0, 2.0)
    middle = trace.colorscale[len(trace.colorscale) // 2]
    assert middle[0] == 0.5
    assert map_figure(np.zeros((1, 1)), ["L0"], ["H0"], "x").data[0].zmax > 0


def test_estimates_stand_against_exact_effects() -> None:
    points = estimate_figure([[1.0, 2.0]], [[1.5, -2.0]], ["L0H0", "L0H1"], "logit_diff").data[1]
    assert (list(points.x), list(points.y)) == ([1.0, 2.0], [1.5, -2.0])
    assert list(points.customdata) == ["L0H0", "L0H1"]


def test_pruning_lines_are_the_scores_with_bands(pruning: Pruning) -> None:
    figure = pruning_figure(pruning, "logit_diff")
    lines = [trace for trace in figure.data if trace.name]
    curve = curve_of(pruning, "ascending")
    scores = [pruning.score(curve, point, "logit_diff") for point in range(5)]
    assert list(lines[0].x) == list(pruning.counts)
    assert list(lines[0].y) == [score.mean for score in scores]
    assert [list(point) for point in lines[0].customdata] == [["ascending", point] for point in range(5)]
    line = order_line(pruning, "random", "logit_diff")
    draws = [c for c in pruning.curves if c.order == "random"]
    means = [pruning.score(c, 2, "logit_diff").mean for c in draws]
    assert line[2] == pytest.approx((np.mean(means), min(means), max(means)))
    assert len({trace.line.dash for trace in lines}) == len(lines)


def test_a_half_measured_order_is_drawn_as_far_as_it_is_known(model: Model) -> None:
    steps = pruning_steps(model, built_in("dates", model), orders=("random",), site="cross", n=8, n_steps=4, n_random=2)
    for number, step in enumerate(steps):
        assert len(order_line(step, "random", "accuracy")) == (number + 1 if number < 5 else number - 4)


def test_a_slice_of_a_curve_is_its_own_prompts(pruning: Pruning) -> None:
    groups = pruning.slices()["month"]
    lines = [t for t in pruning_slices_figure(pruning, "ascending", "accuracy", groups).data if t.name]
    curve = curve_of(pruning, "ascending")
    for line, (value, places) in zip(lines, groups.items(), strict=True):
        assert line.name == f"{value} ({len(places)})"
        assert line.y[1] == pruning.score(curve, 1, "accuracy", places).mean
    figure = pruning_slices_figure(pruning, "ascending", "accuracy", {HOSTILE: [0, 1]})
    assert all("<b>" not in str(trace.name) for trace in figure.data)
