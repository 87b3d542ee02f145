"""The Evaluate page in a real browser: a map grows, is stopped and goes on; a head is clicked, a prompt looked into."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Servers
from tests.browser.test_app import A_RUN, off, sentence, settle, visit
from tests.browser.test_lab import click_cell

pytestmark = pytest.mark.usefixtures("forgive_probing")

DATES = {"model": "date-translator", "site": "cross", "text": "3.4.2021"}
GROWING = re.compile(r"^Exact, zero\. First (\d+) of 400 prompts")


@pytest.fixture(scope="module")
def url(serve: Servers, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A server that has measured nothing yet."""
    return serve("app.py", {"HEADSCOPE_CACHE": str(tmp_path_factory.mktemp("cache"))})


def measured(page: Page) -> int:
    """Prompts that the map on the page is of; 0 where there is none just now."""
    found = [GROWING.search(text) for text in page.get_by_text(GROWING).all_inner_texts()]
    return max((int(match[1]) for match in found if match), default=0)


def more_than(page: Page, count: int) -> int:
    """Wait until the map is of more prompts."""
    deadline = time.monotonic() + A_RUN / 1000
    while time.monotonic() < deadline:
        if measured(page) > count:
            return measured(page)
        page.wait_for_timeout(100)
    pytest.fail(f"The map never was of more than {count} prompts.")


def stop(page: Page) -> None:
    """Press the button beside the progress, and wait until the work has ended."""
    page.get_by_test_id("stMain").get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text(re.compile("^Head × prompt runs"))).to_have_count(0, timeout=A_RUN)
    settle(page)


def test_a_map_grows_is_stopped_is_clicked_and_goes_on(page: Page, url: str) -> None:
    visit(page, url, "evaluate", **DATES, prompts="400")
    page.get_by_role("button", name="Sweep every head").click()
    first = more_than(page, 0)
    more_than(page, first)
    stop(page)
    kept = more_than(page, first)

    click_cell(page.get_by_role("application", name=re.compile("^Effect of each head on the task")).first, 1, 2)
    said = page.get_by_text("Switched off by your clicks, and on the Ablate page: cross.L1H2.")
    expect(said).to_be_visible(timeout=A_RUN)
    settle(page)
    expect(page).to_have_url(re.compile("off=cross.L1H2"), timeout=A_RUN)
    assert more_than(page, 0) == kept

    page.get_by_role("button", name="Sweep every head").click()  # goes on where it was
    more_than(page, kept)
    stop(page)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_a_plan_is_measured_and_a_prompt_that_turned_is_looked_into(page: Page, url: str) -> None:
    visit(page, url, "evaluate", **DATES, prompts="24", ways="zero", without="")
    field = page.get_by_role("textbox", name="Heads to switch off")
    field.fill("cross.L1H0, cross.L1H2")
    field.press("Enter")
    expect(page).to_have_url(re.compile("typed=cross.L1H0"), timeout=A_RUN)
    settle(page)
    page.get_by_role("button", name="Measure the plans").click()
    expect(page.get_by_text(re.compile("^All 24 prompts"))).to_be_visible(timeout=A_RUN)
    settle(page)
    expect(page.get_by_text(re.compile(r"of 24 turned: \d+ to wrong"))).to_be_visible(timeout=A_RUN)
    with page.expect_download() as download:
        page.get_by_role("button", name="HTML report").click()
    report = download.value.path().read_text(encoding="utf-8")
    assert "We measured" in report
    assert re.search(r"cross\.L1H0, cross\.L1H2,(<br>|\\u003cbr\\u003e)zero", report)  # the plan's name in the picture
    prompt = page.get_by_role("combobox", name=re.compile("Prompt$")).last.input_value()
    page.get_by_role("button", name="Before and after, on the Ablate page").click()
    expect(page.get_by_role("heading", level=1, name="Ablate")).to_be_visible(timeout=A_RUN)
    settle(page)
    assert off(page) == ["cross.L1H0", "cross.L1H2"]
    if prompt:
        expect(sentence(page)).to_have_value(prompt)


def test_nothing_is_wider_than_a_phone(new_page: Callable[..., Page], url: str) -> None:
    page = new_page(viewport={"width": 390, "height": 844})
    visit(page, url, "evaluate", **DATES, prompts="8", typed="cross.L1H0", ways="zero", orders="ascending")
    for name in ("Measure the plans", "Sweep every head", "Remove heads step by step"):
        page.get_by_role("button", name=name).click()
        settle(page)
    width = page.evaluate("Math.max(...[...document.querySelectorAll('[data-testid=stMain] *')]"
                          ".filter((e) => !e.closest('[data-testid=stDataFrame], [data-testid=stTabs]'))"
                          ".map((e) => e.getBoundingClientRect().right))")  # fmt: skip
    assert width <= 391
