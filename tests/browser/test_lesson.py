"""A walk through the Lesson in a real browser: step by step, a number that is changed, a link to what is seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser

NO_MODEL = "./no-such-folder"  # nothing of this name can be loaded: the page must not try
FIRST_LOAD = 90_000  # ms: the first visitor of a server waits for imports
A_RUN = 20_000


@pytest.fixture(autouse=True)
def forgive_probing(new_page: Callable[..., Page], page_errors: list[str]) -> Iterator[None]:
    """Streamlit's page looks for its server below the page's own path first, and the browser reports the 404."""
    yield  # before `new_page` looks at the errors
    page_errors[:] = [error for error in page_errors if not re.search(r"404.*/_stcore/(health|host-config)", error)]


def visit(page: Page, url: str, query: str) -> None:
    page.goto(f"{url}/lesson?model={NO_MODEL}&{query}")
    expect(page.get_by_role("heading", level=1, name="Lesson")).to_be_visible(timeout=FIRST_LOAD)
    expect(page.locator(".mx-table").first).to_be_visible(timeout=FIRST_LOAD)


def group(page: Page, title: str) -> Locator:
    """The matrices of one head, or of one way to do it."""
    return page.locator(".mx-group").filter(has=page.get_by_role("heading", name=title, exact=True))


def cells(page: Page, title: str, name: str) -> Locator:
    """The numbers of a matrix, row after row."""
    figure = (
        group(page, title).locator("figure").filter(has=page.locator("figcaption b", has_text=re.compile(f"^{name}$")))
    )
    return figure.first.locator("td.mx-cell")


def press(page: Page, way: str) -> None:
    """The button to the next step, or back."""
    page.locator(f".st-key-lesson_{way}").get_by_role("button").click()


def step(page: Page, number: int) -> None:
    expect(page.get_by_role("heading", level=3, name=re.compile(rf"^{number} ·"))).to_be_visible(timeout=A_RUN)


def test_a_walk_through_the_lesson(page: Page, new_page: Callable[..., Page], app_url: str) -> None:
    visit(page, app_url, "step=project")
    step(page, 2)
    expect(cells(page, "H0", "Q")).to_have_text(["1", "0", "0", "1"])

    # a number is changed in place and flows through at once, in every place where it stands
    x = page.get_by_role("textbox", name="X, I, column 1").first
    x.fill("3")
    expect(cells(page, "H0", "Q")).to_have_text(["1", "3", "0", "1"], timeout=A_RUN)
    expect(page.get_by_role("textbox", name="X, I, column 1").last).to_have_value("3")

    # text in a cell gets a sentence, and everything else is kept
    x = page.get_by_role("textbox", name="X, learn., column 0").first
    x.fill("abc")
    x.press("Tab")
    expect(page.get_by_text("“abc” is not a number.")).to_be_visible(timeout=A_RUN)
    expect(x).to_have_value("0")
    expect(cells(page, "H0", "Q")).to_have_text(["1", "3", "0", "1"])

    # on to the softmax: “I” is now (1, 3) in head 0, its scores are 10 and 3, and divided by the root of 2 …
    press(page, "next")
    step(page, 3)
    page.get_by_role("radio", name="5 Mask").click()
    step(page, 5)
    press(page, "next")
    step(page, 6)
    expect(cells(page, "H0", "A")).to_have_text(["0.99", "0.01", "0.80", "0.20"], timeout=A_RUN)
    press(page, "back")
    step(page, 5)
    press(page, "next")
    step(page, 6)
    expect(page).to_have_url(re.compile("step=softmax"))

    # another visitor who opens the link sees the same
    seen = cells(page, "H0", "A").all_inner_texts()
    expect(page).to_have_url(re.compile(r"edits=X\.0\.1%3D3(&|$)"), timeout=A_RUN)
    other = new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    other.goto(page.url)
    expect(cells(other, "H0", "A")).to_have_text(seen, timeout=FIRST_LOAD)
    width = other.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "nothing sticks out on a phone"

    # on paper there are no controls
    other.emulate_media(media="print")
    expect(other.locator(".st-key-lesson_next")).to_be_hidden()
    expect(cells(other, "H0", "A").first).to_be_visible()
    ink = other.get_by_text("Each row becomes positive numbers").evaluate("(words) => getComputedStyle(words).color")
    assert ink == "rgb(20, 24, 33)", "dark on paper, whatever the theme"


def test_arrow_keys_paste_and_reset(page: Page, app_url: str) -> None:
    visit(page, app_url, "step=output")
    cell = page.get_by_role("textbox", name="W_O, H0.0, column 0")
    cell.focus()
    cell.press("Shift+ArrowUp")
    cell.press("ArrowUp")
    expect(page).to_have_url(re.compile("O.0.0%3D2.1"), timeout=A_RUN)
    expect(cells(page, "All heads at once", "output").first).to_have_text("1.41")
    rows = r"1\t1\t1\t1\n" * 3 + r"2\t2\t2\t2"
    paste = f"""(cell) => {{
        const data = new DataTransfer();
        data.setData("text/plain", "{rows}");
        cell.dispatchEvent(new ClipboardEvent("paste", {{clipboardData: data, bubbles: true, composed: true}}));
    }}"""
    cell.evaluate(paste)
    expect(page.get_by_role("textbox", name="W_O, H1.1, column 3")).to_have_value("2", timeout=A_RUN)
    cell.evaluate(paste.replace("2\\t2", "2"))
    expect(page.get_by_text("W_O is 4 × 4 and rows of 2 and 4 numbers were given")).to_be_visible(timeout=A_RUN)
    page.get_by_role("button", name="Back to the original numbers").click()
    expect(cells(page, "All heads at once", "output").first).to_have_text("0.67", timeout=A_RUN)
    expect(page).not_to_have_url(re.compile("edits="), timeout=A_RUN)


def test_the_future_closes_behind_the_slider(page: Page, app_url: str) -> None:
    visit(page, app_url, "lesson=masks")
    expect(page.get_by_text("closed: building · software · .")).to_be_visible()
    page.get_by_role("slider").press("ArrowRight")
    expect(page.get_by_text("closed: software · .")).to_be_visible(timeout=A_RUN)
    expect(page.locator(".mx-marked").first).to_be_visible()
