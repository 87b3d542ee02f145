"""The ablation lab in a real browser: heads and cells are clicked in pictures, and nobody's work runs on for nobody."""

from __future__ import annotations

import re
import time

import psutil
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Servers
from tests.browser.test_app import A_RUN, FIRST_LOAD, MINILM, off, settle, visit

TEXT = "The cat slept under the table."


def click_cell(canvas: Locator, row: int, column: int) -> None:
    """Walk to a cell by keyboard and choose it: exact at any size."""
    canvas.focus()
    canvas.press("Control+Home")
    for _ in range(row):
        canvas.press("ArrowDown")
    for _ in range(column):
        canvas.press("ArrowRight")
    canvas.press("Enter")


@pytest.mark.usefixtures("forgive_probing")
def test_a_sweep_is_read_clicked_and_its_pairs_asked_for(page: Page, app_url: str) -> None:
    visit(page, app_url, "ablate", model=MINILM, text=TEXT, kinds="zero")
    page.get_by_role("button", name="Sweep all heads exactly").click()
    expect(page.get_by_text(re.compile(r"^zero: exact, 72 of 72 heads"))).to_be_visible(timeout=A_RUN)
    expect(page.get_by_text(re.compile(r"^mean: exact, 72 of 72 heads"))).to_be_visible(timeout=A_RUN)
    settle(page)
    canvas = page.get_by_role("application", name=re.compile("Effect of each head under zero")).first
    click_cell(canvas, 2, 7)
    expect(page.locator(".hg [data-place='2,7']")).to_have_attribute("aria-pressed", "true", timeout=A_RUN)
    settle(page)
    assert off(page) == ["L2H7"]
    page.get_by_role("button", name="All pairs of the top 8").click()
    expect(page.get_by_role("application", name=re.compile("Interaction of every pair"))).to_be_visible(timeout=A_RUN)


@pytest.mark.usefixtures("forgive_probing")
def test_a_visitor_who_leaves_leaves_no_work_behind(page: Page, serve: Servers) -> None:
    """Closing the tab in the middle of a sweep of thousands of runs ends it at its next step."""
    url = serve("app.py", {"HEADSCOPE_TEST_SERVER": "left"})
    visit(page, url, "ablate", text="The keys to the cabinet near the old door are on the table. " * 12, kinds="zero")
    page.get_by_role("button", name="Sweep all heads exactly").click()
    expect(page.get_by_text(re.compile(r"^Sweeping, zero"))).to_be_visible(timeout=FIRST_LOAD)
    page.close()
    process = next(server.process for server in serve.running.values() if server.url == url)
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = sum(watched.cpu_times()[:2])
        time.sleep(3)
        if sum(watched.cpu_times()[:2]) - before < 0.6:
            return
    pytest.fail("A minute after the tab was closed, the server still works.")
