"""One head in three ways (matrix, text, lines), pictures to take away, and the file that opens offline.

What happens in the browser alone is tested in the offline file, without a server; what Python hears, in an app.
"""

from __future__ import annotations

import itertools
import re
import statistics
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from mha_core import palette
from mha_core.standalone import to_html
from mha_core.ui import components
from mha_core.view import View, light_difference, to_uint16, top_of_rows
from tests.browser.apps import synthetic

pytestmark = pytest.mark.browser

APP = "tests/browser/apps/viewer_app.py"
Serve = Callable[..., str]
Open = Callable[..., Page]
HEADS = 12
SENTENCE = synthetic.labels(14)
SVG = "{http://www.w3.org/2000/svg}"


def sample(kind: str, n: int = 14, n_keys: int = 0, *, causal: bool = False, **meta: Any) -> View:
    """A view of known numbers: 12 heads of a layer, or one head's map."""
    maps = synthetic.viewer_maps(1 if kind == "matrix" else HEADS, n, n_keys or n, causal=causal)
    labels = synthetic.labels(n)
    said = {
        "id": kind,
        "title": "L4H3" if kind == "matrix" else "Layer 4",
        "query_labels": labels,
        "key_labels": synthetic.target_labels(n_keys) if n_keys else labels,
        "titles": [f"L4H{head}" for head in range(HEADS)],
        "row_selected": 3,
        "query": 9,
        "causal": causal,
        **meta,
    }
    made = {"text": " ".join(labels), "model": "all-minilm-l6-v2", "layer": 4, "interventions": "nothing changed"}
    return View(kind, {"map": maps[0]} if kind == "matrix" else {"maps": maps}, said, made)


@pytest.fixture
def offline(new_page: Open, tmp_path: Path) -> Callable[..., Page]:
    """Open a view's own HTML file from the disk; anything it asks a network fails the test."""
    number = itertools.count()

    def open_view(view: View, title: str = "A view", **options: Any) -> Page:
        path = tmp_path / f"view-{next(number)}.html"
        path.write_text(to_html(view, title), encoding="utf-8")
        page = new_page(**{"viewport": {"width": 1100, "height": 900}, **options})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.locator(".hs-maps[data-painted]").wait_for()
        assert asked == [path.as_uri()]
        return page

    return open_view


def open_app(page: Page, serve: Serve, query: str) -> Page:
    page.goto(f"{serve(APP)}/?{query}")
    page.locator(".hs-maps[data-painted]").first.wait_for()
    expect(page.get_by_text("runs: 1", exact=True)).to_be_visible()
    return page


def tip(page: Page) -> Locator:
    return page.locator(".hs-tip[data-shown]")


def spoken(page: Page) -> Locator:
    return page.locator(".hs-sr[role=status]")


def scale(value: float, colours: list[str], low: float = 0, high: float = 1) -> tuple[int, int, int]:
    """The colour of a value on a linear scale: one of 256 steps along the palette."""
    level = round(255 * min(1, max(0, (value - low) / (high - low))))
    at = level / 255 * (len(colours) - 1)
    first = min(int(at), len(colours) - 2)
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours[first : first + 2]]
    red, green, blue = (round(a + (b - a) * (at - first)) for a, b in zip(*ends, strict=True))
    return red, green, blue


