"""Reports: methods that fit what was done, tables with the maps' numbers, HTML that runs nothing of a person's."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from mha_core import HeadAblation, Interventions, Model, load_model
from mha_core.evaluation import Evaluation, evaluate
from mha_core.pruning import Pruning, pruning_steps
from mha_core.report import methods, pruning_csv, pruning_json, sweep_csv, sweep_json
from mha_core.report_html import report_html
from mha_core.task_maps import head_map
from mha_core.task_sweep import TaskSweep, task_sweep
from mha_core.tasks import Prompt, Task
from tests.tiny import SENTENCES, tiny_model_dir

HOSTILE = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir("llama", tmp_path_factory)))


@pytest.fixture(scope="module")
def task() -> Task:
    prompts = tuple(
        Prompt(f"{HOSTILE} {text}"[:60], ",", ".", f"t{i % 7}", {HOSTILE: "=1+1" if i % 2 else "no"})
        for i, text in enumerate(SENTENCES[:14])
    )
    return Task("own", HOSTILE, "What <b>it</b> measures.", prompts)


@pytest.fixture(scope="module")
def evaluation(model: Model, task: Task) -> Evaluation:
    return evaluate(model, task, [Interventions(HeadAblation(["L0H1", "L1H2"]))], n_controls=2)


@pytest.fixture(scope="module")
def sweep(model: Model, task: Task) -> TaskSweep:
    return task_sweep(model, task)


@pytest.fixture(scope="module")
def pruning(model: Model, task: Task) -> Pruning:
    *_, last = pruning_steps(model, task, n_steps=2, n_random=1)
    return last


def rows_of(data: bytes) -> list[dict[str, str]]:
    lines = data.decode("utf-8-sig").splitlines()
    return list(csv.DictReader(lines[int(lines[0].split(": ")[1].split()[0]) :]))


def test_methods_say_what_was_done(evaluation: Evaluation, sweep: TaskSweep, pruning: Pruning) -> None:
    text = methods(evaluation, sweep, pruning)
    for part in ("14 prompts from 7 templates", "all 14 sampled", "zero: L0H1, L1H2", "2 sets of as many other heads",
                 "Holm", "max-T", "Each of the 8 heads", "setting its output z to zero", "gradient score",
                 "least important first; most important first; at random", "float", "torch ",
                 evaluation.details.sha256[:16]):  # fmt: skip
        assert (part in text) == (part != "float"), part
    assert "max-T" not in methods(evaluation)
    assert "pruning" not in methods(sweep=sweep)
    partly = replace(sweep, done=sweep.done[:5], results=sweep.results[:5])
    assert "the first 5 of 14 sampled" in methods(sweep=partly)
    with pytest.raises(ValueError, match="no result"):
        methods()


def test_a_sweeps_table_has_the_numbers_of_the_map(sweep: TaskSweep) -> None:
    rows = rows_of(sweep_csv(sweep))
    found = head_map(sweep, "logit_diff")
    mine = [row for row in rows if row["metric"] == "logit_diff" and row["slice"] == "all"]
    assert [row["head"] for row in mine] == [str(head) for head in sweep.heads]
    for row, mean, low, p in zip(mine, found.mean.ravel(), found.low.ravel(), found.p_adjusted.ravel(), strict=True):
        assert float(row["effect"]) == pytest.approx(mean, rel=1e-5, abs=1e-9)
        assert float(row["low"]) == pytest.approx(low, rel=1e-5, abs=1e-9)
        assert float(row["p_max_t"]) == pytest.approx(p)
    assert {row["value"] for row in rows} == {"", "'=1+1", "no"}, "nothing that a spreadsheet would execute"
    record = json.loads(sweep_json(sweep))
    assert len(record["meta"]["prompts"]) == 14
    assert record["meta"]["prompts"][3]["heads"]["logit_diff"] == pytest.approx(
        (sweep.effects("logit_diff")[3] + sweep.clean("logit_diff")[3]).tolist(), abs=1e-5
    )
    assert record["provenance"]["model_sha256"] == sweep.details.sha256
    assert record["meta"]["held_out"]


def test_a_curves_table_has_every_point(pruning: Pruning) -> None:
    rows = rows_of(pruning_csv(pruning))
    whole = [row for row in rows if row["slice"] == "all" and row["metric"] == "log_prob"]
    assert len(whole) == 3 * 3
    for row in whole:
        (curve,) = (c for c in pruning.curves if c.order == row["order"])
        point = pruning.counts.index(int(row["heads_off"]))
        assert float(row["score"]) == pytest.approx(pruning.score(curve, point, "log_prob").mean, rel=1e-5)
    orders = json.loads(pruning_json(pruning))["meta"]["orders"]
    assert orders[0]["removed"] == [str(head) for head in pruning.curves[0].removed]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.text, self.outside = 0, "", []  # type: int, str, list[str]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_html_file_is_whole_and_shows_text_as_text(
    evaluation: Evaluation, sweep: TaskSweep, pruning: Pruning
) -> None:
    plain = report_html(evaluation, sweep, pruning).decode()
    parser = _Tags()
    parser.feed(plain)
    assert parser.scripts == 0
    assert HOSTILE in parser.text
    assert "What <b>it</b> measures." in parser.text
    assert methods(evaluation, sweep, pruning) in parser.text
    assert plain.count("<table>") >= 4
    figure = go.Figure(go.Bar(y=[1, 2]))
    drawn = report_html(evaluation, figures=[("A picture", figure, "caption & more"), ("Another", figure, "")]).decode()
    pictured = _Tags()
    pictured.feed(drawn)
    assert not [link for link in pictured.outside if link.startswith(("http", "//"))], "opens without a network"
    assert drawn.count("plotly.js v") == 1
    assert "caption & more" in pictured.text
