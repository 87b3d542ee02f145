"""The app itself in a real browser: what a person types, clicks and presses, and what they then see."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser

SMOLLM2, MINILM, OWN = "smollm2-135m-instruct", "all-minilm-l6-v2", "own-layer"
DEFAULT = "When Mary and John went to the store, John gave a drink to"
FIRST_LOAD = 180_000  # ms: the first visitor of a server waits for imports and for the model
A_RUN = 60_000  # ms: a new sentence or plan, on a machine that has other work too
Serve = Callable[..., str]

# What people really type, and what broke other tools; one line each, as a field of one line takes it.
TEXTS = {
    "one-word": "Hi",
    "repeats": "A B B C D B",
    "long-equal-prefix": "internationalization internationalisations",
    "angle": "if a<b<c then a<b",
    "markup": "</script> <s> &amp; <b>x</b>",
    "dollars": "The price rose from $117.2 billion to $119.6 billion",
    "cjk": "東京メトロ",
    "emoji-zwj": "💩💩 👨\u200d👩\u200d👧",
    "rtl": "هذا اختبار",
    "typed-special": "What is the effect of [SEP] and what",
    "url-text": "R&D #1 = 50%",
    "number": "123",
}

# Probabilities of " Mary" after the default sentence with these heads cut to zero: SmolLM2's own, in float32.
CLEAN = "0.923"
CUT = {
    ("L1H3",): "0.712",
    ("L1H3", "L1H5"): "0.056",
    ("L1H3", "L1H5", "L2H0"): "0.252",
    ("L0H0",): "0.776",
    ("L0H0", "L5H5"): "0.788",
    ("L0H0", "L5H5", "L9H3"): "0.751",
}


# ---------------------------------------------------------------- what a visitor does and sees


def visit(page: Page, url: str, path: str = "", **query: str) -> Page:
    """Open the app at an address and wait until it is drawn."""
    page.goto(f"{url}/{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else ""))
    title = page.get_by_role("heading", level=1)
    expect(title).to_be_visible(timeout=FIRST_LOAD)
    settle(page)
    return page


def settle(page: Page) -> None:
    """Wait until the server has nothing more to say."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning", timeout=FIRST_LOAD)


def go_to(page: Page, name: str) -> None:
    """To another page, by the navigation."""
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible(timeout=A_RUN)
    settle(page)


def sentence(page: Page) -> Locator:
    """The field for the sentence."""
    return page.get_by_test_id("stSidebar").get_by_label("Sentence", exact=True)


def view_of(page: Page, kind: str) -> Locator:
    """The component that shows a view of this kind."""
    return page.locator(f".hs-maps[data-view^='{kind}|']").first


def type_sentence(page: Page, text: str) -> None:
    """Put a text into the field, in one go, and wait until the maps are others."""
    before = view_of(page, "layer").get_attribute("data-view") or ""
    sentence(page).fill(text)
    expect(view_of(page, "layer")).not_to_have_attribute("data-view", before, timeout=A_RUN)
    settle(page)


def head(page: Page, name: str) -> Locator:
    """A head in the grid of heads."""
    layer, number = name.removeprefix("L").split("H")
    return page.locator(f".hg [data-place='{layer},{number}']")


def off(page: Page) -> list[str]:
    """The heads that the grid shows as switched off."""
    labels = page.locator(".hg-cell[aria-pressed=true]").evaluate_all("all => all.map((e) => e.ariaLabel)")
    return [label.partition(",")[0] for label in labels]


def next_word(page: Page, word: str) -> Locator:
    """The numbers of one word in the table of next words."""
    row = page.locator(".fx-words tbody tr").filter(has=page.locator("th bdi", has_text=re.compile(rf"^\s*{word}$")))
    return row.locator("td.fx-number")


def expect_mary(page: Page, *heads: str) -> None:
    """The table shows " Mary" before and after exactly these heads were cut; only before, when none was."""
    expect(next_word(page, "Mary")).to_have_text([CLEAN, CUT[heads]] if heads else [CLEAN], timeout=A_RUN)
    settle(page)


