"""`ViewState`: a person's choices, frozen, with one codec for the URL and the session.

The URL is public: every value that comes by it is checked and capped, and what cannot be read falls back to its
default. Text is never lost: it is kept as it was typed, and only shown as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mha_core.examples import OTHER_SENTENCE
from mha_core.interventions import HeadRef, InterventionError

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_TEXT = "When Mary and John went to the store, John gave a drink to"
MAX_TEXT = 60_000  # characters; a URL of a longer text would not travel anyway
MAX_NAME = 200
MAX_HEADS_OFF = 4096
KINDS = ("zero", "mean")
RINGS = ("first", "previous", "self", "entropy")


@dataclass(frozen=True)
class ViewState:
    """What is looked at.

    model: a name for `load_model`. text, pair: the sentences, as typed. site, layer, head: the chosen head.
    query: the token that a layer's heads are read from; -1 for the last. ring: the measure that rings the overview.
    off: heads that are switched off, as names in order. kinds: in which ways, side by side. other: the sentence that
    an encoder's sentence is compared with.
    """

    model: str = DEFAULT_MODEL
    text: str = DEFAULT_TEXT
    pair: str = ""
    site: str = ""
    layer: int = 0
    head: int = 0
    query: int = -1
    ring: str = "first"
    off: tuple[str, ...] = ()
    kinds: tuple[str, ...] = KINDS
    other: str = OTHER_SENTENCE

    def to_query(self) -> dict[str, str]:
        """The choices that differ from the defaults, as URL parameters."""
        default = ViewState()
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {name: value for name, value in values.items() if value != getattr(default, name)}
        return {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in changed.items()}

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> ViewState:
        """Read URL parameters. Unknown ones are ignored; unreadable values become their defaults."""
        default = cls()
        return replace(
            default,
            model=query.get("model", default.model)[:MAX_NAME] or default.model,
            text=query.get("text", default.text)[:MAX_TEXT],
            pair=query.get("pair", "")[:MAX_TEXT],
            site=query.get("site", "") if query.get("site") in ("self", "enc", "dec", "cross") else "",
            layer=_whole(query.get("layer"), 0),
            head=_whole(query.get("head"), 0),
            query=_whole(query.get("query"), -1),
            ring=query["ring"] if query.get("ring") in RINGS else default.ring,
            off=parse_heads(query.get("off", "")),
            kinds=tuple(kind for kind in KINDS if kind in query.get("kinds", ",".join(KINDS)).split(",")),
            other=query.get("other", default.other)[:MAX_TEXT],
        )

    def with_(self, **changes: Any) -> ViewState:
        """A copy with some choices changed."""
        return replace(self, **changes)


def parse_heads(text: str) -> tuple[str, ...]:
    """Names separated by commas ("L1H3,L1H5") as head names, each once; parts that are no head are left out."""
    names: dict[str, None] = {}
    for part in text.split(",")[:MAX_HEADS_OFF]:
        try:
            names[str(HeadRef.parse(part))] = None
        except InterventionError:
            continue
    return tuple(names)


def _whole(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 5 else default
