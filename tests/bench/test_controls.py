"""Heads and Compare at 2,048 tokens: how fast each view control answers, against the run of the text itself.

A control is measured where it has the most to do: on a layer that has just been chosen, of which nothing is kept; then
back, where the page finds what it had made. Nothing is required in seconds, which are another machine's.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.bench.alone import N_TOKENS, SMOLLM2, long_text
from tests.bench.measure import mebibytes, processor_time, tell
from tests.bench.page_meter import PageMeter, Result, spread
from tests.browser.conftest import Servers

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

TIMES = 5
MOST_OF_THE_RUN = 1 / 8  # from click to painted, of the run's own seconds
MOST_OF_ITS_PROCESSOR_TIME = 1 / 10
MOST_HEAP = 200 * 2**20  # with the arrays outside the heap
SWITCHES = ("words", "hide special tokens", "hide first token", "log colour", "own range")
FOLDED = (
    "As a table: where each token looks most",
    "As a table: every head by every measure",
    "What averaging hides",
)
RUN_HAS_ENDED = """() => !document.querySelector("[data-testid=stProgress]") &&
    document.querySelector("[data-testid=stApp]").getAttribute("data-test-script-state") === "notRunning"
"""
NOTES = (
    f"Medians of {TIMES} (middle half). “answered”: from the click or key until the page had run again and all was "
    "painted. “of the run”: the same, as a share of the run of the text itself. “server”, “browser”: processor time of "
    "the server and of the process that draws the page. “first”: on a layer of which nothing is kept yet; “back”: what "
    "was seen before.",
)


@dataclass(frozen=True)
class Run:
    """The run of the text, in the page: from the text to all painted, and the server's processor time."""

    seconds: float
    processor: float


@dataclass
class Controls:
    """What was measured of each control, in the order in which it was first used."""

    meter: PageMeter
    server: int
    found: dict[str, list[Result]] = field(default_factory=dict)

    def click(self, what: str, place: Locator) -> None:
        """Measure one click."""
        place.scroll_into_view_if_needed()
        self.keep(what, self.meter.rerun("pointerdown", place.click, self.server))

    def press(self, what: str, key: str) -> None:
        """Measure one key."""
        self.keep(what, self.meter.rerun("keydown", lambda: self.meter.page.keyboard.press(key), self.server))

    def keep(self, what: str, result: Result) -> None:
        self.found.setdefault(what, []).append(result)

    def both_ways(self, what: str, there: Locator, back: Locator | None = None) -> None:
        """Measure a switch, and back."""
        self.click(f"{what}, first", there)
        self.click(f"{what}, back", there if back is None else back)

    def table(self, run: Run) -> list[dict[str, object]]:
        return [
            {
                "": what,
                "answered, s": spread(results, lambda r: r["answered"] / 1000).text(digits=2),
                "of the run": spread(results, lambda r: r["answered"] / 1000 / run.seconds).text(100, digits=1) + " %",
                "server, s": spread(results, lambda r: r["server"] / 1000).text(digits=2),
                "browser, s": spread(results, lambda r: r["browser"] / 1000).text(digits=2),
                "kB": f"{spread(results, lambda r: r['bytes'] / 1000).median:,.0f}",
            }
            for what, results in self.found.items()
        ]

    def medians(self, name: str) -> dict[str, float]:
        """Of every control, in seconds."""
        return {what: spread(results, lambda r: r[name] / 1000).median for what, results in self.found.items()}


def test_every_control_of_the_heads_page(serve: Servers, page: Page) -> None:
    controls, run = long_page(serve, page)
    for number in range(TIMES):
        choose_layer(controls, 2 + 5 * number)
        for switch in SWITCHES:
            controls.both_ways(switch, button(page, switch))
        controls.both_ways("value-weighted", button(page, "value-weighted"), button(page, "weights"))
        for way in ("text", "lines"):
            controls.both_ways(way, button(page, way), button(page, "matrix"))
        controls.both_ways("ring: spread", button(page, "spread"), button(page, "first token"))
        controls.both_ways("another head", head(page, 5), head(page, 0))
        ask_why(controls, number)
        for title in FOLDED:
            controls.both_ways(title, page.get_by_text(title, exact=True))
    heap = controls.meter.heap_bytes()
    tell_all("Heads", controls, run, heap)
    require(controls, run, heap)


@pytest.mark.usefixtures("forgive_probing")
def test_every_control_of_the_compare_page(serve: Servers, page: Page) -> None:
    controls, run = long_page(serve, page, "compare")
    panels = page.get_by_role("button", name="Duplicate")
    expect(panels).to_have_count(2)
    for number in range(TIMES):
        next_layer_of_a_panel(controls)
        for switch in SWITCHES:
            controls.both_ways(switch, button(page, switch))
        controls.click("swap two panels", page.get_by_role("button", name="Swap →").first)
        controls.both_ways("present", page.get_by_text("Present", exact=True))
        if number == 0:
            controls.click("a third panel", page.get_by_role("button", name="Add a panel"))
            controls.click("without it", page.get_by_role("button", name="Remove").last)
    heap = controls.meter.heap_bytes()
    tell_all("Compare", controls, run, heap)
    require(controls, run, heap)