def chosen_head(page: Page) -> str:
    """The name of the head that is chosen in the overview."""
    text = page.get_by_role("grid").get_by_role("gridcell", selected=True).first.text_content() or ""
    return text.partition(" ")[0]


# ---------------------------------------------------------------- the main job


def test_a_typed_sentence_repaints_the_maps(page: Page, app_url: str) -> None:
    visit(page, app_url)
    expect(page.get_by_text(re.compile(r"^14 tokens"))).to_be_visible()
    overview = view_of(page, "overview").get_attribute("data-view") or ""
    layer = view_of(page, "layer").get_attribute("data-view") or ""
    sentence(page).fill("The keys to the old wooden cabinet")
    expect(view_of(page, "overview")).not_to_have_attribute("data-view", overview, timeout=A_RUN)
    expect(view_of(page, "layer")).not_to_have_attribute("data-view", layer, timeout=A_RUN)
    expect(page.get_by_text(re.compile(r"^7 tokens"))).to_be_visible()
    assert int(view_of(page, "layer").get_attribute("data-painted") or 0) >= 1


def test_two_heads_switched_off_take_mary_away(page: Page, app_url: str) -> None:
    visit(page, app_url, kinds="zero")
    go_to(page, "Ablate")
    expect_mary(page)
    head(page, "L1H3").click()
    expect_mary(page, "L1H3")
    head(page, "L1H5").click()
    expect_mary(page, "L1H3", "L1H5")
    assert float(next_word(page, "the").last.inner_text()) > 0.056
    page.get_by_role("button", name="all on").click()
    expect_mary(page)


def test_words_typed_one_letter_at_a_time_arrive(page: Page, app_url: str) -> None:
    """Slowly enough that the server answers in between, on a page that also has lists made from the text."""
    visit(page, app_url, model=OWN, text="a sentence to begin with")
    field = sentence(page)
    field.press("ControlOrMeta+a")
    field.press_sequentially("one two three", delay=280)
    expect(page.get_by_text(re.compile(r"^3 tokens"))).to_be_visible(timeout=A_RUN)
    settle(page)
    expect(field).to_have_value("one two three")
    expect(page.get_by_test_id("stException")).to_have_count(0)
    expect(page.get_by_role("heading", level=1, name="Heads")).to_be_visible()
    assert page.url.endswith("text=one+two+three")


@pytest.mark.usefixtures("forgive_probing")
@pytest.mark.parametrize("way", ["walked", "linked"])
def test_quick_clicks_end_where_the_person_ended(page: Page, app_url: str, way: str) -> None:
    """Faster than answers and addresses come back: no older address may undo a newer click, and none gets lost."""
    visit(page, app_url, "" if way == "walked" else "ablate", model=OWN, kinds="zero")
    if way == "walked":
        go_to(page, "Ablate")
    expected: set[str] = set()
    for number in range(21):
        name = f"L0H{number * 5 % 8}"
        head(page, name).click()
        expected ^= {name}
        page.wait_for_timeout(40 + 37 * number % 260)
    page.wait_for_timeout(1500)
    settle(page)
    assert set(off(page)) == expected
    assert sentence(page).input_value() == DEFAULT


# ---------------------------------------------------------------- two visitors at once


def test_two_visitors_on_one_model_never_see_each_others_heads(new_page: Callable[..., Page], app_url: str) -> None:
    ann, ben = new_page(), new_page()
    for visitor in (ann, ben):
        visit(visitor, app_url, kinds="zero")
        go_to(visitor, "Ablate")
    plans: dict[str, tuple[Page, list[str]]] = {"L1H3": (ann, []), "L0H0": (ben, [])}
    for step in (("L1H3", "L0H0"), ("L1H5", "L5H5"), ("L2H0", "L9H3")):
        # Both clicks are on their way before either answer is there.
        for (visitor, so_far), name in zip(plans.values(), step, strict=True):
            head(visitor, name).click()
            so_far.append(name)
        for visitor, so_far in plans.values():
            expect_mary(visitor, *so_far)
            assert off(visitor) == so_far
    ann.get_by_role("button", name="all on").click()
    expect_mary(ann)
    expect_mary(ben, "L0H0", "L5H5", "L9H3")
    assert sentence(ben).input_value() == DEFAULT