def near(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """The same colour, rounding of a half left to the browser."""
    return max(abs(x - y) for x, y in zip(a[:3], b[:3], strict=True)) <= 1


# ---------------------------------------------------------------- what Python believes


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """Mount a widget whose browser says something; gives what its listeners heard and what it returned."""

    def tell(widget: str, view: View, event: str, value: object) -> list[object]:
        heard: list[object] = []
        listeners = {"matrix": ["on_cell"], "text": ["on_select", "on_query"], "lines": ["on_select"]}[widget]
        said = {event: value}

        def mount(**given: Any) -> dict[str, object]:
            for listener in (name for name in given if name == f"on_{event}_change"):  # the mark says nothing
                given[listener]()
            return said

        monkeypatch.setattr(components, "_component", lambda name: mount)
        monkeypatch.setattr(components.st, "session_state", {"w": said})
        call = {name: lambda *heard_values: heard.append(heard_values) for name in listeners}
        heard.append(getattr(components, widget)(view, key="w", **call))
        return heard

    return tell


@pytest.mark.parametrize(
    ("widget", "event", "value", "heard"),
    [
        ("matrix", "cell", {"query": 7, "key": 2}, [(7, 2), (7, 2)]),
        ("matrix", "cell", {"query": 7, "key": 14}, [None]),
        ("matrix", "cell", {"query": True, "key": 0}, [None]),
        ("matrix", "cell", {"query": "7", "key": 2}, [None]),
        ("matrix", "cell", None, [None]),
        ("text", "select", {"head": 11}, [(11,), 11]),
        ("text", "select", {"head": 12}, [None]),
        ("text", "query", {"query": 13}, [(13,), None]),
        ("text", "query", {"query": None}, [(None,), None]),
        ("text", "query", {"query": 14}, [None]),
        ("text", "query", {"query": -1}, [None]),
        ("text", "query", {}, [None]),
        ("lines", "select", {"head": 0}, [(0,), 0]),
        ("lines", "select", {"head": 0.5}, [None]),
    ],
)
def test_only_places_that_exist_are_believed(
    told: Callable[..., list[object]], widget: str, event: str, value: object, heard: list[object]
) -> None:
    assert told(widget, sample(widget), event, value) == heard


@pytest.mark.parametrize(
    ("widget", "view", "message"),
    [
        ("matrix", View("text", {}), "draws views of kind 'matrix'"),
        ("matrix", View("matrix", {"map": np.zeros((2, 3, 3))}), r"map \[query, key\]"),
        ("text", View("text", {"maps": np.zeros((3, 3))}), r"needs maps \[head, query, key\]"),
        ("text", View("text", {"top_values": np.zeros((1, 3, 2))}), "top_values and top_keys of one shape"),
        ("lines", View("lines", {}), "it has neither"),
    ],
)
def test_views_that_do_not_fit_are_refused_in_a_sentence(widget: str, view: View, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(components, widget)(view, key="w")


# ---------------------------------------------------------------- text


def token(page: Page, row: int, i: int) -> Locator:
    return page.locator(".hs-rows .hs-row").nth(row).locator(".hs-token").nth(i)


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


def text_state(page: Page, *, query: int, locked: int | None = None) -> None:
    box = page.locator(".hs-text")
    expect(box).to_have_attribute("data-query", str(query))
    expect(box).to_have_attribute("data-locked", "" if locked is None else str(locked))


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


# ---------------------------------------------------------------- matrix


def map_box(page: Page, which: int = 0) -> tuple[float, float, float, float]:
    """Where on the page the map itself is: left, top, width, height."""
    box = page.locator(".hs-matrix").nth(which)
    box.scroll_into_view_if_needed()
    outer = box.bounding_box()
    assert outer is not None
    left, top, width, height = map(float, (box.get_attribute("data-map") or "").split())
    return outer["x"] + left, outer["y"] + top, width, height


def point_at(page: Page, query: int, key: int, rows: int, columns: int, which: int = 0) -> tuple[float, float]:
    """Move to the middle of a cell of an unzoomed map."""
    left, top, width, height = map_box(page, which)
    place = left + (key + 0.5) * width / columns, top + (query + 0.5) * height / rows
    page.mouse.move(*place)
    return place


def pixel(page: Page, x: float, y: float) -> tuple[int, ...]:
    """The map's own colour at a point of the page, without what is drawn over it."""
    found: list[int] = page.locator(".hs-matrix canvas").first.evaluate(
        """(canvas, [x, y]) => {
            const box = canvas.getBoundingClientRect();
            const ratio = canvas.width / box.width;
            return [...canvas.getContext("2d").getImageData((x - box.left) * ratio, (y - box.top) * ratio, 1, 1).data];
        }""",
        [x, y],
    )
    return tuple(found)


def test_the_matrix_says_exact_values_and_hostile_labels_stay_text(offline: Callable[..., Page]) -> None:
    view = sample("matrix")
    page = offline(view)
    point_at(page, 7, 2, 14, 14)
    expect(tip(page)).to_have_text("“report” (7) → “engineer” (2)  0.1234")
    point_at(page, 7, 5, 14, 14)
    expect(tip(page)).to_contain_text("“<img src=x onerror=alert(1)>” (5)")
    expect(page.locator("img")).to_have_count(0)
    small = view.arrays["map"].copy()
    small[3, 3] = 1.23e-5
    page = offline(View("matrix", {"map": small}, view.meta))
    point_at(page, 3, 3, 14, 14)
    expect(tip(page)).to_have_text("“handed” (3) → “handed” (3)  1.2e-5")


def test_the_cursor_walks_by_keyboard_and_is_announced(offline: Callable[..., Page]) -> None:
    page = offline(sample("matrix"))
    page.get_by_role("application", name="Attention map, 14 queries by 14 keys").focus()
    for key in ("ArrowRight", "ArrowRight", *["ArrowDown"] * 7):
        page.keyboard.press(key)
    expect(spoken(page)).to_have_text("query 7 report, key 2 engineer, 0.1234")
    page.keyboard.press("Shift+ArrowRight")
    expect(spoken(page)).to_contain_text("query 7 report, key 12 .,")
    page.keyboard.press("Home")
    expect(spoken(page)).to_contain_text("query 7 report, key 0 [CLS],")
    page.keyboard.press("Control+End")
    expect(spoken(page)).to_contain_text("query 13 [SEP], key 13 [SEP],")
    for _ in range(4):
        page.keyboard.press("+")
    box = page.locator(".hs-matrix")
    expect(box).to_have_attribute("data-zoomed", "true")
    page.keyboard.press("Control+Home")
    expect(spoken(page)).to_contain_text("query 0 [CLS], key 0 [CLS],")
    page.keyboard.press("0")
    expect(box).to_have_attribute("data-zoomed", "false")


def long_map(n: int = 2048) -> np.ndarray:
    """[query, key]: nearly nothing, one strong weight in between."""
    array = np.full((n, n), 2e-4, np.float32)
    array[1500 % n, 700 % n] = 0.91239
    return array


@pytest.mark.parametrize(("narrow", "causal"), [(False, False), (False, True), (True, False), (True, True)])
def test_2048_tokens_show_every_peak_and_zoom_to_exact_cells(
    offline: Callable[..., Page], narrow: bool, causal: bool
) -> None:
    array = np.tril(long_map()) if causal else long_map()
    labels = [f"t{i}" for i in range(2048)]
    meta = {"query_labels": labels, "key_labels": labels, "scale_to": 1, "causal": causal}
    page = offline(View("matrix", {"map": to_uint16(array) if narrow else array}, meta))
    expect(page.locator(".hs-where")).to_contain_text("each point the maximum of 4×4 cells")
    colours = palette.sequential("light")
    x, y = point_at(page, 1500, 700, 2048, 2048)
    around = itertools.product((-1, 0, 1), repeat=2)  # a point of the picture is not centred on its cells
    assert any(near(pixel(page, x + dx, y + dy), scale(0.91239, colours)) for dx, dy in around)  # one of 4.2 million
    page.keyboard.down("Control")
    for _ in range(12):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    box = page.locator(".hs-matrix")
    expect(box).to_have_attribute("data-block", "1")
    page.wait_for_function("zoom => Number(document.querySelector('.hs-matrix').dataset.zoom) > zoom", arg=100)
    page.mouse.move(x + 0.4, y)
    expect(tip(page)).to_have_text("“t1500” (1500) → “t700” (700)  0.9124")
    assert near(pixel(page, x, y), scale(0.91239, colours))
    cell = float(box.get_attribute("data-zoom") or "1") * map_box(page)[2] / 2048
    page.mouse.move(x + cell, y)
    neighbour = "2.0e-4 ± 8e-6" if narrow else "2.0e-4"
    expect(tip(page)).to_have_text(f"“t1500” (1500) → “t701” (701)  {neighbour}")
    assert near(pixel(page, x + cell, y), scale(2e-4, colours))
    before = box.get_attribute("data-zoom")
    page.mouse.down()  # drag by three cells to the left
    page.mouse.move(x + cell - 10, y, steps=3)
    page.mouse.move(x - 2 * cell, y, steps=3)
    page.mouse.up()
    expect(box).to_have_attribute("data-zoom", before or "")
    page.mouse.move(x - 3 * cell + 0.4, y)
    expect(tip(page)).to_contain_text("“t1500” (1500) → “t700” (700)  0.9124")
    page.get_by_role("button", name="Show the whole map").click()
    expect(box).to_have_attribute("data-zoomed", "false")


def test_zooming_and_panning_2048_tokens_takes_less_than_a_frame(offline: Callable[..., Page]) -> None:
    page = offline(View("matrix", {"map": to_uint16(long_map())}, {"scale": "log", "scale_to": 1}))
    left, top, width, height = map_box(page)
    times: list[float] = page.evaluate(
        """async ([x, y]) => {
            const box = document.querySelector(".hs-matrix");
            const frame = () => new Promise((done) => requestAnimationFrame(done));
            const times = [];
            const fire = (type, more) => box.dispatchEvent(new (type === "wheel" ? WheelEvent : PointerEvent)(
                type, { clientX: x, clientY: y, bubbles: true, cancelable: true, pointerId: 1, ...more }));
            for (let i = 0; i < 40; i++) {
                fire("wheel", { deltaY: i < 30 ? -18 : 18, ctrlKey: true });
                await frame();
                await frame();
                times.push(Number(box.dataset.milliseconds));
            }
            return times;
        }""",
        [left + width * 0.5, top + height * 0.6],
    )
    # each level of detail is coloured once, when it is first needed; every other frame only copies
    assert statistics.median(times) < 8, times
    assert sorted(times)[int(len(times) * 0.85)] < 16, times


def test_double_click_buttons_and_the_small_map_move_the_window(offline: Callable[..., Page]) -> None:
    page = offline(View("matrix", {"map": long_map(200)}, {}))
    box = page.locator(".hs-matrix")
    left, top, width, height = map_box(page)
    page.mouse.dblclick(left + width * 0.25, top + height * 0.25)
    expect(box).to_have_attribute("data-zoom", "2.500")
    page.get_by_role("button", name="Zoom in").click()
    expect(box).to_have_attribute("data-zoom", "4.000")
    note = page.locator(".hs-where")
    expect(note).to_contain_text("showing queries")
    size = min(96, width / 3.2)
    page.mouse.click(left + width - 8 - size / 8, top + 8 + size * 7 / 8)  # the small map's lower right
    expect(note).to_contain_text("queries 150–199, keys 150–199")
    page.get_by_role("button", name="Zoom out").click()
    expect(box).to_have_attribute("data-zoom", "2.500")


def test_two_fingers_zoom_and_one_tap_chooses(new_page: Open, serve: Serve) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True)
    open_app(page, serve, "kind=matrix")
    left, top, width, height = map_box(page)
    page.touchscreen.tap(left + 2.5 * width / 14, top + 7.5 * height / 14)
    expect(page.get_by_text("cell: (7, 2)", exact=True)).to_be_visible()
    expect(tip(page)).to_contain_text("0.1234")
    session = page.context.new_cdp_session(page)
    middle = left + width / 2, top + height / 2

    def touch(kind: str, spread: float) -> None:
        points = [{"x": middle[0] + side * spread, "y": middle[1], "id": i} for i, side in enumerate((-1, 1))]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [] if kind == "touchEnd" else points})

    touch("touchStart", 30)
    for spread in (40, 50, 60):
        touch("touchMove", spread)
    touch("touchEnd", 0)
    zoom = float(page.locator(".hs-matrix").get_attribute("data-zoom") or "1")
    assert 1.5 < zoom < 2.5


