"""Views of one head: what Python believes, pictures to take away, and the file that opens offline."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from mha_core.ui import components
from mha_core.view import View
from tests.browser.apps import synthetic
from tests.browser.viewer import long_map, sample, text_state, token

pytestmark = pytest.mark.browser

SVG = "{http://www.w3.org/2000/svg}"


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