def test_two_visitors_keep_their_own_sentences(new_page: Callable[..., Page], app_url: str) -> None:
    texts = {"ann": "The cat slept under the table.", "ben": "Rain fell on the garden all night long."}
    pages = {name: visit(new_page(), app_url, model=MINILM) for name in texts}
    for name, text in texts.items():
        sentence(pages[name]).fill(text)
    for name, tokens in (("ann", 9), ("ben", 11)):
        expect(pages[name].get_by_text(re.compile(rf"^{tokens} tokens"))).to_be_visible(timeout=A_RUN)
        settle(pages[name])
        assert sentence(pages[name]).input_value() == texts[name]


# ---------------------------------------------------------------- what is kept


@pytest.mark.usefixtures("forgive_probing")
def test_choices_survive_page_switch_reload_and_a_copied_address(
    page: Page, new_page: Callable[..., Page], app_url: str
) -> None:
    visit(page, app_url, model=MINILM, off="L0H3,L2H5", kinds="zero")
    type_sentence(page, "R&D #1 = 50% & more")
    overview = page.get_by_role("grid")
    overview.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(overview.get_by_role("gridcell", selected=True)).to_contain_text("L1H11", timeout=A_RUN)
    settle(page)

    go_to(page, "Ablate")
    assert off(page) == ["L0H3", "L2H5"]
    moved = page.locator(".fx").last.inner_text()
    assert sentence(page).input_value() == "R&D #1 = 50% & more"

    page.reload()
    expect(page.locator(".fx").last).to_have_text(moved, use_inner_text=True, timeout=A_RUN)
    assert off(page) == ["L0H3", "L2H5"]
    assert sentence(page).input_value() == "R&D #1 = 50% & more"

    other = new_page()
    other.goto(page.url)
    expect(other.locator(".fx").last).to_have_text(moved, use_inner_text=True, timeout=A_RUN)
    assert off(other) == ["L0H3", "L2H5"]
    assert sentence(other).input_value() == "R&D #1 = 50% & more"
    go_to(other, "Heads")
    assert chosen_head(other) == "L1H11"


def test_an_empty_field_stays_empty_after_a_reload(page: Page, app_url: str) -> None:
    visit(page, app_url, model=OWN)
    sentence(page).fill("")
    expect(page.get_by_text("Type a sentence").first).to_be_visible(timeout=A_RUN)
    settle(page)
    page.reload()
    expect(page.get_by_text("Type a sentence").first).to_be_visible(timeout=A_RUN)
    assert sentence(page).input_value() == ""


@pytest.mark.usefixtures("forgive_probing")
def test_the_first_visitor_of_a_new_server_may_come_by_a_link_to_a_page(page: Page, serve: Serve) -> None:
    url = serve("app.py", {"HEADSCOPE_MODELS": f"{OWN},{MINILM}"})
    visit(page, url, "ablate", model=OWN, text="one two three", off="L0H3", kinds="zero")
    expect(page.get_by_role("heading", level=1, name="Ablate")).to_be_visible()
    expect(sentence(page)).to_have_value("one two three")
    assert off(page) == ["L0H3"]
    expect(page.get_by_test_id("stSidebarNav").get_by_role("link", name="Heads")).to_be_visible()


# ---------------------------------------------------------------- the three steps


