"""2,048 tokens on 30 layers: that it fits into memory, how long it takes, and that it can be stopped."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect

from tests.bench.alone import N_TOKENS, SMOLLM2, against_the_library, long_text, run_and_look
from tests.bench.measure import Pairs, Spread, in_new_process, mebibytes, peak_bytes, resident_bytes, tell
from tests.bench.page_meter import NOTES, PageMeter, row
from tests.browser.conftest import Servers

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

MOST_BYTES = 4 * 2**30


def test_a_long_text_fits_and_can_be_stopped() -> None:
    found = in_new_process(run_and_look)
    rows = [{"": f"memory after {what}", "value": mebibytes(n)} for what, n in found["memory"].items()]
    rows += [{"": "memory, the most at any time", "value": mebibytes(found["peak"])}]
    rows += [{"": "the trace alone", "value": mebibytes(found["trace"])}]
    rows += [{"": "left behind by three stopped runs", "value": mebibytes(found["left_behind"])}]
    rows += [{"": what, "value": f"{seconds:.2f} s"} for what, seconds in found["seconds"].items()]
    tell(f"{N_TOKENS:,} tokens, {SMOLLM2}, a process of its own", rows)
    assert found["peak"] < MOST_BYTES
    assert found["is_equal"], "the run after a stopped one differs from the run before it"
    assert found["left_behind"] < found["trace"] / 2, "stopped runs keep memory"


def test_a_long_run_against_the_librarys_forward() -> None:
    found = in_new_process(against_the_library)
    pairs = Pairs(Spread(tuple(found["own"])), Spread(tuple(found["library"])))
    columns = {"`Model.run`, s": pairs.first, "library, s": pairs.second, "ratio": pairs.ratio}
    rows = [{"tokens": f"{N_TOKENS:,}"} | {name: spread.text(digits=2) for name, spread in columns.items()}]
    tell(f"One run against the library's forward (sdpa): {SMOLLM2}", rows)


# ---------------------------------------------------------------- in the app


def test_a_long_text_in_the_app(serve: Servers, page: Page) -> None:
    """The Heads page at 2,048 tokens: what its server occupies, how fast it answers, and that a run can be stopped."""
    url = serve("app.py", {"HEADSCOPE_BENCH": "a server of its own"})
    pid = next(server.process.pid for server in serve.running.values() if server.url == url)
    meter = PageMeter(page)
    meter.open(url, model=SMOLLM2)
    count = len(meter.views())
    memory = {"before": resident_bytes(pid)}

    page.get_by_label("Sentence", exact=True).fill(long_text())
    expect(page.get_by_text("of at most 2,048")).to_contain_text("2,048 tokens", timeout=60_000)
    stop = page.get_by_test_id("stMainBlockContainer").get_by_role("button", name="Stop")  # Streamlit has one, too
    stop.wait_for(timeout=60_000)
    page.get_by_text("15 of 30").wait_for(timeout=120_000)
    began = time.perf_counter()
    stop.click()
    page.get_by_text("Stopped, as you asked").wait_for(timeout=60_000)
    stopping = time.perf_counter() - began
    memory["after a run that was stopped"] = resident_bytes(pid)

    whole = meter.measure("pointerdown", page.get_by_role("button", name="Run it", exact=True).click, count=count)
    memory["after the run"] = resident_bytes(pid)
    others = []
    for _ in range(4):
        meter.settle()
        page.locator(".hs-overview").focus()
        page.keyboard.press("ArrowDown")
        others.append(meter.measure("keydown", lambda: page.keyboard.press("Enter"), within=".st-key-focus_card"))
    memory["the most at any time"] = peak_bytes(pid)
    rows = [{"": f"server's memory {what}", "value": mebibytes(n)} for what, n in memory.items()]
    rows += [{"": "from the stop button to stopped", "value": f"{stopping:.2f} s"}]
    tell(f"Heads at {N_TOKENS:,} tokens, {SMOLLM2}", rows)
    tell(f"Heads at {N_TOKENS:,} tokens, {SMOLLM2}", [row("the run", [whole]), row("another layer", others)], NOTES)
    assert memory["the most at any time"] < MOST_BYTES