# ---------------------------------------------------------------- what is done


def long_page(serve: Servers, page: Page, path: str = "") -> tuple[Controls, Run]:
    """A page with the long text on it, at a server of its own, and what the run of the text took."""
    url = serve("app.py", {"HEADSCOPE_BENCH": f"a server for {path or 'heads'}"})
    server = next(server.process.pid for server in serve.running.values() if server.url == url)
    meter = PageMeter(page)
    meter.open(url, path, model=SMOLLM2)
    before, began = processor_time(server), time.perf_counter()
    page.get_by_label("Sentence", exact=True).fill(long_text())
    expect(page.get_by_text("of at most 2,048")).to_contain_text(f"{N_TOKENS:,} tokens", timeout=60_000)
    page.get_by_test_id("stProgress").first.wait_for(timeout=60_000)
    page.wait_for_function(RUN_HAS_ENDED, timeout=300_000)
    run = Run(time.perf_counter() - began, processor_time(server) - before)
    meter.settle()
    return Controls(meter, server), run


def button(page: Page, name: str) -> Locator:
    """A switch or choice of the page, by what it says."""
    main = page.get_by_test_id("stMainBlockContainer")
    return main.get_by_role("radio", name=name, exact=True).or_(main.get_by_role("button", name=name, exact=True)).first


def head(page: Page, number: int) -> Locator:
    """A head of the layer, side by side with the others."""
    return page.locator(".st-key-layer_card").get_by_role("button", name=re.compile(rf"^H{number}\b")).first


def choose_layer(controls: Controls, layer: int) -> None:
    """Walk down the overview to a layer, and choose it."""
    page = controls.meter.page
    controls.meter.settle()
    page.locator(".hs-overview").focus()
    now = int(re.search(r"L(\d+)H", page.locator(".st-key-focus_card h3").inner_text())[1])  # type: ignore[index]
    for _ in range(layer - now):
        page.keyboard.press("ArrowDown")
    controls.press("another layer", "Enter")
    expect(page.locator(".st-key-focus_card h3")).to_contain_text(f"L{layer}H0")


def ask_why(controls: Controls, number: int) -> None:
    """A cell of the map, then other tokens from the lists; at last the dimensions away, which a cell opens."""
    page = controls.meter.page
    matrix = page.locator(".st-key-matrix canvas").first
    matrix.scroll_into_view_if_needed()
    box = matrix.bounding_box()
    assert box is not None
    place = box["x"] + (0.2 + 0.02 * number) * box["width"], box["y"] + 0.7 * box["height"]
    controls.keep("a cell", controls.meter.rerun("pointerdown", lambda: page.mouse.click(*place), controls.server))
    for label, token in (("From token (query)", 1900 + number), ("To token (key)", 300 + number)):
        box_of_list = page.get_by_role("combobox", name=label)
        box_of_list.click()
        box_of_list.fill(f"{token}:")
        page.wait_for_timeout(300)
        controls.press(label, "Enter")
    controls.click("dimensions away", page.get_by_text("Dimension by dimension", exact=True))


def next_layer_of_a_panel(controls: Controls) -> None:
    page = controls.meter.page
    page.get_by_role("button", name="Edit").first.click()
    slider = page.get_by_test_id("stPopoverBody").get_by_role("slider")
    slider.focus()
    controls.press("another layer in a panel", "ArrowRight")
    page.keyboard.press("Escape")


# ---------------------------------------------------------------- what is said and required


def tell_all(name: str, controls: Controls, run: Run, heap: tuple[float, float]) -> None:
    tell(f"{name} at {N_TOKENS:,} tokens, {SMOLLM2}: every control", controls.table(run), NOTES)
    rows = [
        {"": "the run of the text, to all painted", "value": f"{run.seconds:.1f} s"},
        {"": "the server's processor time for it", "value": f"{run.processor:.1f} s"},
        {"": "the page's JavaScript heap at the end", "value": mebibytes(heap[0])},
        {"": "its arrays outside the heap", "value": mebibytes(heap[1])},
    ]
    tell(f"{name} at {N_TOKENS:,} tokens, {SMOLLM2}", rows)


def require(controls: Controls, run: Run, heap: tuple[float, float]) -> None:
    """Shares of the run, and bytes."""
    for what, seconds in controls.medians("answered").items():
        assert seconds < MOST_OF_THE_RUN * run.seconds, f"{what} takes {seconds / run.seconds:.0%} of the text's run"
    for what, seconds in controls.medians("server").items():
        share = seconds / run.processor
        assert share < MOST_OF_ITS_PROCESSOR_TIME, f"{what} takes {share:.0%} of the run's processor time"
    assert sum(heap) < MOST_HEAP, f"the page holds {mebibytes(sum(heap))}"