def test_the_three_steps_do_what_they_say(page: Page, app_url: str) -> None:
    visit(page, app_url)
    steps = page.get_by_role("button", name=re.compile(r"^[123] · "))
    expect(steps).to_have_count(3)

    steps.nth(1).click()
    expect(page.get_by_role("heading", level=1, name="Ablate")).to_be_visible(timeout=A_RUN)
    expect_mary(page, "L1H3", "L1H5")
    assert off(page) == ["L1H3", "L1H5"]

    step(page, 3).click()
    expect(page.locator(".fx[data-view$='clean+mean']").first).to_be_visible(timeout=FIRST_LOAD)
    settle(page)
    expect(page.locator(".fx-words thead")).to_have_text(re.compile("clean.*mean"))
    before, after = (float(number) for number in next_word(page, "Mary").all_inner_texts())
    assert after == pytest.approx(before, abs=0.01)

    step(page, 1).click()
    expect(page.get_by_role("heading", level=1, name="Heads")).to_be_visible(timeout=A_RUN)
    expect(sentence(page)).to_have_value("The animal crossed the road because it was frightened.", timeout=A_RUN)
    settle(page)
    expect(page.get_by_text("6 layers × 12 heads")).to_be_visible()


def step(page: Page, number: int) -> Locator:
    """One of the three buttons, unfolded first where they are folded away."""
    button = page.get_by_role("button", name=re.compile(rf"^{number} · "))
    if not button.is_visible():
        page.get_by_text("Try this").first.click()
    return button


# ---------------------------------------------------------------- by keyboard


def test_a_head_is_chosen_by_keyboard_and_drawn_everywhere(page: Page, app_url: str) -> None:
    visit(page, app_url, model=MINILM)
    assert chosen_head(page) == "L0H0"
    before = view_of(page, "layer").get_attribute("data-view") or ""
    page.get_by_role("grid").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_role("grid").get_by_role("gridcell", selected=True)).to_contain_text("L2H2", timeout=A_RUN)
    expect(view_of(page, "layer")).not_to_have_attribute("data-view", before, timeout=A_RUN)
    settle(page)
    expect(page.locator(".hs-panel[aria-current=true]").last).to_contain_text("H2")
    assert "layer=2" in page.url
    assert "head=2" in page.url


def test_a_head_is_switched_off_by_keyboard(page: Page, app_url: str) -> None:
    visit(page, app_url, model=OWN, kinds="zero")
    go_to(page, "Ablate")
    head(page, "L0H0").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator(".fx").last).to_have_attribute("data-view", re.compile(r"L0H2"), timeout=A_RUN)
    settle(page)
    assert off(page) == ["L0H2"]


# ---------------------------------------------------------------- whatever is typed

COUNT_MADE_FROM_TEXT = """() => {
    const inside = (e) => (e.shadowRoot ? all(e.shadowRoot) : []);
    const all = (root) => [...root.querySelectorAll("*")].flatMap((e) => [e, ...inside(e)]);
    const bold = all(document).filter((e) => ["B", "STRONG"].includes(e.tagName) && e.textContent.trim() === "x");
    return bold.length + all(document).filter((e) => ["S", "DEL"].includes(e.tagName)).length
        + all(document).filter((e) => e.classList?.contains("katex")).length;
}"""


@pytest.mark.parametrize("model", [SMOLLM2, MINILM])
def test_every_text_is_drawn_and_none_becomes_markup(page: Page, app_url: str, model: str) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a text ran as a script: {dialog.message}"))
    visit(page, app_url, model=model, text="something to begin with")
    for name, text in TEXTS.items():
        type_sentence(page, text)
        assert sentence(page).input_value() == text, name
        expect(page.get_by_role("heading", level=1, name="Heads")).to_be_visible()
        expect(page.get_by_test_id("stException")).to_have_count(0)
        assert page.evaluate(COUNT_MADE_FROM_TEXT) == 0, name


@pytest.mark.usefixtures("forgive_probing")
def test_every_text_is_compared_and_none_becomes_markup(page: Page, app_url: str) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a text ran as a script: {dialog.message}"))
    visit(page, app_url, "compare", model=MINILM, text="something to begin with")
    for name, text in {**TEXTS, "512 words": "word " * 512, "3000 words": "word " * 3000}.items():
        sentence(page).fill(text)
        expect(page.get_by_role("application").first).to_be_visible(timeout=A_RUN)
        page.wait_for_timeout(700)  # the field waits for a pause in the typing
        settle(page)
        expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()
        expect(page.get_by_test_id("stException")).to_have_count(0)
        assert page.evaluate(COUNT_MADE_FROM_TEXT) == 0, name


