"""One visitor's session: their `ViewState`, kept in step with the URL and with the widgets."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from mha_core.interventions import Interventions
from mha_core.model import Model, Observe
from mha_core.tokens import Tokens
from mha_core.trace import Trace
from mha_core.ui.state import ViewState
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_HELD, _STOPPED = "_held", "_stopped"
_SWITCH_SECONDS = 4.0
SLOW_TOKENS = 200  # above, a run takes long enough that progress is shown


@dataclass
class Held:
    """What a session holds. Changed in place: any access to Streamlit's session state may be where a newer click ends
    this run, so that two things that belong together must not be kept by two such accesses.

    page, switched_at: the page that is open, and when it was switched to.
    state: the visitor's choices. acted: they did something in the page since the last run. written: the address as it
    was last put. capped: how long a text of the address was.
    """

    state: ViewState
    acted: bool = False
    written: dict[str, str] | None = None
    capped: int = 0
    page: str = ""
    switched_at: float = float("-inf")

    def on_page(self, name: str) -> None:
        """Note which page is open, and when it was last another one."""
        if self.page and name != self.page:
            self.switched_at = time.monotonic()
        self.page = name

    @property
    def just_switched(self) -> bool:
        """Whether the page was switched moments ago."""
        return time.monotonic() - self.switched_at < _SWITCH_SECONDS

    def change(self, **changes: Any) -> None:
        """Change some choices, in one step."""
        self.state = self.state.with_(**changes)
        self.acted = True
        if "text" in changes:
            self.capped = 0


def held() -> Held:
    """This session's choices, to be changed in place."""
    found: Held | None = st.session_state.get(_HELD)
    if found is None:
        found = st.session_state[_HELD] = Held(ViewState())
    return found


def current() -> ViewState:
    """The visitor's choices."""
    return held().state


def update(**changes: Any) -> None:
    """Change some choices. In a widget's callback, before the page runs again."""
    held().change(**changes)


def acted() -> None:
    """Say that the visitor did something, for widgets whose value is taken in the page's body."""
    held().acted = True


def adopt_url() -> None:
    """Take over what the URL says, at first load and whenever the visitor changed it (a link, the back button).

    A page switch empties the URL; the session's choices then stay, and `write_url` puts them back.
    """
    query = st.query_params.to_dict()
    mine = held()
    # What the visitor has just done in the page is newer than the address the browser still shows.
    did, mine.acted = mine.acted, False
    if (mine.written is None and not did) or (query and not did and query != mine.written):
        mine.state = ViewState.from_query(query)
        mine.capped = max(len(query.get(name, "")) for name in ("text", "pair", "other"))


def write_url() -> None:
    """Put the visitor's choices into the URL, so that the address is a link to what is seen."""
    mine = held()
    mine.acted = False  # set by the page itself in this run, not by the visitor
    query = mine.state.to_query()
    mine.written = query
    if st.query_params.to_dict() != query:
        st.query_params.from_dict(query)


def bind(field: str, convert: Callable[[Any], Any] = lambda value: value, to_widget: Any = None) -> dict[str, Any]:
    """Arguments that tie a widget to a field of the state: `st.text_input("Sentence", **bind("text"))`.

    The widget's own value is only touched when the state says something else (an example, a link): setting it at
    every run would wipe out what a person typed in the meantime.
    """
    key = f"w_{field}"
    value = getattr(current(), field) if to_widget is None else to_widget
    if st.session_state.get(key) != value:
        st.session_state[key] = value

    def changed() -> None:
        if st.session_state[key] is None:
            return  # no choice is ever nothing: a control that was gone for a while can report itself empty
        value = convert(st.session_state[key])
        if value == "" and getattr(current(), field) and held().just_switched:
            return  # a field that is drawn anew on another page can report itself empty before it has its text
        update(**{field: value})

    return {"key": key, "on_change": changed}


def stop_with(message: str) -> None:
    """End this run with a sentence in the place of the page. What was typed stays where it is."""
    st.info(plain(message), icon=":material/info:")
    write_url()
    st.stop()


def run(
    model: Model,
    tokens: Tokens,
    plan: Interventions | None = None,
    *,
    target: str | Tokens | None = None,
    label: str = "Running the model",
    observe: Observe | None = None,
) -> Trace:
    """The trace of a run, from the store or made now; with progress and a way to stop when it is long.

    Raises:
        InputError, InterventionError: as `Model.run`; the page says them where they belong.
    """
    plan = plan or Interventions()
    key = (model.name, tokens.text, tokens.text_pair, plan, target.ids if isinstance(target, Tokens) else target)
    if store().has_trace(key):
        return store().trace(key, lambda: model.run(tokens, plan, target=target))
    with Working(label, key, show=len(tokens) > SLOW_TOKENS) as working:
        return store().trace(key, lambda: model.run(tokens, plan, working.progress, target=target, observe=observe))


class Working:
    """Long work in view: a bar, about how long it will still take, and a button that stops it.

    A click on anything ends the run at its next progress call, so that no core stays busy for a visitor who has moved
    on. "Stop" also remembers not to begin the same work again until it is asked for.

    asked: this work is begun by a button of its own, which is asking for it.
    """

    def __init__(self, label: str, key: Hashable, show: bool = True, asked: bool = False) -> None:
        self.label, self.key, self.show, self.asked = label, hash(key), show, asked

    def __enter__(self) -> Working:
        self.place, self.began = st.empty(), time.monotonic()
        if self.asked and self.key == st.session_state.get(_STOPPED):
            del st.session_state[_STOPPED]
        if self.show and self.key == st.session_state.get(_STOPPED):
            with self.place.container():
                st.info(
                    "Stopped, as you asked. The text is kept: run it after all, or change it.", icon=":material/pause:"
                )
                st.button("Run it", key="run_again", on_click=lambda: st.session_state.pop(_STOPPED, None))
            write_url()
            st.stop()
        if self.show:
            with self.place.container():
                self.bar = st.progress(0.0, text=f"{self.label} …")
                st.button("Stop", key=f"stop_{self.key}", on_click=self._stop, icon=":material/stop_circle:")
        return self

    def _stop(self) -> None:
        st.session_state[_STOPPED] = self.key

    def progress(self, done: int, total: int) -> None:
        """Show `done` of `total`; ends the run when the visitor has done something else."""
        if self.show:
            left = time_left(time.monotonic() - self.began, done, total)
            self.bar.progress(done / max(total, 1), text=f"{self.label} … {done} of {total}{left and f', {left}'}")

    def __exit__(self, *error: object) -> None:
        if self.show:
            self.place.empty()


def time_left(seconds: float, done: int, total: int) -> str:
    """How long the rest will take at the pace so far, in words; nothing where that is not known or not worth saying."""
    if done < 1 or done >= total or seconds < 1:
        return ""
    left = seconds / done * (total - done)
    return "" if left < 1.5 else f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left"