def test_the_future_is_blank_and_missing_values_too(offline: Callable[..., Page]) -> None:
    view = sample("matrix", causal=True)
    array = view.arrays["map"].copy()
    array[9, 1] = np.nan
    page = offline(View("matrix", {"map": array}, view.meta))
    x, y = point_at(page, 2, 9, 14, 14)
    expect(tip(page)).to_have_text("“engineer” (2) → “she” (9)  0.0000 · the future, closed")
    assert pixel(page, x - 15, y)[3] == 0
    x, y = point_at(page, 9, 1, 14, 14)
    expect(tip(page)).to_contain_text("–")
    assert pixel(page, x - 15, y)[3] == 0


def test_differences_have_two_colours_around_zero(offline: Callable[..., Page]) -> None:
    array = np.zeros((10, 10), np.float32)
    array[2, 3], array[3, 2] = 0.4, -0.2
    page = offline(View("matrix", {"map": array}, {"diverging": True, "range": [-0.1, 0.4]}))
    colours = palette.diverging("light")
    for (query, key), value in {(2, 3): 0.4, (3, 2): -0.2, (5, 5): 0.0}.items():
        x, y = point_at(page, query, key, 10, 10)
        assert near(pixel(page, x - 20, y - 15), scale(value, colours, -0.4, 0.4))
    point_at(page, 2, 3, 10, 10)
    expect(tip(page)).to_contain_text("+0.4000")
    expect(page.locator(".hs-num")).to_have_text(["-0.4", "+0.4"])


