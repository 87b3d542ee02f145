"""The text, shaded by where each head of a layer looks from a token.

What happens in the browser alone is tested in the offline file, without a server; what Python hears, in an app.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from mha_core import palette
from mha_core.view import View, top_of_rows
from tests.browser.apps import synthetic
from tests.browser.viewer import HEADS, SENTENCE, Serve, near, open_app, sample, scale, spoken, text_state, tip, token

pytestmark = pytest.mark.browser


def shading(page: Page) -> list[list[tuple[int, ...]]]:
    """[row, token] the colours that are really shown."""
    rows: list[list[str]] = page.locator(".hs-rows .hs-row").evaluate_all(
        """rows => rows.map((row) => [...row.querySelectorAll(".hs-token")].map(
            (token) => getComputedStyle(token).backgroundColor))"""
    )
    return [[tuple(int(x) for x in re.findall(r"\d+", colour)[:3]) for colour in row] for row in rows]


def expect_shaded(page: Page, expected: np.ndarray) -> None:
    """Every row's every token has the colour of its number, [row, token]."""
    shown = shading(page)
    assert np.shape(shown)[:2] == expected.shape
    for row, values in enumerate(expected):
        for i, value in enumerate(values):
            assert near(shown[row][i], scale(float(value), palette.sequential("light"))), (row, i, value, shown[row][i])


def test_a_token_shades_every_head_by_its_own_row(offline: Callable[..., Page]) -> None:
    view = sample("text")
    page = offline(view)
    text_state(page, query=9)
    expect_shaded(page, view.arrays["maps"][:, 9])
    token(page, 2, 4).hover()
    text_state(page, query=4)
    expect_shaded(page, view.arrays["maps"][:, 4])
    expect(page.locator(".hs-token[data-ring]")).to_have_count(HEADS)
    expect(page.locator(".hs-from")).to_contain_text("Where each head looks from “the” (4)")
    row = view.arrays["maps"][2, 4]
    best = np.argsort(-row)[:3]
    words = ", ".join(f"{SENTENCE[i]} {row[i]:.4f}" for i in best)
    expect(tip(page)).to_have_text(f"L4H2  looks most at {words}")


def test_hover_beats_a_lock_and_escape_frees_it(offline: Callable[..., Page]) -> None:
    page = offline(sample("text"))
    token(page, 0, 3).click()
    text_state(page, query=3, locked=3)
    token(page, 5, 7).hover()
    text_state(page, query=7, locked=3)
    expect(tip(page)).to_contain_text("locked: “handed” → “report”")
    expect(page.locator(".hs-token[data-ring=waiting]")).to_have_count(HEADS)
    page.mouse.move(2, 2)
    text_state(page, query=3, locked=3)
    page.locator(".hs-text").focus()
    page.keyboard.press("Escape")
    text_state(page, query=9)
    token(page, 0, 3).click()
    token(page, 1, 3).click()  # a second click frees it too
    text_state(page, query=3)


def test_arrow_keys_walk_through_the_text_and_say_where(offline: Callable[..., Page]) -> None:
    view = sample("text")
    page = offline(view)
    page.locator(".hs-text").focus()
    page.keyboard.press("ArrowLeft")
    text_state(page, query=8)
    best = np.argsort(-view.arrays["maps"][3, 8])[:3]
    heard = ", ".join(f"{SENTENCE[i]} {view.arrays['maps'][3, 8, i]:.4f}" for i in best)
    expect(spoken(page)).to_have_text(f"from 8 because: L4H3 looks most at {heard}")
    page.keyboard.press("End")
    text_state(page, query=13)
    page.keyboard.press("Shift+ArrowLeft")
    text_state(page, query=3)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    text_state(page, query=0)
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    text_state(page, query=1, locked=1)


def test_the_other_direction_shades_by_who_looks(offline: Callable[..., Page]) -> None:
    view = sample("text")
    page = offline(view)
    page.get_by_role("button", name="Shade by who looks at the token").click()
    token(page, 0, 2).hover()
    expect_shaded(page, view.arrays["maps"][:, :, 2])
    expect(page.locator(".hs-from")).to_contain_text("Who looks at “engineer” (2)")


def test_cross_attention_picks_from_the_query_text(offline: Callable[..., Page]) -> None:
    view = sample("text", n_keys=9)
    page = offline(view)
    expect_shaded(page, view.arrays["maps"][:, 9])
    page.locator(".hs-pick .hs-token").nth(2).hover()
    text_state(page, query=2)
    expect_shaded(page, view.arrays["maps"][:, 2])
    token(page, 1, 6).hover()  # a key: no query of its own, but a number
    text_state(page, query=2)
    expect(tip(page)).to_have_text(f"L4H1  “engineer” → “Bericht”  {view.arrays['maps'][1, 2, 6]:.4f}")