@pytest.mark.usefixtures("forgive_probing")
def test_a_panel_that_is_edited_after_other_clicks_keeps_its_head(page: Page, app_url: str) -> None:
    """The fields of a panel are made by the browser when they are opened; a field it made empty must not count."""
    visit(page, app_url, "compare", model=MINILM, text="something to begin with", head="3")
    words = page.get_by_role("button", name="words", exact=True)
    for _ in range(2):
        words.click()
        settle(page)
    page.get_by_role("button", name="Edit").first.click()
    layer = page.get_by_test_id("stPopoverBody").get_by_role("slider")
    layer.focus()
    layer.press("ArrowRight")
    expect(page.get_by_role("heading", name="1 · L1H3")).to_be_visible(timeout=A_RUN)
    expect(page.get_by_role("heading", name="2 · L0H4")).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_markup_stands_in_the_tokens_as_it_was_typed(page: Page, app_url: str) -> None:
    visit(page, app_url, model=MINILM, text=TEXTS["markup"], off="L0H1", kinds="zero")
    go_to(page, "Ablate")
    tokens = page.locator(".fx-strip").last.locator(".fx-label").all_text_contents()
    written = "".join(token.strip() for token in tokens if token not in ("[CLS]", "[SEP]"))
    assert written == TEXTS["markup"].replace(" ", "")
    assert page.evaluate(COUNT_MADE_FROM_TEXT) == 0


@pytest.mark.parametrize("name", ["**a** $b$ :red[c] <b>d</b>", "a <= b -> c -- d", ":streamlit: :smile:"])
def test_a_models_name_is_read_as_it_was_typed(page: Page, app_url: str, name: str) -> None:
    page.goto(f"{app_url}/?{urlencode({'model': name, 'text': 'kept'}, quote_via=quote)}")
    alert = page.get_by_test_id("stAlert")
    expect(alert).to_contain_text("is neither a model of the list", timeout=FIRST_LOAD)
    assert f"'{name}'" in alert.inner_text()
    expect(sentence(page)).to_have_value("kept")


def test_a_model_can_be_typed_and_an_unknown_one_keeps_the_text(page: Page, app_url: str) -> None:
    visit(page, app_url, model=OWN, text="keep me")
    box = page.get_by_test_id("stSidebar").get_by_role("combobox").first
    box.fill("no model at all")
    box.press("Enter")
    expect(page.get_by_test_id("stAlert")).to_contain_text("no model at all", timeout=A_RUN)
    assert sentence(page).input_value() == "keep me"


# ---------------------------------------------------------------- small and dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(new_page: Callable[..., Page], app_url: str, scheme: Any) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True)
    visit(page, app_url, model=MINILM, off="L0H3", kinds="zero")
    expect(page.locator(".hs-maps").first).to_have_attribute("data-theme", scheme)
    assert_no_sideways_scrolling(page, 390)
    page.get_by_test_id("stExpandSidebarButton").click()
    page.get_by_test_id("stSidebarNav").get_by_role("link", name="Ablate").click()
    expect(page.locator(".fx").last).to_have_attribute("data-theme", scheme, timeout=A_RUN)
    settle(page)
    assert_no_sideways_scrolling(page, 390)


def test_a_laptops_page_does_not_scroll_sideways(new_page: Callable[..., Page], app_url: str) -> None:
    page = new_page(viewport={"width": 1280, "height": 800})
    visit(page, app_url)
    assert_no_sideways_scrolling(page, 1280)


def assert_no_sideways_scrolling(page: Page, width: int) -> None:
    """Neither the document nor the part of it that scrolls is wider than the window."""
    measured = page.evaluate(
        """() => [document.scrollingElement, document.querySelector("[data-testid=stMain]")]
            .map((e) => [e.scrollWidth, e.clientWidth])"""
    )
    for scrolled, visible in measured:
        assert scrolled <= visible <= width