def test_a_cell_is_chosen_by_click_and_by_enter(page: Page, serve: Serve) -> None:
    open_app(page, serve, "kind=matrix")
    place = point_at(page, 7, 2, 14, 14)
    page.mouse.dblclick(*place)  # one choice, and a zoom
    expect(page.get_by_text("cell: (7, 2)", exact=True)).to_be_visible()
    expect(page.get_by_text("runs: 2", exact=True)).to_be_visible()
    page.locator(".hs-matrix").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.get_by_text("cell: (6, 2)", exact=True)).to_be_visible()


def test_the_chosen_cell_comes_from_python_without_its_map(page: Page, serve: Serve) -> None:
    open_app(page, serve, "kind=matrix")
    box, drawn = page.locator(".hs-matrix"), page.locator(".hs-maps[data-painted]")
    expect(box).not_to_have_attribute("data-chosen", re.compile("."))
    page.mouse.click(*point_at(page, 7, 2, 14, 14))
    expect(box).to_have_attribute("data-chosen", "7 2")
    painted = drawn.get_attribute("data-painted") or ""
    page.get_by_role("button", name="another cell").click()
    expect(box).to_have_attribute("data-chosen", "3 9")
    page.get_by_role("button", name="no cell").click()
    expect(box).not_to_have_attribute("data-chosen", re.compile("."))
    expect(drawn).to_have_attribute("data-painted", painted)


