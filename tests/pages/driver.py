"""The app without a browser: a visitor who opens links, types, clicks, and reads what the page shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from streamlit.runtime.pages_manager import PagesManager
from streamlit.testing.v1 import AppTest, app_test
from streamlit.testing.v1.element_tree import Block, Element, Node

from mha_core.view import View

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "Heads": "pages/heads.py",
    "Compare": "pages/compare.py",
    "Ablate": "pages/ablate.py",
    "Evaluate": "pages/evaluate.py",
    "Lesson": "pages/lesson.py",
    "Cost": "pages/cost.py",
}


class _AppPages:
    """Stands in for Streamlit's page manager inside `AppTest`, which forgets before every run that `app.py` calls
    `st.navigation`: with a folder named `pages` beside it, it would then run the bare page. A server does not forget.
    """

    uses_pages_directory: ClassVar[bool | None] = None

    def __new__(cls, *arguments: Any, **options: Any) -> PagesManager:  # type: ignore[misc]
        PagesManager.uses_pages_directory = False
        return PagesManager(*arguments, **options)


app_test.PagesManager = _AppPages  # type: ignore[misc,assignment,attr-defined]


class Visitor:
    """One visitor of the app. Models and traces are kept by the process, as on a server."""

    _components: ClassVar[Any] = None

    def __init__(self, page: str = "Heads", /, **query: str) -> None:
        self.at = AppTest.from_file(ROOT / "app.py", default_timeout=60)
        # Looking for components of other packages takes longer than most pages; once is enough.
        self.at._bidi_component_manager = Visitor._components
        self.at.query_params.update(query)
        self.at.run()
        Visitor._components = self.at._bidi_component_manager
        if page != "Heads":
            self.open(page)

    # what a visitor does

    def open(self, page: str) -> None:
        """Go to another page by the navigation, which empties the URL."""
        self.at.query_params.clear()
        self.at.switch_page(PAGES[page]).run()

    def follow(self, **query: str) -> None:
        """Another address in the same tab: a link, the back button. At least one parameter."""
        self.at.query_params.clear()
        self.at.query_params.update(query)
        self.at.run()

    def type(self, text: str, key: str = "w_text", seen: dict[str, str] | None = None) -> None:
        """Type into a field of one line, or of several. seen: an older address that the browser still shows."""
        if seen is not None:
            self.at.query_params.clear()
            self.at.query_params.update(seen)
        fields = [*self.at.text_input, *self.at.sidebar.text_input, *self.at.text_area, *self.at.sidebar.text_area]
        next(field for field in fields if field.key == key).set_value(text).run()

    def click(self, key: str) -> None:
        """Press a button."""
        next(button for button in [*self.at.button, *self.at.sidebar.button] if button.key == key).click().run()

    def choose(self, key: str, value: Any) -> None:
        """Pick from a list."""
        boxes = [*self.at.selectbox, *self.at.sidebar.selectbox]
        next(box for box in boxes if box.key == key).set_value(value).run()

    # what a visitor sees

    @property
    def url(self) -> dict[str, str]:
        """The parameters of the address."""
        return dict(self.at.query_params)

    @property
    def title(self) -> str | None:
        """The page's title; None where the page could not be drawn."""
        titles = [title.value for title in self.at.title]
        return titles[0] if titles else None

    @property
    def text(self) -> str:
        """What stands in the field for the sentence."""
        fields = [*self.at.sidebar.text_input, *self.at.sidebar.text_area]
        return str(next(field for field in fields if field.key == "w_text").value)

    @property
    def captions(self) -> str:
        """All small print, unescaped."""
        captions = dict.fromkeys(caption.value for caption in [*self.at.sidebar.caption, *self.at.caption])
        return "\n".join(map(unescaped, captions))

    @property
    def sentences(self) -> list[str]:
        """What the page says in place of, or above, its content: notes, warnings, errors."""
        said = [*self.at.info, *self.at.warning, *self.at.error, *self.at.sidebar.warning, *self.at.sidebar.error]
        return list(dict.fromkeys(unescaped(one.value) for one in said))

    @property
    def metrics(self) -> dict[str, str]:
        """Number cards: label -> value."""
        return {unescaped(metric.label): metric.value for metric in self.at.metric}

    def components(self) -> dict[str, Any]:
        """What every component of ours was sent, by its key: a `View`, or plain data."""
        sent: dict[str, Any] = {}
        for element in self.at.get("bidi_component"):
            proto = element.proto  # type: ignore[union-attr]
            key = proto.id.split("-", 2)[2]
            sent[key] = View.unpack(proto.bytes) if proto.bytes else json.loads(proto.json)
        return sent

    def view(self, key: str) -> View:
        """One view that is drawn."""
        view = self.components()[key]
        assert isinstance(view, View)
        return view

    def one(self, prefix: str) -> Any:
        """The data of the only component whose key begins so."""
        found = {key: data for key, data in self.components().items() if key.startswith(prefix)}
        assert len(found) == 1, f"{prefix}: {sorted(self.components())}"
        return next(iter(found.values()))

    def assert_whole(self, title: str) -> None:
        """The page was drawn to its end, without an error."""
        assert [error.message for error in self.at.exception] == []
        assert self.title == title
        assert not self.at.error

    def markdown(self) -> Iterator[str]:
        """Every text that Streamlit reads as Markdown, wherever it stands: bodies, labels, help."""
        for element in _elements(self.at._tree):
            if element.type in ("text", "code", "json"):
                continue
            for name in ("body", "label", "help"):
                value = getattr(element.proto, name, None)
                if isinstance(value, str) and value:
                    yield value


def _elements(node: Node) -> Iterator[Element]:
    if isinstance(node, Block):
        for child in node.children.values():
            yield from _elements(child)
    elif isinstance(node, Element):
        yield node


def unescaped(text: str) -> str:
    """What a reader sees of Markdown in which every punctuation mark is escaped."""
    out, escaped = [], False
    for character in text:
        if character == "\\" and not escaped:
            escaped = True
            continue
        out.append(character)
        escaped = False
    return "".join(out)