def test_hidden_attention_is_stated_and_never_scaled_away(offline: Callable[..., Page]) -> None:
    whole = sample("text")
    hidden = whole.arrays["maps"][:, 1:, 1:]  # the first token is not shown
    labels = SENTENCE[1:]
    own = {"query_labels": labels, "key_labels": labels, "query": 4, "query_positions": list(range(1, 14))}
    meta = {**whole.meta, **own}
    page = offline(View("text", {"maps": hidden}, meta))
    expect_shaded(page, hidden[:, 4])
    shown = hidden[:, 4].sum(-1)
    said = [f"{share:.2f} shown" if share < 0.995 else "" for share in shown.tolist()]
    expect(page.locator(".hs-mass")).to_have_text(said)
    expect(page.locator(".hs-from")).to_contain_text(f"“{labels[4]}” (5)")


def test_a_long_text_is_strips_and_one_text_with_the_mass_shown(offline: Callable[..., Page]) -> None:
    full = sample("text", n=300)
    values, places = top_of_rows(full.arrays["maps"], 16)
    page = offline(View("text", {"top_values": values, "top_keys": places}, {**full.meta, "query": 250}))
    expect(page.locator(".hs-strip")).to_have_count(HEADS)
    expect(page.locator(".hs-whole .hs-token")).to_have_count(300)
    masses = values[:, 250].sum(-1)
    said = [f"top 16: {mass:.2f}" if mass < 0.995 else "" for mass in masses.tolist()]
    expect(page.locator(".hs-mass")).to_have_text(said)
    word = page.locator(".hs-whole .hs-token").nth(40)
    word.hover()
    text_state(page, query=40)
    expect(page.locator(".hs-text")).to_have_attribute("data-compact", "true")
    shown = page.locator(".hs-whole .hs-token").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    expected = np.zeros(300)
    expected[places[3, 40]] = values[3, 40]
    for i, colour in enumerate(shown):
        assert near(tuple(map(int, re.findall(r"\d+", colour)[:3])), scale(expected[i], palette.sequential("light"))), i
    strongest = int(places[0, 250, 0])
    strip = page.locator(".hs-strip").first
    box = strip.bounding_box()
    assert box is not None
    page.mouse.move(2, 2)
    page.mouse.move(box["x"] + (strongest + 0.5) / 300 * box["width"], box["y"] + 8)
    expect(tip(page)).to_contain_text(f"L4H0  ({strongest}) ")
    expect(tip(page)).to_contain_text(f"{values[0, 250, 0]:.4f}")


def test_right_to_left_text_reads_in_order(offline: Callable[..., Page]) -> None:
    labels = synthetic.labels(11, rtl=True)
    view = sample("text", n=11)
    page = offline(View("text", view.arrays, {**view.meta, "query_labels": labels, "key_labels": labels, "query": 3}))
    lefts = (
        page.locator(".hs-rows .hs-row")
        .first.locator(".hs-token")
        .evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)")
    )
    assert lefts == sorted(lefts, reverse=True)
    page.locator(".hs-text").focus()
    page.keyboard.press("ArrowLeft")  # left is onward here
    text_state(page, query=4)


def test_shading_128_tokens_of_12_heads_fits_into_a_frame(offline: Callable[..., Page]) -> None:
    page = offline(sample("text", n=128))
    times = []
    for i in range(20, 60):
        token(page, 0, i).dispatch_event("pointerover", {"pointerType": "mouse", "bubbles": True})
        text_state(page, query=i)
        times.append(float(page.locator(".hs-text").get_attribute("data-milliseconds") or "nan"))
    assert statistics.median(times) < 16, times


def test_pointing_asks_no_server_locking_tells_it_once(page: Page, serve: Serve) -> None:
    open_app(page, serve, "kind=text")
    for i in (1, 4, 7, 2):
        token(page, 2, i).hover()
        text_state(page, query=i)
    expect(page.get_by_text("runs: 1", exact=True)).to_be_visible()
    token(page, 2, 6).click()
    expect(page.get_by_text("query: 6", exact=True)).to_be_visible()
    token(page, 3, 7).hover()
    page.mouse.move(2, 2)
    text_state(page, query=6, locked=6)
    page.locator(".hs-text").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_text("query: 9", exact=True)).to_be_visible()
    expect(page.get_by_text("runs: 3", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("query: None", exact=True)).to_be_visible()
    text_state(page, query=9)


def test_a_head_is_chosen_by_its_name(page: Page, serve: Serve) -> None:
    open_app(page, serve, "kind=text")
    page.get_by_role("button", name="L4H5", exact=True).click()
    expect(page.get_by_text("head: 5", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="L4H5, chosen")).to_have_attribute("aria-pressed", "true")
