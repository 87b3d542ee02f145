"""How the measurements are taken and told: pairs in turn, medians of their ratios, Markdown tables.

Machines are noisy and differ from each other. Two things are therefore measured in turn within one process, their ratio
is taken pair by pair, and only ratios are ever required to be anything.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT_VARIABLE = "HEADSCOPE_BENCH_OUT"
MODELS = ("smollm2-135m-instruct", "all-minilm-l6-v2")
_WORDS = "When Mary and John went to the store , John gave a drink to the old man who sat near the door of"
_told: set[Path] = set()


@dataclass(frozen=True)
class Spread:
    """Some measurements of one thing."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def quantile(self, share: float) -> float:
        """Linear between the values; 0 is the least, 1 the largest."""
        ordered = sorted(self.values)
        place = share * (len(ordered) - 1)
        low = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    def text(self, factor: float = 1.0, digits: int = 0) -> str:
        """The median, and between which values the middle half lies."""
        low, high = self.quantile(0.25), self.quantile(0.75)
        return f"{factor * self.median:.{digits}f} ({factor * low:.{digits}f}–{factor * high:.{digits}f})"


@dataclass(frozen=True)
class Pairs:
    """Two things measured in turn. Seconds, and the ratio first / second of each pair."""

    first: Spread
    second: Spread

    @property
    def ratio(self) -> Spread:
        return Spread(tuple(a / b for a, b in zip(self.first.values, self.second.values, strict=True)))


def in_turn(first: Callable[[], object], second: Callable[[], object], *, pairs: int, warm_up: int = 3) -> Pairs:
    """Time two functions alternately, each as often first as second of a pair, with the garbage collector off."""
    for _ in range(warm_up):
        first()
        second()
    seconds: tuple[list[float], list[float]] = ([], [])
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(pairs):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                seconds[which].append(_timed((first, second)[which]))
            if number % 20 == 19:
                gc.collect()
    finally:
        if was_on:
            gc.enable()
    return Pairs(Spread(tuple(seconds[0])), Spread(tuple(seconds[1])))


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def sentence(length: Callable[[str], int], n_tokens: int, ending: str = "") -> str:
    """Plain words that are exactly `n_tokens` tokens together with `ending`; `length` counts a text's tokens."""
    words: list[str] = []
    more = itertools.cycle(_WORDS.split())
    while True:
        text = " ".join(words) + ending
        n = length(text) if text.strip() else 0
        if n >= n_tokens:
            assert n == n_tokens, f"{text!r} is {n} tokens where {n_tokens} were wanted"
            return text
        words.append(next(more))


def in_new_process(
    function: Callable[..., object], *arguments: str, environment: Mapping[str, str] | None = None
) -> Any:
    """Call a function of a bench module, with strings, in a fresh Python; returns what it returns, by way of JSON.

    The fresh process is what starts and peaks of memory can be measured in. It imports the function's module first, so
    those modules import nothing heavy at their top.
    """
    code = (
        "import importlib, json, sys\n"
        "module, name, *rest = sys.argv[1:]\n"
        "result = getattr(importlib.import_module(module), name)(*rest)\n"
        "print('\\n' + json.dumps(result))\n"
    )
    module = f"tests.bench.{Path(function.__code__.co_filename).stem}"
    done = subprocess.run(
        [sys.executable, "-c", code, module, function.__name__, *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{function.__name__} failed in its process:\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


# ---------------------------------------------------------------- processor time and memory


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process has taken, on all cores together."""
    import psutil

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def resident_bytes(pid: int | None = None) -> int:
    """What a process occupies now; this one, if none is named."""
    import psutil

    n_bytes: int = psutil.Process(pid).memory_info().rss
    return n_bytes


def peak_bytes(pid: int | None = None) -> int:
    """The most a process has occupied since it began.

    From Linux's counter, since `getrusage` counts what the parent of a process occupied, too. Elsewhere there is
    nothing better, and of another process only what it occupies now.
    """
    status = Path(f"/proc/{pid or 'self'}/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if pid is not None:
        return resident_bytes(pid)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---------------------------------------------------------------- telling


def tell(title: str, rows: Sequence[Mapping[str, object]], notes: Sequence[str] = ()) -> None:
    """Print a Markdown table, and add it to the file that HEADSCOPE_BENCH_OUT names, if it names one."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"### {title}", "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(str(row.get(name, '')) for name in columns)} |" for row in rows]
    lines += ["", *notes, f"_{circumstances()}_", ""]
    text = "\n".join(lines)
    print(f"\n{text}")
    if os.environ.get(OUT_VARIABLE):
        path = Path(os.environ[OUT_VARIABLE])
        with path.open("a" if path in _told else "w", encoding="utf-8") as file:
            file.write(text + "\n")
        _told.add(path)


def circumstances() -> str:
    """What a number depends on besides the code."""
    import platform
    from importlib import metadata

    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "streamlit"))
    busy = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores, load {busy} at the end."


def milliseconds(spread: Spread) -> str:
    """Median and middle half in milliseconds, with one digit below 100."""
    return spread.text(1000, 1 if spread.median < 0.1 else 0)


def mebibytes(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:,.0f} MiB"
