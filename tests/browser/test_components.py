"""The canvas components in a real browser: what a person does, and what Python hears of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from mha_core.ui.components import GridRecord, reconcile

pytestmark = pytest.mark.browser

APPS = "tests/browser/apps"
MEASURE_TOPS = "all => all.map((one) => Math.round(one.getBoundingClientRect().top))"
NAMES = [f"L{layer}H{head}" for layer in range(2) for head in range(3)]
Serve = Callable[..., str]


# ---------------------------------------------------------------- who is right, the browser or Python?


def test_the_first_run_believes_the_page_and_drops_unknown_names() -> None:
    record = reconcile(None, ["L1H2", "nonsense", "L0H0", "L0H0"], {"heads": ["L0H1"], "seq": 9, "rev": "x"}, NAMES)
    assert record.off == ("L0H0", "L1H2")
    assert record.seq == 0


def test_a_newer_message_wins_while_the_page_still_asks_for_the_old_list() -> None:
    record = reconcile(GridRecord((), "a", 0), [], {"heads": ["L1H0"], "seq": 1, "rev": "a"}, NAMES)
    assert record == GridRecord(("L1H0",), "a", 1)


def test_a_message_is_read_once() -> None:
    held = GridRecord(("L1H0",), "a", 1)
    cleared = reconcile(held, [], {"heads": ["L1H0"], "seq": 1, "rev": "a"}, NAMES)
    assert cleared.off == ()
    assert cleared.rev != "a"


def test_what_the_page_sets_outlives_messages_about_the_list_before() -> None:
    held = GridRecord((), "b", 0)
    assert reconcile(held, [], {"heads": ["L1H0"], "seq": 7, "rev": "a"}, NAMES) == held
    both = reconcile(GridRecord((), "a", 0), ["L0H2"], {"heads": ["L1H0"], "seq": 1, "rev": "a"}, NAMES)
    assert both.off == ("L0H2",)


@pytest.mark.parametrize(
    "message",
    [
        None, "off", {}, {"heads": "L0H0", "seq": 1, "rev": "a"}, {"heads": ["L0H0"], "seq": "1", "rev": "a"},
        {"heads": ["L0H0"], "seq": True, "rev": "a"}, {"heads": [{}, 3, None, "L9H9"], "seq": 1, "rev": "a"},
    ],
)  # fmt: skip
def test_nonsense_from_a_browser_switches_nothing_off(message: object) -> None:
    assert reconcile(GridRecord((), "a", 0), [], message, NAMES).off == ()


# ---------------------------------------------------------------- switching heads off


@pytest.fixture
def grid(page: Page, serve: Serve) -> Page:
    """A page with a grid of 4 layers and 6 heads, two query heads to a KV head, L0H1 off."""
    return open_grid(page, serve)


def open_grid(page: Page, serve: Serve, query: str = "") -> Page:
    page.goto(f"{serve(f'{APPS}/grid_app.py')}/{query}")
    page.locator(".hg[data-ready]").wait_for()
    return page


def cell(page: Page, name: str) -> Locator:
    layer, head = name[1:].split("H")
    return page.locator(f"[data-place='{layer},{head}']")


def expect_off(page: Page, *names: str) -> None:
    """These heads and no others, in the browser and in Python."""
    expect(page.get_by_text(f"off: {','.join(names) or 'none'}", exact=True)).to_be_visible()
    pressed = page.locator("[data-place][aria-pressed=true]")
    expect(pressed).to_have_count(len(names))
    for name in names:
        expect(cell(page, name)).to_have_attribute("aria-pressed", "true")
        expect(cell(page, name)).to_have_attribute("aria-label", f"{name}, off")


def test_a_click_switches_off_and_on(grid: Page) -> None:
    expect_off(grid, "L0H1")
    cell(grid, "L3H5").click()
    expect_off(grid, "L0H1", "L3H5")
    expect(grid.locator(".hg-text")).to_have_text("2 off: L0H1, L3H5")
    cell(grid, "L0H1").click()
    expect_off(grid, "L3H5")
    grid.get_by_role("button", name="all on").click()
    expect_off(grid)
    expect(grid.locator(".hg-text")).to_have_text("all heads on")


def test_the_browser_answers_before_python_does(page: Page, serve: Serve) -> None:
    open_grid(page, serve, "?slow=1")
    cell(page, "L1H0").click()
    expect(cell(page, "L1H0")).to_have_attribute("aria-pressed", "true", timeout=300)
    expect_off(page, "L0H1", "L1H0")


def test_a_drag_paints_one_state_and_sends_one_message(grid: Page) -> None:
    cell(grid, "L1H0").hover()
    grid.mouse.down()
    cell(grid, "L1H4").hover()  # one jump: the heads between are painted too
    cell(grid, "L2H4").hover()
    grid.mouse.up()
    expect_off(grid, "L0H1", "L1H0", "L1H1", "L1H2", "L1H3", "L1H4", "L2H4")
    expect(grid.get_by_text("runs: 2", exact=True)).to_be_visible()


def test_a_drag_that_starts_on_an_off_head_switches_on(grid: Page) -> None:
    cell(grid, "L0H1").hover()
    grid.mouse.down()
    cell(grid, "L0H3").hover()
    grid.mouse.up()
    expect_off(grid)


def test_escape_during_a_drag_takes_it_back(grid: Page) -> None:
    cell(grid, "L2H0").hover()
    grid.mouse.down()
    cell(grid, "L2H3").hover()
    grid.keyboard.press("Escape")
    grid.mouse.up()
    expect_off(grid, "L0H1")


def test_shift_click_takes_the_rectangle_from_the_last_head(grid: Page) -> None:
    cell(grid, "L1H1").click()
    cell(grid, "L2H3").click(modifiers=["Shift"])
    expect_off(grid, "L0H1", "L1H1", "L1H2", "L1H3", "L2H1", "L2H2", "L2H3")


def test_alt_click_takes_the_kv_group_of_that_layer(grid: Page) -> None:
    cell(grid, "L2H3").click(modifiers=["Alt"])
    expect_off(grid, "L0H1", "L2H2", "L2H3")


def test_headers_switch_layers_heads_and_kv_groups(grid: Page) -> None:
    grid.get_by_role("button", name="Switch all heads of L3").click()
    expect_off(grid, "L0H1", *(f"L3H{head}" for head in range(6)))
    grid.get_by_role("button", name="Switch all heads of L3").click()
    grid.get_by_role("button", name="Switch H1 in every layer").click()
    expect_off(grid, *(f"L{layer}H1" for layer in range(4)))
    grid.get_by_role("button", name="Switch H1 in every layer").click()
    grid.get_by_role("button", name="KV2").click()
    expect_off(grid, *(f"L{layer}H{head}" for layer in range(4) for head in (4, 5)))
    expect(grid.locator(".hg-text")).to_have_text("8 off: L0H4, L0H5, L1H4, L1H5, L2H4, L2H5 and +2 more")


def test_the_keyboard_does_it_all(grid: Page) -> None:
    expect(grid.locator("[data-place][tabindex='0']")).to_have_count(1)
    cell(grid, "L0H0").focus()
    grid.keyboard.press("ArrowDown")
    grid.keyboard.press("ArrowRight")
    grid.keyboard.press("Space")
    expect_off(grid, "L0H1", "L1H1")
    grid.keyboard.press("Enter")
    expect_off(grid, "L0H1")
    grid.keyboard.press("End")
    expect(cell(grid, "L1H5")).to_be_focused()
    grid.keyboard.press("g")
    expect_off(grid, "L0H1", "L1H4", "L1H5")
    grid.keyboard.press("l")
    expect_off(grid, "L0H1", *(f"L1H{head}" for head in range(6)))
    grid.keyboard.press("l")
    grid.keyboard.press("Home")
    grid.keyboard.press("ArrowLeft")
    expect(grid.locator("[data-place='1,-1']")).to_be_focused()
    grid.keyboard.press("Escape")
    expect_off(grid, "L0H1")
    expect(grid.locator("[data-place][tabindex='0']")).to_have_count(1)


def test_the_keyboard_reaches_every_kv_header(grid: Page) -> None:
    cell(grid, "L0H0").focus()
    for key in ("ArrowUp", "ArrowUp"):
        grid.keyboard.press(key)
    for place in ("-2,0", "-2,2", "-2,4", "-2,4"):
        expect(grid.locator(f"[data-place='{place}']")).to_be_focused()
        grid.keyboard.press("ArrowRight")
    for place in ("-2,4", "-2,2", "-2,0", "-2,0"):
        expect(grid.locator(f"[data-place='{place}']")).to_be_focused()
        grid.keyboard.press("ArrowLeft")
    grid.keyboard.press("ArrowDown")
    expect(grid.locator("[data-place='-1,0']")).to_be_focused()


def test_a_burst_of_keys_is_one_message(grid: Page) -> None:
    cell(grid, "L3H0").focus()
    for _ in range(4):
        grid.keyboard.press("Space")
        grid.keyboard.press("ArrowRight")
    expect_off(grid, "L0H1", "L3H0", "L3H1", "L3H2", "L3H3")
    expect(grid.get_by_text("runs: 2", exact=True)).to_be_visible()


def test_the_page_can_set_the_grid_right_after_a_click(grid: Page) -> None:
    cell(grid, "L3H3").click()
    expect_off(grid, "L0H1", "L3H3")
    grid.get_by_role("button", name="preset").click()
    expect_off(grid, "L2H2", "L2H3")
    cell(grid, "L0H0").click()
    expect_off(grid, "L0H0", "L2H2", "L2H3")
    grid.get_by_role("button", name="preset").click()
    expect_off(grid, "L2H2", "L2H3")


def test_an_older_echo_never_undoes_a_newer_click(page: Page, serve: Serve) -> None:
    open_grid(page, serve, "?slow=0.7")
    page.evaluate(
        """() => {
            const grid = (function find(node) {
                if (node.querySelector && node.querySelector(".hg-grid")) return node.querySelector(".hg-grid");
                for (const element of node.querySelectorAll("*")) {
                    const found = element.shadowRoot && find(element.shadowRoot);
                    if (found) return found;
                }
            })(document);
            window.released = [];
            new MutationObserver((records) => records.forEach(({ target }) => {
                if (target.getAttribute("aria-pressed") === "false") window.released.push(target.dataset.place);
            })).observe(grid, { subtree: true, attributes: true, attributeFilter: ["aria-pressed"] });
        }"""
    )
    for head in range(5):  # each click arrives while Python is still busy with the one before
        cell(page, f"L2H{head}").click()
        page.wait_for_timeout(300)
    expect_off(page, "L0H1", *(f"L2H{head}" for head in range(5)))
    assert page.evaluate("window.released") == []


def test_a_disabled_grid_does_nothing(page: Page, serve: Serve) -> None:
    open_grid(page, serve, "?disabled=1")
    expect(cell(page, "L1H1")).to_have_attribute("aria-disabled", "true")
    cell(page, "L1H1").click(force=True)
    cell(page, "L1H1").focus()
    page.keyboard.press("Space")
    page.keyboard.press("l")
    page.wait_for_timeout(400)
    expect_off(page, "L0H1")
    expect(page.get_by_text("runs: 1", exact=True)).to_be_visible()


def test_the_tooltip_says_head_and_measure(grid: Page) -> None:
    cell(grid, "L1H2").hover()
    expect(grid.locator(".hg-tip[data-shown]")).to_have_text("L1H2 · KL 8.25")
    cell(grid, "L0H1").hover()
    expect(grid.locator(".hg-tip[data-shown]")).to_have_text("L0H1 · KL 1.25 · off")


@pytest.mark.parametrize(("layers", "heads", "group"), [(6, 12, 1), (30, 9, 3), (24, 16, 4)])
def test_grids_of_real_models_fit_a_phone(
    new_page: Callable[..., Page], serve: Serve, layers: int, heads: int, group: int
) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True)
    open_grid(page, serve, f"?layers={layers}&heads={heads}&group={group}")
    expect(page.locator(".hg-cell")).to_have_count(layers * heads)
    overflow = page.locator(".hg-scroll").evaluate("element => element.scrollWidth - element.clientWidth")
    assert overflow <= 0
    last = page.locator(f"[data-place='{layers - 1},{heads - 1}']")
    last.tap()
    expect(last).to_have_attribute("aria-pressed", "true")


# ---------------------------------------------------------------- looking at maps


def open_maps(page: Page, serve: Serve, query: str = "") -> Page:
    page.goto(f"{serve(f'{APPS}/maps_app.py')}/{query}")
    page.locator(".hs-maps[data-view='overview']").wait_for()
    page.locator(".hs-maps[data-view='layer-1']").wait_for()
    page.evaluate("document.fonts.ready")
    return page


def point_at(page: Page, panel: int, query: int, key: int, n: int) -> None:
    """Move to the middle of a cell; the map is the canvas without the labels at its left, top and bottom."""
    canvas = page.locator(".hs-panel canvas").nth(panel)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    left, top, size = canvas.evaluate(
        """(canvas) => {
            // the outline of the map is measured by marking its first cell: nothing of the layout is repeated here
            const box = canvas.getBoundingClientRect();
            const fire = (x, y) => canvas.dispatchEvent(new PointerEvent(
                "pointermove", { bubbles: true, composed: true, clientX: x, clientY: y }));
            fire(box.left + box.width * 0.7, box.top + box.height * 0.4);
            const [row, column] = canvas.parentElement.querySelectorAll(".hs-band");
            const left = parseFloat(row.style.left);
            return [left, parseFloat(column.style.top), parseFloat(row.style.width)];
        }"""
    )
    page.mouse.move(box["x"] + left + (key + 0.5) * size / n, box["y"] + top + (query + 0.5) * size / n)


def tip(page: Page) -> Locator:
    return page.locator(".hs-tip[data-shown]")


def test_the_tooltip_is_exact_and_hostile_labels_stay_text(page: Page, serve: Serve) -> None:
    open_maps(page, serve)
    page.on("dialog", lambda dialog: pytest.fail(f"a label ran as a script: {dialog.message}"))
    point_at(page, 0, 3, 4, 8)
    expect(tip(page)).to_be_visible()
    assert tip(page).text_content() == "“she” → “<img src=x onerror=alert(1)>”  0.1234"
    expect(page.locator(".hs-maps img")).to_have_count(0)
    expect(page.locator(".hs-title b").nth(3)).to_have_text("<img src=x onerror=alert(1)>")
    expect(page.get_by_role("button", name="<img src=x onerror=alert(1)>")).to_be_visible()


def test_a_right_to_left_word_keeps_the_line_in_order(page: Page, serve: Serve) -> None:
    open_maps(page, serve)
    point_at(page, 2, 5, 3, 8)
    expect(tip(page)).to_be_visible()
    assert (tip(page).text_content() or "").startswith("“שלום” → “she”  0.")
    order = tip(page).locator("bdi").evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)")
    assert order == sorted(order)


def test_scales_are_stated_and_pictures_offered(page: Page, serve: Serve) -> None:
    open_maps(page, serve)
    overview, layer = page.locator(".hs-maps[data-kind=overview]"), page.locator(".hs-maps[data-kind=layer]")
    for view in (overview, layer):
        expect(view.locator(".hs-num")).to_have_text(["0", "1"])
        for kind in ("PNG", "SVG"):
            expect(view.get_by_role("button", name=f"{kind} picture")).to_be_visible()
    expect(overview.locator(".hs-note")).to_have_text("ring: first token 0–1")
    with page.expect_download() as waiting:
        overview.get_by_role("button", name="PNG picture").click()
    assert waiting.value.suggested_filename == "headscope_all-12-heads_overview.png"


def test_hovering_marks_the_same_cell_in_every_panel(page: Page, serve: Serve) -> None:
    open_maps(page, serve)
    expect(page.locator(".hs-sub").first).to_have_text("0.47 first token")
    point_at(page, 1, 3, 4, 8)
    expect(page.locator(".hs-panel[data-marked=true]")).to_have_count(4)
    expect(page.locator(".hs-sub")).to_have_text(["0.1234"] * 4)
    page.mouse.move(1, 1)
    expect(page.locator(".hs-panel[data-marked=true]")).to_have_count(0)
    expect(page.locator(".hs-sub").first).to_have_text("0.47 first token")


def test_pooled_maps_say_so(page: Page, serve: Serve) -> None:
    open_maps(page, serve, "?pooled=1")
    point_at(page, 0, 0, 1, 5)
    expect(tip(page)).to_be_visible()
    text = tip(page).text_content() or ""
    assert text.startswith("“w0” … “she” (0–3) → “<img src=x onerror=alert(1)>” … “w7” (4–7)  0.")
    assert text.endswith(" · max of 4×4 block")
    expect(page.locator(".hs-maps[data-kind=layer] .hs-note")).to_contain_text("max of a 4×4 block")


def test_the_future_of_a_causal_map_is_blank(page: Page, serve: Serve) -> None:
    open_maps(page, serve, "?causal=1")
    point_at(page, 0, 2, 6, 8)
    expect(tip(page)).to_have_text("“w2” → “w6”  0.0000 · the future, closed")
    page.mouse.move(1, 1)
    alpha = page.locator(".hs-panel canvas").first.evaluate(
        """(canvas) => {
            const { width, height } = canvas;
            const at = (x, y) => canvas.getContext("2d").getImageData(x, y, 1, 1).data[3];
            const [right, top, left, low] = [width * 0.9, height * 0.15, width * 0.3, height * 0.7].map(Math.round);
            return [at(right, top), at(left, low)];
        }"""
    )
    assert alpha == [0, 255]


def test_a_panel_is_chosen_by_click_and_by_enter(page: Page, serve: Serve) -> None:
    open_maps(page, serve)
    page.get_by_role("button", name="H0, 0.47 first token").click()
    expect(page.get_by_text("selected: L1H0", exact=True)).to_be_visible()
    expect(page.locator(".hs-panel").first).to_have_attribute("aria-current", "true")
    expect(page.locator(".hs-panel").nth(1)).to_have_attribute("aria-label", "H1, off, 0.47 first token")
    page.locator(".hs-panel").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_text("selected: L1H1", exact=True)).to_be_visible()


def test_a_thumbnail_is_chosen_by_click_and_by_keyboard(page: Page, serve: Serve) -> None:
    open_maps(page, serve)
    overview = page.get_by_role("grid", name="All 12 heads")
    expect(overview.get_by_role("gridcell")).to_have_count(12)
    expect(overview.get_by_role("gridcell", selected=True)).to_have_text("L1H2 · first token 0.47")
    canvas = overview.locator("canvas").first
    box = canvas.bounding_box()
    assert box is not None
    canvas.hover(position={"x": box["width"] - 12, "y": box["height"] - 12})
    expect(tip(page)).to_have_text("L2H3 · first token 0.47")
    canvas.click(position={"x": box["width"] - 12, "y": box["height"] - 12})
    expect(page.get_by_text("selected: L2H3", exact=True)).to_be_visible()
    page.locator(".hs-maps[data-view='layer-2']").wait_for()
    overview.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    expect(overview).to_have_attribute("aria-activedescendant", "hs-cell-1-0")
    page.keyboard.press("Enter")
    expect(page.get_by_text("selected: L1H0", exact=True)).to_be_visible()


def test_the_maps_follow_the_theme_without_the_server(new_page: Callable[..., Page], serve: Serve) -> None:
    page = new_page(color_scheme="light")
    open_maps(page, serve)
    expect(page.locator(".hs-maps").last).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="dark")
    expect(page.locator(".hs-maps").last).to_have_attribute("data-theme", "dark")


def test_a_phone_shows_two_panels_a_row_and_a_resize_repaints(new_page: Callable[..., Page], serve: Serve) -> None:
    page = new_page(viewport={"width": 390, "height": 844})
    open_maps(page, serve)
    tops = page.locator(".hs-panel").evaluate_all(MEASURE_TOPS)
    assert tops[0] == tops[1] < tops[2] == tops[3]
    before = page.locator(".hs-maps").last.get_attribute("data-painted")
    page.set_viewport_size({"width": 1200, "height": 844})
    expect(page.locator(".hs-maps").last).not_to_have_attribute("data-painted", before or "")
    tops = page.locator(".hs-panel").evaluate_all(MEASURE_TOPS)
    assert len(set(tops)) == 1
