"""The Cost page in a real browser: a number changed, a measurement, and a training that is stopped half-way."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_app import A_RUN, settle, visit

pytestmark = pytest.mark.usefixtures("forgive_probing")


def test_a_changed_size_flows_into_every_number_and_the_address(page: Page, app_url: str) -> None:
    visit(page, app_url, "cost", shape="512x8x8x64x1")
    expect(page.get_by_text("1,048,576", exact=True)).to_be_visible(timeout=A_RUN)
    page.get_by_label("h_kv, key/value heads").fill("2")
    page.get_by_label("h_kv, key/value heads").press("Enter")
    expect(page.get_by_text("KV cache, GQA", exact=True)).to_be_visible(timeout=A_RUN)
    expect(page.get_by_text("655,360", exact=True)).to_be_visible(timeout=A_RUN)
    expect(page).to_have_url(re.compile("shape=512x8x2x64x1"), timeout=A_RUN)
    page.get_by_label("h_kv, key/value heads").fill("3")
    page.get_by_label("h_kv, key/value heads").press("Enter")
    expect(page.get_by_text("8 query heads cannot share 3 key/value heads evenly")).to_be_visible(timeout=A_RUN)
    expect(page.get_by_label("h_kv, key/value heads")).to_have_value("3")


def test_training_shows_what_it_has_and_can_be_stopped(page: Page, app_url: str) -> None:
    visit(page, app_url, "cost", cost="experiment")
    expect(page.get_by_text(re.compile("^Recorded, not made here"))).to_be_visible(timeout=A_RUN)
    page.get_by_label("Steps", exact=True).fill("3000")
    page.get_by_label("Steps", exact=True).press("Enter")
    settle(page)
    page.get_by_role("button", name="Train here").click()
    expect(page.get_by_text(re.compile(r"^Training … 0 of 15"))).to_be_visible(timeout=A_RUN)
    page.get_by_role("button", name="Stop").last.click()
    expect(page.get_by_text(re.compile(r"^Training …"))).to_have_count(0, timeout=A_RUN)
    settle(page)
    expect(page.get_by_text("No run has ended yet.")).to_be_visible(timeout=A_RUN)
    page.get_by_role("button", name="Train here").click()  # asked for again, it begins again
    expect(page.get_by_text(re.compile(r"^Training … 0 of 15"))).to_be_visible(timeout=A_RUN)
    page.get_by_role("button", name="Stop").last.click()
    expect(page.get_by_text(re.compile(r"^Training …"))).to_have_count(0, timeout=A_RUN)
    settle(page)
    expect(page.get_by_test_id("stException")).to_have_count(0)


@pytest.mark.parametrize("section", ["calculator", "measured", "experiment"])
def test_nothing_is_wider_than_a_phone(new_page: Callable[..., Page], app_url: str, section: str) -> None:
    page = new_page(viewport={"width": 390, "height": 844})
    visit(page, app_url, "cost", cost=section)
    width = page.evaluate("Math.max(...[...document.querySelectorAll('[data-testid=stMain] *')]"
                          ".filter((e) => !e.closest('[data-testid=stDataFrame], [data-testid=stTabs]'))"
                          ".map((e) => e.getBoundingClientRect().right))")  # fmt: skip
    assert width <= 391
