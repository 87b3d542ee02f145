"""Next words and token strips: what reaches the browser, what it shows, and what Python hears of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from mha_core.ui.effects import SERIES, WordRow, _limit, _number, _styles, next_words, token_strip

pytestmark = pytest.mark.browser

APP = "tests/browser/apps/effects_app.py"
HOSTILE = "<img src=x onerror=alert(1)>"
Serve = Callable[..., str]

# The contrast of every token's text with its fill, by the accessibility guidelines' formula.
CONTRASTS = """(tokens) => tokens.map((token) => {
    const level = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => c / 255)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const { color, backgroundColor } = getComputedStyle(token);
    const [a, b] = [level(color), level(backgroundColor)];
    return Math.max(a, b) / Math.min(a, b);
})"""


# ---------------------------------------------------------------- before the browser


@pytest.mark.parametrize("value", [None, math.nan, math.inf, np.float32("nan")])
def test_what_json_cannot_carry_is_no_value(value: float | None) -> None:
    assert _number(value) is None


def test_the_scale_ends_at_the_largest_magnitude_and_is_never_empty() -> None:
    assert _limit(None, [None, -3.0, 2.0]) == 3.0
    assert _limit(None, [0.0, None]) == _limit(None, []) == 1.0
    assert _limit(2.5, [9.0]) == 2.5


def test_a_column_keeps_its_colour_whatever_stands_beside_it() -> None:
    assert _styles(["clean", "zero", "mean"]) == [0, 1, 2]
    assert _styles(["clean", "mean"]) == [0, 2]
    assert _styles(["A", "mean", "B", "clean"]) == [1, 2, 3, 0]
    assert _styles(["zero", "ablated", "zero"]) == [1, 0, 2]
    assert all(sorted(_styles(["x"] * n)) == list(range(n)) for n in range(len(SERIES["light"]) + 1))


def test_wrong_shapes_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="1 to 5 columns; got 0"):
        next_words(key="a", columns=[], rows=[], alt="")
    with pytest.raises(ValueError, match="' Mary' has 1 values; there are 2 columns"):
        next_words(key="a", columns=["clean", "zero"], rows=[WordRow(" Mary", [0.5])], alt="")
    with pytest.raises(ValueError, match="2 labels, 1 values"):
        token_strip(key="a", labels=["a", "b"], values=[1.0], unit="nats", alt="")
    with pytest.raises(ValueError, match="1 hovers"):
        token_strip(key="a", labels=["a", "b"], values=[1.0, 2.0], hovers=["x"], unit="nats", alt="")
    for limit in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive number"):
            token_strip(key="a", labels=["a"], values=[1.0], unit="nats", alt="", limit=limit)
    with pytest.raises(ValueError, match="'signed' or 'plain'"):
        token_strip(key="a", labels=["a"], values=[1.0], unit="nats", alt="", fmt="wild")  # type: ignore[arg-type]


# ---------------------------------------------------------------- next words


def open_app(page: Page, serve: Serve, query: str = "") -> Page:
    page.on("dialog", lambda dialog: pytest.fail(f"a word ran as a script: {dialog.message}"))
    page.goto(f"{serve(APP)}/{query}")
    for view in ("clean", "strip", "plain"):
        page.locator(f".fx[data-view='{view}']").wait_for()
    page.evaluate("document.fonts.ready")
    return page


def row(page: Page, word: str) -> Locator:
    return page.locator(".fx-words tbody tr").filter(has=page.locator(f"bdi[title='“{word}”']"))


def test_the_table_says_what_it_shows(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    table = page.get_by_role("table", name="The most probable next words")
    expect(table.get_by_role("columnheader")).to_have_text(["word", "clean", "zero", "mean", "the same as bars"])
    expect(table.get_by_role("rowheader")).to_have_count(8)
    mary = row(page, " Mary")
    assert mary.locator(".fx-pair").text_content() == "“ Mary”"
    expect(mary.locator(".fx-note")).to_have_text("top word before")
    expect(mary.locator("td.fx-number")).to_have_text(["0.923", "0.056", "0.926"])
    expect(mary.locator("td.fx-number").nth(2)).to_have_attribute("title", "mean: 0.926123")
    tiny = row(page, HOSTILE).locator("td.fx-number")
    expect(tiny).to_have_text(["<0.001", "0.000", "–"])
    expect(tiny.first).to_have_attribute("title", "clean: 0.000123457")
    expect(table.get_by_text("probability, 0 to 1")).to_be_visible()


def test_bars_are_on_one_scale_and_not_told_apart_by_colour_alone(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    page.wait_for_timeout(300)  # bars move
    widths = row(page, " Mary").locator(".fx-bar").evaluate_all(
        "bars => bars.map((bar) => bar.getBoundingClientRect().width / bar.parentElement.getBoundingClientRect().width)"
    )
    assert widths == pytest.approx([0.923, 0.056, 0.926], abs=0.005)
    expect(row(page, HOSTILE).locator(".fx-bar").nth(1)).to_have_css("width", "0px")
    expect(row(page, HOSTILE).locator(".fx-bar").nth(2)).to_be_hidden()
    looks = page.locator(".fx-swatch").evaluate_all(
        """all => all.map((one) => getComputedStyle(one))
            .map((style) => `${style.backgroundImage.slice(0, 9)} ${style.borderTopStyle}`)"""
    )
    assert len(set(looks)) == 3


def test_two_columns_keep_the_look_they_have_among_three(page: Page, serve: Serve) -> None:
    open_app(page, serve, "?two=1")
    styles = page.locator(".fx-swatch").evaluate_all("all => all.map((one) => one.dataset.style)")
    assert styles == ["0", "2"]


def test_hostile_words_stay_text(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    expect(row(page, HOSTILE).locator("bdi")).to_have_text(HOSTILE)
    expect(row(page, HOSTILE).locator(".fx-note")).to_have_text("<b>note</b>")
    expect(page.locator(".fx img, .fx b")).to_have_count(0)
    assert page.locator(".fx-words tbody tr").last.locator(".fx-pair").text_content() == "“↵”"
    expect(row(page, " שלום").locator("bdi")).to_have_css("unicode-bidi", "isolate")


def test_new_data_moves_the_rows_that_are_there(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    handle = row(page, " Mary").element_handle()
    page.get_by_text("other sentence").click()
    page.locator(".fx[data-view='other']").wait_for()
    expect(page.locator(".fx-words tbody tr")).to_have_count(3)
    assert page.locator(".fx-words tbody tr").nth(1).evaluate("(row, old) => row === old", handle)
    expect(row(page, " Mary").locator("td.fx-number")).to_have_text(["0.100", "0.600", "0.300"])
    expect(row(page, " Mary").locator(".fx-note")).to_have_text("")


def test_bars_do_not_move_for_those_who_asked_for_that(new_page: Callable[..., Page], serve: Serve) -> None:
    page = open_app(new_page(reduced_motion="reduce"), serve)
    expect(page.locator(".fx-bar").first).to_have_css("transition-duration", "0s")


@pytest.mark.parametrize("width", [340, 390, 620, 900])
def test_nothing_is_cut_off_at_any_width(new_page: Callable[..., Page], serve: Serve, width: int) -> None:
    page = open_app(new_page(viewport={"width": width, "height": 900}), serve)
    for root in page.locator(".fx").all():
        assert root.evaluate("root => root.scrollWidth <= root.clientWidth")
    bars = page.locator(".fx-scale").first.bounding_box()
    assert bars is not None
    assert bars["width"] > 50
    cells = page.locator(".fx-words td.fx-number, .fx-words thead th")
    assert cells.evaluate_all("cells => cells.every((cell) => cell.scrollWidth <= cell.clientWidth)")


# ---------------------------------------------------------------- tokens with a number each


def strip(page: Page) -> Locator:
    return page.get_by_role("list", name="Loss per word, change against clean")


def token(page: Page, at: int) -> Locator:
    return strip(page).locator(f"[data-at='{at}']")


def test_tokens_read_as_a_list(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    expect(strip(page).get_by_role("listitem")).to_have_count(14)
    expect(strip(page).get_by_role("button", name="position 3, John, +2.6 nats", exact=True)).to_be_visible()
    expect(strip(page).get_by_role("button", name="position 1, Mary, −1.1 nats", exact=True)).to_be_visible()
    expect(strip(page).get_by_role("button", name="position 0, When, no value", exact=True)).to_be_visible()
    plain = page.get_by_role("list", name="Probability of each word")
    expect(plain.get_by_role("listitem", name="position 3, John, 0.026 probability", exact=True)).to_be_visible()
    expect(plain.get_by_role("button")).to_have_count(0)


def test_tokens_show_value_scale_and_selection(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    expect(token(page, 8).locator(".fx-value")).to_have_text("0.0")  # 0.02, no sign
    expect(token(page, 0).locator(".fx-value")).to_have_text("")
    expect(token(page, 0)).to_have_css("background-color", "rgba(0, 0, 0, 0)")
    expect(token(page, 3)).to_have_attribute("aria-current", "true")
    expect(token(page, 12)).to_have_text(f"{HOSTILE}+0.6")
    legends = page.locator(".fx-legend")
    expect(legends.first).to_have_text("−4.0≥ +4.0nats")  # 7.1 lies beyond the end, and that is said
    expect(legends.last).to_have_text("00.071probability")
    fills = strip(page).locator("[data-value]").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert fills[9] == fills[12]  # 4.0 and 7.1
    assert fills[0] != fills[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_can_be_read_on_every_fill(new_page: Callable[..., Page], serve: Serve, scheme: str) -> None:
    page = open_app(new_page(color_scheme=scheme), serve)
    expect(page.locator(".fx").last).to_have_attribute("data-theme", scheme)
    contrasts = page.locator(".fx-token[data-value]").evaluate_all(CONTRASTS)
    assert len(contrasts) == 26
    assert min(contrasts) >= 4.5


def test_the_theme_is_followed_without_the_server(new_page: Callable[..., Page], serve: Serve) -> None:
    page = open_app(new_page(color_scheme="light"), serve)
    before = token(page, 2).get_attribute("style")
    page.emulate_media(color_scheme="dark")
    expect(page.locator(".fx").last).to_have_attribute("data-theme", "dark")
    assert token(page, 2).get_attribute("style") != before


def test_the_tooltip_is_exact(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    tip = page.locator(".fx-tip[data-shown]")
    token(page, 3).hover()
    expect(tip.locator("div")).to_have_text(["hover 3", "“John” · position 3 · +2.61235 nats"])
    token(page, 0).hover()
    expect(tip.locator("div")).to_have_text(["“When” · position 0 · no value"])
    page.mouse.move(1, 1)
    expect(tip).to_have_count(0)


def test_a_token_is_chosen_by_click_and_by_keyboard(page: Page, serve: Serve) -> None:
    open_app(page, serve)
    token(page, 5).click()
    expect(page.get_by_text("position: 5", exact=True)).to_be_visible()
    expect(page.get_by_text("returned: 5", exact=True)).to_be_visible()
    expect(strip(page).locator("[aria-current]")).to_have_count(1)
    expect(strip(page).locator("[tabindex='0']")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(token(page, 7)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("returned: 7", exact=True)).to_be_visible()
    page.keyboard.press("End")
    expect(token(page, 13)).to_be_focused()
    page.keyboard.press("Space")
    expect(page.get_by_text("position: 13", exact=True)).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(token(page, 13)).to_be_focused()


def test_up_and_down_go_by_lines(new_page: Callable[..., Page], serve: Serve) -> None:
    page = open_app(new_page(viewport={"width": 390, "height": 900}), serve)
    tops = strip(page).locator(".fx-token").evaluate_all("all => all.map((one) => one.getBoundingClientRect().top)")
    second = next(at for at, top in enumerate(tops) if top > tops[0] + 2)
    token(page, 0).focus()
    page.keyboard.press("ArrowDown")
    expect(token(page, second)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(token(page, 0)).to_be_focused()


def test_the_browser_answers_at_once_and_python_has_the_last_word(page: Page, serve: Serve) -> None:
    open_app(page, serve, "?slow=1")
    token(page, 5).click()
    expect(token(page, 5)).to_have_attribute("aria-current", "true", timeout=300)
    expect(page.get_by_text("position: 5", exact=True)).to_be_visible()
    expect(token(page, 5)).to_have_attribute("aria-current", "true")
    token(page, 0).click()  # this page refuses the first token
    expect(token(page, 0)).to_have_attribute("aria-current", "true", timeout=300)
    expect(page.get_by_text("returned: 0", exact=True)).to_be_visible()
    expect(token(page, 5)).to_have_attribute("aria-current", "true")
    expect(token(page, 0)).not_to_have_attribute("aria-current", "true")


@pytest.mark.parametrize(
    "message", [{"position": 14}, {"position": -1}, {"position": True}, {"position": "3"}, {}, 7, None]
)
def test_nonsense_from_a_browser_chooses_nothing(message: object, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    result = {"select": message}
    kept: dict[str, Callable[[], None]] = {}

    def mount(**options: Callable[[], None]) -> object:
        kept["handle"] = options["on_select_change"]
        return result

    monkeypatch.setattr("mha_core.ui.effects._component", lambda name: mount)
    monkeypatch.setattr("streamlit.session_state", {"strip": result})
    labels, values = ["x"] * 14, [0.0] * 14
    assert token_strip(key="strip", labels=labels, values=values, unit="", alt="", on_select=heard.append) is None
    kept["handle"]()
    assert heard == []
    result["select"] = {"position": 13}
    kept["handle"]()
    assert heard == [13]


def test_two_thousand_tokens_scroll_in_a_box_and_stay_quick(page: Page, serve: Serve) -> None:
    open_app(page, serve, "?n=2048")
    expect(strip(page).get_by_role("listitem")).to_have_count(2048)
    box = page.locator(".fx-scroll[data-many]").first.bounding_box()
    assert box is not None
    assert box["height"] <= 422
    # What scrolls can be reached by keyboard: here by its buttons, in the plain strip as a whole.
    expect(page.locator(".fx-scroll[data-many]").last).to_have_attribute("tabindex", "0")
    token(page, 3).focus()
    page.keyboard.press("End")
    expect(token(page, 2047)).to_be_focused()
    expect(token(page, 2047)).to_be_in_viewport()
