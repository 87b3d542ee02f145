"""Heads as lines from queries to keys.

What happens in the browser alone is tested in the offline file, without a server; what Python hears, in an app.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from mha_core.view import View, top_of_rows
from tests.browser.viewer import (
    Serve,
    open_app,
    sample,
    spoken,
)

pytestmark = pytest.mark.browser


def end(page: Page, side: str, i: int) -> Locator:
    return page.locator(f".hs-end[data-side={side}]").nth(i)


def test_lines_draw_the_strongest_edges_and_state_their_mass(offline: Callable[..., Page]) -> None:
    view = sample("lines", edges_per_query=3)
    page = offline(view)
    expect(page.locator(".hs-edges").first.locator("path")).to_have_count(14 * 3)
    share = np.sort(view.arrays["maps"][3], axis=-1)[:, -3:].sum() / 14
    said = f"The 42 strongest of 196 edges carry {share:.2f} of L4H3’s attention"
    expect(page.locator(".hs-from")).to_contain_text(said)
    page = offline(sample("lines", edges=20))
    expect(page.locator(".hs-edges").first.locator("path")).to_have_count(20)
    top = np.sort(view.arrays["maps"][3].ravel())[-20:].sum() / 14
    expect(page.locator(".hs-from")).to_contain_text(f"carry {top:.2f} of")
    page = offline(sample("lines", causal=True))
    expect(page.locator(".hs-from")).to_contain_text("strongest of 105 edges")  # the future has none


@pytest.mark.parametrize(("side", "axis"), [("query", 0), ("key", 1)])
def test_a_token_shows_its_own_edges_and_their_values(offline: Callable[..., Page], side: str, axis: int) -> None:
    view = sample("lines")
    page = offline(view)
    end(page, side, 7).hover()
    row = np.take(view.arrays["maps"][3], 7, axis=axis)
    best = np.argsort(-row)[:12]
    shown = page.locator(".hs-value").evaluate_all(
        "all => all.map((one) => [Number(one.dataset.end), one.textContent])"
    )
    expected = {int(i): f"{row[i]:.4f}" if row[i] >= 0.001 else None for i in best}
    assert {place for place, _ in shown} == set(expected)
    for place, words in shown:
        assert expected[place] in (words, None)
    assert "0.1234" in [words for _, words in shown] or side == "key"
    expect(page.locator(".hs-from")).to_contain_text(f"{row[best].sum():.2f}")
    expect(page.locator(".hs-edges").first).to_be_hidden()
    page.mouse.move(2, 2)
    expect(page.locator(".hs-value")).to_have_count(0)


def test_lines_lock_walk_and_free(offline: Callable[..., Page]) -> None:
    page = offline(sample("lines"))
    box = page.locator(".hs-lines")
    end(page, "query", 4).click()
    end(page, "key", 2).hover()
    expect(box).to_have_attribute("data-focus", "key 2")
    page.mouse.move(2, 2)
    expect(box).to_have_attribute("data-focus", "query 4")
    box.focus()
    page.keyboard.press("Escape")
    expect(box).to_have_attribute("data-focus", "")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("data-focus", "query 1")
    page.keyboard.press("ArrowRight")
    expect(box).to_have_attribute("data-focus", "key 1")
    expect(spoken(page)).to_contain_text("key 1 the is looked at by: L4H3")


def test_heads_are_chosen_alone_or_laid_over_each_other(page: Page, serve: Serve) -> None:
    open_app(page, serve, "kind=lines")
    page.get_by_role("button", name="L4H5", exact=True).click()
    expect(page.get_by_text("head: 5", exact=True)).to_be_visible()
    page.get_by_role("button", name="overlay several").click()
    page.get_by_role("button", name="L4H7", exact=True).click()
    colours = page.locator(".hs-edges path").evaluate_all(
        "all => [...new Set(all.map((one) => one.getAttribute('stroke')))]"
    )
    assert len(colours) == 2
    expect(page.locator(".hs-from")).to_contain_text("L4H5’s attention, ")
    expect(page.get_by_text("runs: 2", exact=True)).to_be_visible()  # laying over is the browser's own
    expect(page.locator(".hs-chip[aria-pressed=true]")).to_have_text(["L4H5", "L4H7", "overlay several"])


def test_many_lines_scroll(offline: Callable[..., Page]) -> None:
    full = sample("lines", n=300)
    values, places = top_of_rows(full.arrays["maps"], 16)
    page = offline(View("lines", {"top_values": values, "top_keys": places}, full.meta))
    box = page.locator(".hs-lines")
    height, inner = box.evaluate("box => [box.clientHeight, box.scrollHeight]")
    assert height <= 640 < inner
    box.focus()
    page.keyboard.press("End")
    end(page, "query", 299).wait_for()
    assert box.evaluate("box => box.scrollTop") > 1000
    expect(page.locator(".hs-path, .hs-edges").nth(1).locator("path")).not_to_have_count(0)
