"""`python -m mha_core`: what it prints and writes, and what it says to wrong use."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mha_core import HeadRef, head_ablation_sweep, load_model
from mha_core import __main__ as commands
from mha_core.cli import evaluate as evaluate_command
from mha_core.cli import sweep as sweep_command
from mha_core.evaluation import Evaluation, evaluate, plans_of
from mha_core.pruning import pruning_steps
from mha_core.task_files import read_task
from mha_core.task_maps import head_map
from mha_core.task_sets import task_names
from mha_core.task_sweep import TaskSweep, task_sweep
from tests.tiny import SENTENCES, tiny_model_dir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model_dir("llama", tmp_path_factory))


@pytest.fixture(scope="module")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "mine.csv"
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["prompt", "target", "foil", "template", "=half"])
    for number, sentence in enumerate(SENTENCES[:24]):
        writer.writerow([sentence[: 12 + number], ",", ".", f"t{number % 8}", "=1+1" if number % 2 else "no"])
    writer.writerow(["", ",", ".", "t0", "no"])
    writer.writerow(["The cat", "Constantinople", ".", "t0", "no"])
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def test_evaluate_prints_and_writes_what_the_function_measures(
    folder: str, task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / "r.json"), str(tmp_path / "r.csv")]
    code = commands.main(["evaluate", "--model", folder, "--task", str(task_file), "--off", "L0H1,L1H2", "--kind",
                          "zero,mean", "--controls", "2", "--json", files[0], "--csv", files[1]])  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0
    assert "row 25 cannot be used: The prompt is empty." in err
    assert "1 prompts cannot be used" in out
    assert "█" not in err, "no progress bar outside a terminal"
    task = read_task(task_file.read_bytes(), "mine.csv").task
    expected = evaluate(load_model(folder), task, plans_of("L0H1,L1H2", "zero,mean"), n_controls=2)
    record = json.loads(Path(files[0]).read_text(encoding="utf-8"))
    assert record["provenance"]["model_sha256"]
    assert record["provenance"]["prompts"] == 24
    assert len(record["meta"]["prompts"]) == 24
    assert [row["row"] for row in record["meta"]["refused"]] == [26], "its row in the file"
    first = record["meta"]["rows"][0]
    (zero, _) = expected.compared("accuracy")
    assert first["difference"] == pytest.approx(zero.difference.mean)
    assert f"{zero.difference.mean:+.3f}" in out
    lines = Path(files[1]).read_text(encoding="utf-8-sig").splitlines()
    before = int(lines[0].split(": ")[1].split()[0])
    rows = list(csv.DictReader(lines[before:]))
    assert {row["slice"] for row in rows} == {"all", "'=half"}, "nothing that a spreadsheet would execute"
    assert sum(row["plan"].startswith("random heads") for row in rows) == 2 * 2 * len(expected.metrics)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))


def test_the_same_seed_gives_the_same_file(folder: str, task_file: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a.json", "b.json"):
        arguments = [
            "evaluate",
            "--model",
            folder,
            "--task",
            str(task_file),
            "--off",
            "L0H1",
            "--n",
            "10",
            "--seed",
            "4",
        ]
        assert commands.main([*arguments, "--json", str(tmp_path / name)]) == 0
        made.append(json.loads((tmp_path / name).read_text(encoding="utf-8")))
        made[-1]["provenance"].pop("seconds")
    assert made[0] == made[1]


def test_sweep_prints_the_heads_in_order(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.csv"
    assert commands.main(["sweep", "--model", folder, "--text", SENTENCES[1], "--csv", str(file), "--top", "3"]) == 0
    expected = head_ablation_sweep(load_model(folder), SENTENCES[1])
    (top, value), *_ = expected.ranking()
    out = capsys.readouterr().out
    assert out.splitlines()[2].split() == [str(top), f"{value:+.4f}"]
    assert len(out.splitlines()) == 5
    lines = file.read_text(encoding="utf-8-sig").splitlines()
    rows = list(csv.DictReader(lines[int(lines[0].split(": ")[1].split()[0]) :]))
    found = {HeadRef(int(row["layer"]), int(row["head"])): float(row["kl"]) for row in rows}
    assert found[top] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "syntax"], "neither a task"),
        (["--task", "similarity"], "sentence encoders"),
        (["--task", "agreement", "--off", "L9H0"], "L9H0"),
        (["--task", "agreement", "--off", "five"], "write it like L1H5"),
        (["--task", "agreement", "--off", "L0H0", "--kind", "gone"], "it must be of zero, mean, uniform"),
        (["--task", "agreement", "--json", "/no/such/folder/x.json"], "cannot be written"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(
    folder: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["evaluate", "--model", folder, *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--n", "0"], ["--n", "x"], ["--seed", "-1"]])
def test_wrong_numbers_leave_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        commands.main(["evaluate", "--model", "m", "--task", "agreement", *arguments])
    assert left.value.code == 2
    assert "a whole number from" in capsys.readouterr().err


def test_help_teaches_tasks_and_reading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        commands.main(["evaluate", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in task_names())
    assert "random heads" in out
    assert "python -m mha_core evaluate" in out


def test_an_interruption_keeps_what_is_measured(
    folder: str, task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = evaluate_command.evaluation_steps

    def interrupted(*given: object, **named: object) -> Iterator[Evaluation]:
        yield next(original(*given, first=5, **named))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate_command, "evaluation_steps", interrupted)
    file = tmp_path / "r.json"
    arguments = ["evaluate", "--model", folder, "--task", str(task_file), "--off", "L0H1", "--json", str(file)]
    assert commands.main(arguments) == 130
    assert "5 of 24 prompts are measured" in capsys.readouterr().err
    record = json.loads(file.read_text(encoding="utf-8"))
    assert (record["provenance"]["prompts"], record["provenance"]["prompts_asked_for"]) == (5, 24)


def test_it_starts_as_a_module() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "mha_core", "--help"], capture_output=True, text=True, check=False,
                          timeout=120, cwd=root, env={**os.environ, "HF_HUB_OFFLINE": "1"})  # fmt: skip
    assert done.returncode == 0
    assert "evaluate" in done.stdout
    assert "sweep" in done.stdout


def table_of(path: Path) -> list[dict[str, str]]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return list(csv.DictReader(lines[int(lines[0].split(": ")[1].split()[0]) :]))


def test_a_sweep_over_a_task_prints_and_writes_its_map(
    folder: str, task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"r.{name}" for name in ("csv", "json", "html")}
    arguments = ["sweep", "--model", folder, "--task", str(task_file), "--n", "12", "--top", "3"]
    assert commands.main([*arguments, *(word for n, path in files.items() for word in (f"--{n}", str(path)))]) == 0
    out = capsys.readouterr().out
    task = read_task(task_file.read_bytes(), "mine.csv").task
    expected = task_sweep(load_model(folder), task, n=12)
    found = head_map(expected, "logit_diff")
    (head, place), *_ = found.ranking(expected.heads)
    assert out.splitlines()[4].split()[:2] == [str(head), f"{found.mean.ravel()[place]:+.4f}"]
    assert "held out" in out
    assert "head × prompt runs a second" in out
    rows = [row for row in table_of(files["csv"]) if row["metric"] == "logit_diff" and row["slice"] == "all"]
    assert float(rows[place]["effect"]) == pytest.approx(found.mean.ravel()[place], rel=1e-5)
    assert "max-T" in files["html"].read_text(encoding="utf-8")
    assert json.loads(files["json"].read_text(encoding="utf-8"))["provenance"]["prompts"] == 12
    assert commands.main(arguments) == 0
    assert "from disk" in capsys.readouterr().out


def test_a_stopped_sweep_over_a_task_says_that_it_goes_on_and_does(
    folder: str, task_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = sweep_command.task_sweep_steps

    def interrupted(*given: object, **named: object) -> Iterator[TaskSweep]:
        for step in original(*given, **named):  # type: ignore[arg-type]
            yield step
            if step.n == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(sweep_command, "task_sweep_steps", interrupted)
    arguments = ["sweep", "--model", folder, "--task", str(task_file), "--n", "6"]
    assert commands.main(arguments) == 130
    assert "4 of 6 prompts are measured; the same command goes on from there" in capsys.readouterr().err
    steps: list[TaskSweep] = []

    def seen(*given: object, **named: object) -> Iterator[TaskSweep]:
        for step in original(*given, **named):  # type: ignore[arg-type]
            steps.append(step)
            yield step

    monkeypatch.setattr(sweep_command, "task_sweep_steps", seen)
    assert commands.main(arguments) == 0
    assert [step.n for step in steps] == [4, 5, 6]
    assert steps[-1].n_kept == 4


def test_prune_prints_and_writes_its_curves(
    folder: str, task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.csv"
    arguments = ["prune", "--model", folder, "--task", str(task_file), "--importance", "exact", "--steps", "2",
                 "--random", "1", "--metric", "log_prob", "--csv", str(file)]  # fmt: skip
    assert commands.main(arguments) == 0
    out = capsys.readouterr().out
    model, task = load_model(folder), read_task(task_file.read_bytes(), "mine.csv").task
    *_, expected = pruning_steps(model, task, importance=task_sweep(model, task), n_steps=2, n_random=1)
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["8"])
    assert row[1:] == [f"{expected.score(curve, 2, 'log_prob').mean:.3f}" for curve in expected.curves]
    assert "exact effects" in out
    assert {row["order"] for row in table_of(file)} == {"ascending", "reverse", "random"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep"], "Give either --text"),
        (["sweep", "--text", "The cat", "--task", "agreement"], "Give either --text"),
        (["sweep", "--task", "agreement", "--answers", "a", "b"], "--answers belongs to --text"),
        (["sweep", "--task", "agreement", "--metric", "kl"], "metric is 'kl'; of a task"),
        (["sweep", "--text", "The cat", "--html", "r.html"], "--html is a report on a task"),
        (["sweep", "--task", "agreement", "--site", "cross"], "site is 'cross'; this model has self"),
        (["prune", "--task", "agreement", "--orders", "up"], "order is up; it must be of ascending"),
        (["prune", "--task", "agreement", "--metric", "kl"], "metric is 'kl'"),
    ],
)
def test_wrong_use_of_sweep_and_prune_is_told(
    folder: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main([*arguments, "--model", folder]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "tpu"], "device is 'tpu'; it must be one of cpu, cuda"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_where_it_cannot_run_is_told(
    folder: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["evaluate", "--model", folder, "--task", "agreement", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_half_precision_is_an_option_and_is_kept_apart(
    folder: str, task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for dtype in ("float32", "bfloat16"):
        file = tmp_path / f"{dtype}.json"
        arguments = ["evaluate", "--model", folder, "--task", str(task_file), "--n", "6", "--dtype", dtype]
        assert commands.main([*arguments, "--json", str(file)]) == 0
        found.append(json.loads(file.read_text(encoding="utf-8"))["meta"]["rows"])
    means = [next(row["clean"] for row in rows if row["metric"] == "log_prob") for rows in found]
    assert means[0] != means[1]
    assert means[0] == pytest.approx(means[1], rel=0.05)
