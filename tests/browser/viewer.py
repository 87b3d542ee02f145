"""What the tests of one head's three ways share: views of known numbers, the app that shows them, colours, places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page, expect

from mha_core.view import View
from tests.browser.apps import synthetic

APP = "tests/browser/apps/viewer_app.py"
Serve = Callable[..., str]
Open = Callable[..., Page]
HEADS = 12
SENTENCE = synthetic.labels(14)


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


def long_map(n: int = 2048) -> np.ndarray:
    """[query, key]: nearly nothing, one strong weight in between."""
    array = np.full((n, n), 2e-4, np.float32)
    array[1500 % n, 700 % n] = 0.91239
    return array


def token(page: Page, row: int, i: int) -> Locator:
    return page.locator(".hs-rows .hs-row").nth(row).locator(".hs-token").nth(i)


def text_state(page: Page, *, query: int, locked: int | None = None) -> None:
    box = page.locator(".hs-text")
    expect(box).to_have_attribute("data-query", str(query))
    expect(box).to_have_attribute("data-locked", "" if locked is None else str(locked))