def test_small_weights_of_a_long_map_arrive_as_they_were(offline: Callable[..., Page]) -> None:
    steps = to_uint16(np.random.default_rng(6).random((600, 600), dtype=np.float32) ** 40)
    steps[0, :3] = 254, 255, 40_000
    steps[1, :3] = 0, 65_535, 1
    for causal in (False, True):
        array = np.tril(steps) if causal else steps
        page = offline(View("matrix", {"map": array}, {"causal": causal}))
        page.locator(".hs-matrix").focus()
        keys = ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft")
        for key, cell in zip(keys, ((1, 0), (1, 1), (1, 2), (0, 2), (0, 1)), strict=True):
            page.keyboard.press(key)
            value = array[cell] / 65535
            expect(spoken(page)).to_contain_text(f"{value:.4f}" if value > 1e-3 or not value else "1.5e-5")


def test_small_differences_of_a_long_map_arrive_as_they_were(offline: Callable[..., Page]) -> None:
    array = np.tril((np.random.default_rng(7).random((600, 600), dtype=np.float32) - np.float32(0.5)) ** 21)
    array[1:3, :3] = (0.25, -0.0625, 0), (-0.5, 0, 0.001)
    view = light_difference(View("matrix", {"map": array}, {"range": [-0.5, 0.5], "diverging": True, "causal": True}))
    assert len(view.pack()) < array.nbytes / 7
    page = offline(view)
    page.locator(".hs-matrix").focus()
    keys = ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowRight", "ArrowRight")
    said = ("+0.2500", "-0.0625", "0.0000", "-0.5000", "0.0000", "+0.0010")
    for key, number in zip(keys, said, strict=True):
        page.keyboard.press(key)
        expect(spoken(page)).to_contain_text(f", {number}")


def test_where_nobody_listens_a_click_asks_no_server(page: Page, serve: Serve) -> None:
    open_app(page, serve, "kind=matrix&silent=1")
    page.mouse.click(*point_at(page, 7, 2, 14, 14))
    page.wait_for_timeout(600)
    expect(page.get_by_text("runs: 1", exact=True)).to_be_visible()


def test_views_of_one_group_mark_the_same_cell(page: Page, serve: Serve) -> None:
    open_app(page, serve, "kind=matrix&pair=1&silent=1")
    page.locator(".hs-maps[data-view='second']").wait_for()
    ink = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((x) => x > 0)"
    over = page.locator(".hs-matrix .hs-over")
    point_at(page, 3, 4, 14, 14)
    expect(tip(page)).to_have_count(1)
    assert over.nth(1).evaluate(ink)
    page.mouse.move(2, 2)
    expect(tip(page)).to_have_count(0)
    assert not over.nth(1).evaluate(ink)


# ---------------------------------------------------------------- lines


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


# ---------------------------------------------------------------- pictures


def overview_sample() -> View:
    maps = synthetic.model(3, 4, 8)
    meta = {"selected": [1, 2], "off": [[0, 1]], "values_label": "first token"}
    return View("overview", {"maps": maps, "values": maps[..., 0].mean(-1)}, meta, {"model": "m"})


