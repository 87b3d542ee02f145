"""The offline file: everything in it, nothing from elsewhere, and no text that becomes markup."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from mha_core.standalone import COMPONENT_OF, sources, to_html
from mha_core.view import View

NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> \" ' & \ud83d \x00"


def view(kind: str = "matrix", **provenance: object) -> View:
    shape = {"overview": (2, 2, 3, 3), "matrix": (3, 3)}.get(kind, (2, 3, 3))
    name = "map" if kind == "matrix" else "maps"
    labels = [NASTY, "b", "c"]
    return View(kind, {name: np.ones(shape, np.float32)}, {"query_labels": labels, "key_labels": labels}, provenance)


class Elements(HTMLParser):
    """Every element with its attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside = False
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def named(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


@pytest.mark.parametrize("kind", COMPONENT_OF)
def test_every_kind_is_one_file_that_asks_for_nothing(kind: str) -> None:
    text = to_html(view(kind, model="m"), "Title")
    elements = Elements(text)
    assert {tag for tag, _, _ in elements.found}.isdisjoint({"link", "img", "iframe", "object", "base", "form"})
    assert all("src" not in attributes and "href" not in attributes for _, attributes, _ in elements.found)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert len(elements.named("script")) == 2
    assert to_html(view(kind, model="m"), "Title") == text


def test_the_file_s_policy_names_its_only_script() -> None:
    elements = Elements(to_html(view(), "Title"))
    policy = next(a["content"] for a, _ in elements.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    script = next(text for a, text in elements.named("script") if a.get("type") == "module")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")


def test_the_numbers_travel_whole() -> None:
    given = view(model="m", text="a b c")
    packed = next(text for a, text in Elements(to_html(given, "Title")).named("script") if a.get("id") == "data")
    back = View.unpack(base64.b64decode(packed))
    np.testing.assert_array_equal(back.arrays["map"], given.arrays["map"])
    assert back.meta["query_labels"] == given.meta["query_labels"]
    assert back.provenance == given.provenance


def test_titles_and_provenance_are_text() -> None:
    text = to_html(view(text=NASTY, model=NASTY, heads=[NASTY, "L0H1"], minus={"text": NASTY}), NASTY)
    text.encode("utf-8")  # nothing that a file cannot carry
    elements = Elements(text)
    assert [tag for tag, _, _ in elements.found if tag in ("script", "img")] == ["script", "script"]
    shown = NASTY.replace("\ud83d", "\ufffd").replace("\x00", "\ufffd")
    assert f"<title>{html.escape(shown)}</title>" in text
    assert [said for _, said in elements.named("dd")][:4] == [shown, shown, f"{shown}, L0H1", f"text: {shown}"]


def test_what_is_not_known_is_left_out() -> None:
    terms = [text.strip() for _, text in Elements(to_html(view(model="m", text_pair=None, note=""), "T")).named("dt")]
    assert terms == ["model", "made with"]


def test_other_kinds_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="kind 'curve' has no page of its own"):
        to_html(View("curve", {}), "Title")


@pytest.mark.parametrize("component", sorted(set(COMPONENT_OF.values())))
def test_components_are_one_module_with_one_entry(component: str) -> None:
    css, js = sources(component)
    assert len(re.findall(r"^export default function headscope\(", js, re.MULTILINE)) == 1
    assert ".hs-tip" in css
    assert not re.search(r"\.(innerHTML|outerHTML|insertAdjacentHTML)|\beval\(|document\.write", js)
