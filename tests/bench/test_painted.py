"""From a person's key or click to the page being painted, in a warm Chromium page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from playwright.sync_api import Page

from tests.bench.measure import MODELS, sentence, tell
from tests.bench.page_meter import NOTES, PAUSE, PageMeter, Result, Typist, row

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

LENGTHS = (32, 128)
WARM_UP = 3
EDITS = 16
CHOICES = 8
TOGGLES = 8
Serve = Callable[..., str]
Texts = Mapping[tuple[str, int], str]


@pytest.fixture(scope="module")
def texts() -> Texts:
    """For each model and length, a text whose last letter can be replaced by another one."""
    from mha_core import load_model

    models = [(name, load_model(name)) for name in MODELS]
    return {
        (name, n): sentence(lambda text, model=model: len(model.tokenize(text)), n, " a")  # type: ignore[misc]
        for name, model in models
        for n in LENGTHS
    }


@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize("name", MODELS)
def test_an_edit_on_heads(name: str, n_tokens: int, texts: Texts, serve: Serve, page: Page) -> None:
    meter = PageMeter(page)
    meter.open(serve("app.py"), model=name, text=texts[name, n_tokens])
    assert len(meter.views()) >= 3, "the whole model, one head and one layer at least"
    typist = Typist(meter, texts[name, n_tokens])
    edits = [meter.measure("beforeinput", typist.edit) for _ in range(WARM_UP + EDITS)][WARM_UP:]
    assert f"{n_tokens} tokens" in page.get_by_test_id("stSidebar").inner_text(), "the edits changed the length"
    rows = [row("edit", edits), row("edit while typing slowly", typing_slowly(meter, typist))]
    rows += [row("a head, after an edit", choose_after_edits(meter, typist)), row("a head", choose_heads(meter))]
    tell(f"Heads, {name}, {n_tokens} tokens", rows, NOTES)


def typing_slowly(meter: PageMeter, typist: Typist) -> list[Result]:
    """The last of four keys further apart than the field's pause: each begins a run, which the next one ends."""
    results = []
    for _ in range(4):
        typist.prepare(4)
        for _ in range(3):
            typist.edit()
            meter.page.wait_for_timeout(PAUSE + 50)
        results.append(meter.measure("beforeinput", typist.edit, settle=False))
        assert typist.field.input_value() == typist.text, "an earlier run has taken back what was typed"
    return results


def choose_after_edits(meter: PageMeter, typist: Typist) -> list[Result]:
    """The first head after each edit: all of the page stays what it was, and only what depends on the head is new."""
    results = []
    for number in range(WARM_UP + CHOICES):
        typist.prepare(1)
        meter.measure("beforeinput", typist.edit)
        results.append(choose_head(meter, number))
        typist.field.click()
        typist.field.press("End")
    return results[WARM_UP:]


def choose_heads(meter: PageMeter) -> list[Result]:
    """One head after another."""
    return [choose_head(meter, number) for number in range(WARM_UP + CHOICES)][WARM_UP:]


def choose_head(meter: PageMeter, number: int) -> Result:
    """By the overview's keyboard, to and fro in its first row; what is measured is the large map."""
    keyboard = meter.page.keyboard
    meter.settle()
    meter.page.locator(".hs-overview").focus()
    keyboard.press("ArrowRight" if number % 2 == 0 else "ArrowLeft")
    return meter.measure("keydown", lambda: keyboard.press("Enter"), within=".st-key-focus_card")


@pytest.mark.parametrize("name", MODELS)
def test_a_head_switched_off_on_ablate(
    name: str, texts: Texts, serve: Serve, page: Page, page_errors: list[str]
) -> None:
    rows = []
    meter = PageMeter(page)
    for n_tokens in LENGTHS:
        meter.open(serve("app.py"), "ablate", model=name, text=texts[name, n_tokens], off="L2H0")
        page.locator(".fx[data-view*='mean']").first.wait_for(timeout=120_000)  # the reference has been measured

        def click(head: int) -> None:
            page.locator(f"[data-place='3,{head}']").click()

        off, on = [], []
        for number in range(TOGGLES):
            off.append(meter.measure("pointerdown", lambda number=number: click(number)))  # type: ignore[misc]
            on.append(meter.measure("pointerdown", lambda number=number: click(number)))  # type: ignore[misc]
        rows += [row(f"off, {n_tokens} tokens", off[1:]), row(f"on again, {n_tokens} tokens", on[1:])]
    # Streamlit's page looks for its server below the page's own path first.
    page_errors[:] = [error for error in page_errors if "/ablate/_stcore/" not in error]
    tell(f"Ablate, {name}: a head beside one that is off already, zero and mean", rows, NOTES)
