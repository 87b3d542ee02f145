"""What the README shows runs, and gives what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """The names that all Python examples leave behind, run in order as in one notebook."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_examples_give_the_numbers_beside_them(shown: dict[str, Any]) -> None:
    clean = shown["trace"].logits[-1].softmax(-1)
    ablated = shown["ablated"].logits[-1].softmax(-1)
    mary = int(clean.argmax())
    assert shown["model"].surface(mary) == " Mary"
    assert float(clean[mary]) == pytest.approx(0.923, abs=2e-3)
    assert float(ablated[mary]) == pytest.approx(0.056, abs=2e-3)
    top = [(str(head), round(effect, 2)) for head, effect in shown["sweep"].ranking()[:3]]
    assert top == [("L23H3", -3.04), ("L1H5", -2.18), ("L29H1", -1.68)]


def test_the_figures_are_figures(shown: dict[str, Any]) -> None:
    assert isinstance(shown["figure"], go.Figure)
    assert shown["result"].weights.shape == (2, 8, 16, 16)


def test_the_task_is_measured(shown: dict[str, Any]) -> None:
    zero = shown["found"].compared("accuracy")[0]
    assert zero.clean == 1
    assert zero.difference.mean == pytest.approx(-0.93, abs=0.005)
    assert zero.difference.high < -0.7
    assert shown["heads"].finished
    assert shown["heads"].shape == (2, 4)


def test_the_picture_is_there() -> None:
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[2] / picture).is_file()