def layer_sample() -> View:
    view = sample("text")
    meta = {**view.meta, "titles": ["H0", synthetic.HOSTILE], "selected_head": 3}
    return View("layer", view.arrays, meta, view.provenance)


PICTURES: Mapping[str, tuple[Callable[[], View], str]] = {
    "overview": (overview_sample, "headscope_m_all-12-heads_overview"),
    "layer": (layer_sample, "headscope_all-minilm-l6-v2_layer-4_layer"),
    "matrix": (lambda: sample("matrix", cell=[7, 2]), "headscope_all-minilm-l6-v2_L4H3_matrix"),
    "text": (lambda: sample("text"), "headscope_all-minilm-l6-v2_layer-4_text"),
    "lines": (lambda: sample("lines"), "headscope_all-minilm-l6-v2_layer-4_lines"),
}


def png_rows(data: bytes) -> tuple[int, int, Iterator[bytes]]:
    """Width, height and the raw (filtered) rows of a PNG picture."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    at, packed = 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    raw = zlib.decompress(packed)
    stride = 1 + width * {2: 3, 6: 4}[kind] * depth // 8
    return width, height, (raw[i * stride : (i + 1) * stride] for i in range(height))


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_are_crisp_named_and_say_what_made_them(offline: Callable[..., Page], kind: str) -> None:
    make, name = PICTURES[kind]
    page = offline(make(), "Page")
    shown = page.locator(".hs-stage").bounding_box()
    assert shown is not None
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save this view as a PNG picture").click()
    assert waiting.value.suggested_filename == f"{name}.png"
    width, height, rows = png_rows(waiting.value.path().read_bytes())
    assert width >= 900
    assert height >= 2 * min(shown["height"], 200)
    assert len({bytes(row) for row in rows}) > 100
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save this view as an SVG picture").click()
    assert waiting.value.suggested_filename == f"{name}.svg"
    picture = ElementTree.fromstring(waiting.value.path().read_text(encoding="utf-8"))
    words = ["".join(one.itertext()) for one in picture.iter(f"{SVG}text")]
    model = make().provenance["model"]
    assert any(one.startswith(f"model {model}") for one in words)
    assert any("attention weight" in one for one in words)
    assert len(list(picture.iter(f"{SVG}script"))) == 0
    if kind in ("matrix", "layer", "overview"):
        assert len(list(picture.iter(f"{SVG}image"))) >= 2
    if kind == "lines":
        assert len(list(picture.iter(f"{SVG}path"))) > 100
        assert "engineer" in words


def test_a_zoomed_map_s_picture_says_which_part_it_is(offline: Callable[..., Page]) -> None:
    page = offline(View("matrix", {"map": long_map(200)}, {"title": "part"}))
    page.get_by_role("button", name="Zoom in").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save this view as an SVG picture").click()
    words = waiting.value.path().read_text(encoding="utf-8")
    assert re.search(r"showing queries \d+–\d+, keys \d+–\d+ of 200 × 200", words)


# ---------------------------------------------------------------- everywhere


@pytest.mark.parametrize("kind", PICTURES)
def test_every_view_fits_a_phone_and_follows_the_theme(offline: Callable[..., Page], kind: str) -> None:
    page = offline(
        PICTURES[kind][0](), "A title <b>that</b> is text", viewport={"width": 390, "height": 844}, color_scheme="light"
    )
    root = page.locator(".hs-maps")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(root).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="dark")
    expect(root).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("heading", level=1)).to_have_text("A title <b>that</b> is text")


def test_nothing_in_a_text_breaks_out_of_the_offline_file(offline: Callable[..., Page]) -> None:
    nasty = ["</script><script>window.broken = 1</script>", "<!--<script>", "&amp;\u2028'\"", "\ud83d", "\x00\x07"]
    labels = (nasty * 3)[:14]
    view = sample("text")
    meta = {**view.meta, "query_labels": labels, "key_labels": labels}
    view = View("text", view.arrays, meta, {"text": " ".join(nasty)})
    page = offline(view, nasty[0])
    assert page.evaluate("window.broken") is None
    assert page.title() == nasty[0]
    assert token(page, 0, 0).text_content() == nasty[0]
    assert token(page, 0, 2).text_content() == nasty[2]
    expect(page.locator("dd").first).to_contain_text("</script><script>window.broken = 1</script> <!--<script>")
    token(page, 0, 1).hover()
    text_state(page, query=1)
