"""How long a person waits at the first start, at the second, and for the import."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.alone import start
from tests.bench.measure import Spread, in_new_process, tell

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

SMOLLM2, MINILM = "smollm2-135m-instruct", "all-minilm-l6-v2"
STARTS = 3


def test_starts(tmp_path: Path) -> None:
    cache = {"HEADSCOPE_CACHE": str(tmp_path / "cache")}
    first = in_new_process(start, SMOLLM2, environment=cache)
    assert list((tmp_path / "cache").iterdir()), "the first start keeps what it converted"
    seconds: dict[str, list[dict[str, float]]] = {SMOLLM2: [], MINILM: []}
    for _ in range(STARTS):
        for name, starts in seconds.items():
            starts.append(in_new_process(start, name, environment=cache))
    rows = [row(SMOLLM2, "first: the file is dequantised", [first])]
    rows += [row(name, "any later", starts) for name, starts in seconds.items()]
    later = [one["load"] for one in seconds[SMOLLM2]]
    ratio = first["load"] / Spread(tuple(later)).median
    notes = ["Medians (middle half). Each start is a process of its own; the files are in the system's memory already. "
             f"Loading the first time takes {ratio:.0f} times as long as later."]  # fmt: skip
    tell("Starts, seconds", rows, notes)
    assert ratio > 3, "a later start does not use what the first one kept"


def row(name: str, which: str, starts: list[dict[str, float]]) -> dict[str, object]:
    def seconds(part: str) -> str:
        return Spread(tuple(one[part] for one in starts)).text(digits=2)

    return {
        "model": name,
        "start": which,
        "n": len(starts),
        "import mha_core": seconds("import"),
        "load_model": seconds("load"),
        "first run": seconds("run"),
    }
