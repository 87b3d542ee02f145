"""One head's map, large and exact: values, cursor, zoom, the chosen cell.

What happens in the browser alone is tested in the offline file, without a server; what Python hears, in an app.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from mha_core import palette
from mha_core.view import View, light_difference, to_uint16
from tests.browser.viewer import (
    Open,
    Serve,
    long_map,
    map_box,
    near,
    open_app,
    pixel,
    point_at,
    sample,
    scale,
    spoken,
    tip,
)

pytestmark = pytest.mark.browser


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
