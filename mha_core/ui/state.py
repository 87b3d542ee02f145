"""`ViewState`: a person's choices, frozen, with one codec for the URL and the session.

The URL is public: every value that comes by it is checked and capped, and what cannot be read falls back to its
default. Text is never lost: it is kept as it was typed, and only shown as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mha_core.examples import OTHER_SENTENCE, fitting_text
from mha_core.interventions import HeadRef, InterventionError
from mha_core.lesson_edits import MAX_EDITS
from mha_core.ui import cost_state, evaluate_state, lesson_state
from mha_core.ui.cost_state import CostChoices
from mha_core.ui.evaluate_state import EvaluateChoices
from mha_core.ui.lesson_state import LessonChoices

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_TEXT = "When Mary and John went to the store, John gave a drink to"
MAX_TEXT = 60_000  # characters; a URL of a longer text would not travel anyway
MAX_NAME = 200
MAX_HEADS_OFF = 4096
MAX_PANELS = 4
WHOLE_LAYER = -1
SITES = ("", "self", "enc", "dec", "cross")
KINDS = ("zero", "mean", "sentence", "resample", "scale", "uniform")
DEFAULT_KINDS = ("zero", "mean")
SCOPES = ("all", "layer", "heads")
MAX_PLANS, MAX_CELLS, MAX_PLAN = 6, 64, 20_000
RINGS = ("first", "previous", "next", "self", "special", "entropy", "nats", "distance", "induction")
MODES = ("matrix", "text", "lines")
QUANTITIES = ("weights", "value")
HIDDEN = ("", "special", "first")
PAIR_PARTS = ("", "AA", "AB", "BA", "BB")


@dataclass(frozen=True)
class Panel:
    """One panel of a comparison. An empty model or text means the sidebar's.

    head: WHOLE_LAYER for all heads of the layer. off, kind: heads that are switched off in this panel, and how.
    """

    model: str = ""
    text: str = ""
    pair: str = ""
    site: str = ""
    layer: int = 0
    head: int = 0
    quantity: str = "weights"
    off: tuple[str, ...] = ()
    kind: str = "zero"


@dataclass(frozen=True)
class SavedPlan:
    """A plan that was kept: its name, and itself as JSON. shown: run and drawn beside the working plan."""

    name: str = ""
    plan: str = ""
    shown: bool = True


@dataclass(frozen=True)
class ViewState(LessonChoices, CostChoices, EvaluateChoices):
    """What is looked at.

    model: a name for `load_model`. text, pair: the sentences, as typed. site, layer, head: the chosen head.
    query: the token that a layer's heads are read from; -1 for the last. key: the key whose weight is explained; -1
    for none. ring: the measure that rings the overview.
    mode: how one head is drawn. quantity: raw or value-weighted. words: pieces joined to words. hide: "special" or
    "first" tokens left out. part: which pairs of segments. log: logarithmic colour. own_range: colours end at the
    layer's largest value.
    off: heads that are switched off, as names in order. kinds: in which ways, side by side. where: at which positions,
    "" for all, "last", or numbers ("3,5"). lines: reference sentences of a mean, one a line; "" for the packaged ones.
    source: the sentence to resample from. denoise: run that sentence and patch from this one instead. factor: to scale
    by. answers: two words whose logits are compared. cells: knocked-out cells, "dst<src". scope: of the knockout.
    plans: kept ones. other: the sentence that an encoder's sentence is compared with.
    panels: of the Compare page; empty for its own two. present: large type, controls folded away.
    """

    model: str = DEFAULT_MODEL
    text: str = DEFAULT_TEXT
    pair: str = ""
    site: str = ""
    layer: int = 0
    head: int = 0
    query: int = -1
    key: int = -1
    ring: str = "first"
    mode: str = "matrix"
    quantity: str = "weights"
    words: bool = False
    hide: str = ""
    part: str = ""
    log: bool = False
    own_range: bool = False
    off: tuple[str, ...] = ()
    kinds: tuple[str, ...] = DEFAULT_KINDS
    where: str = ""
    lines: str = ""
    source: str = ""
    denoise: bool = False
    factor: float = 0.5
    answers: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    scope: str = "all"
    plans: tuple[SavedPlan, ...] = ()
    other: str = OTHER_SENTENCE
    panels: tuple[Panel, ...] = field(default_factory=tuple)
    present: bool = False

    def to_query(self) -> dict[str, str]:
        """The choices that differ from the defaults, as URL parameters."""
        query = _encode(self)
        if self.text == _text_without_one(self.model):
            query.pop("text", None)
        elif self.text == DEFAULT_TEXT:
            query["text"] = self.text
        return query

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> ViewState:
        """Read URL parameters. Unknown ones are ignored; unreadable values become their defaults."""
        state = cls(**_decode(cls, query))
        return state if "text" in query else replace(state, text=_text_without_one(state.model))

    def with_(self, **changes: Any) -> ViewState:
        """A copy with some choices changed."""
        return replace(self, **changes)


def _text_without_one(model: str) -> str:
    """The sentence of an address that names none: the usual one, or the first that a model of its own kind reads."""
    return fitting_text(DEFAULT_TEXT, model)


def parse_heads(text: str) -> tuple[str, ...]:
    """Names separated by commas ("L1H3,L1H5") as head names, each once; parts that are no head are left out."""
    names: dict[str, None] = {}
    for part in text.split(",")[:MAX_HEADS_OFF]:
        try:
            names[str(HeadRef.parse(part))] = None
        except InterventionError:
            continue
    return tuple(names)


def _encode(record: Any) -> dict[str, str]:
    """Fields that differ from their defaults, as short texts."""
    default = type(record)()
    encoded = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if value != getattr(default, entry.name):
            encoded[entry.name] = _text_of(value)
    return encoded


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple) and value and isinstance(value[0], (Panel, SavedPlan)):
        return json.dumps([_encode(panel) for panel in value], ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, tuple) and any("," in item or item != item.strip() or item.startswith("[") for item in value):
        return json.dumps(value, ensure_ascii=False)  # words with spaces of their own
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _decode(cls: type, query: Mapping[str, str]) -> dict[str, Any]:
    """The fields that `query` gives and that can be read. What a parser refuses keeps its default."""
    values = {}
    for entry in fields(cls):
        text = query.get(entry.name)
        value = _PARSERS[entry.name](text) if isinstance(text, str) else None
        if value is not None:
            values[entry.name] = value
    return values


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str | None]:
    return lambda text: text if text in allowed else None


def _whole(text: str) -> int | None:
    return max(int(text), -1) if re.fullmatch(r"-1|[0-9]{1,4}", text) else None


def _flag(text: str) -> bool | None:
    return {"1": True, "0": False}.get(text)


def _kinds(text: str) -> tuple[str, ...] | None:
    kinds = tuple(kind for kind in KINDS if kind in text.split(","))
    return kinds if kinds or not text else None


def _records(cls: type, most: int) -> Callable[[str], tuple[Any, ...] | None]:
    def parse(text: str) -> tuple[Any, ...] | None:
        items = _json_list(text)
        if items is None:
            return None
        return tuple(cls(**_decode(cls, item)) for item in items[:most] if isinstance(item, dict))

    return parse


def _json_list(text: str) -> list[Any] | None:
    try:
        items = json.loads(text[: 4 * MAX_TEXT])
    except (ValueError, RecursionError):
        return None
    return items if isinstance(items, list) else None


def _words(text: str) -> tuple[str, ...]:
    items = _json_list(text) or text.split(",")
    return tuple(item[:60] for item in items if isinstance(item, str) and item.strip())[:2]


def _plan_names(text: str) -> tuple[str, ...]:
    items = _json_list(text) or text.split(",")
    return tuple(item[:MAX_NAME] for item in items if isinstance(item, str) and item)[: evaluate_state.MAX_MEASURED]


def _cells(text: str) -> tuple[str, ...]:
    """Cells such as "9<4,10<4": query 9 may not look at key 4."""
    return tuple(part for part in text.split(",")[:MAX_CELLS] if re.fullmatch(r"[0-9]{1,4}<[0-9]{1,4}", part))


def _positions(text: str) -> str | None:
    return text if re.fullmatch(r"|last|[0-9]{1,4}(,[0-9]{1,4}){0,63}", text) else None


def _number(text: str) -> float | None:
    try:
        value = float(text[:20])
    except ValueError:
        return None
    return value if -1000 <= value <= 1000 else None


_PARSERS: dict[str, Callable[[str], Any]] = {
    "model": lambda text: text[:MAX_NAME].strip() or None,
    "text": lambda text: text[:MAX_TEXT],
    "pair": lambda text: text[:MAX_TEXT],
    "other": lambda text: text[:MAX_TEXT],
    "site": _one_of(SITES),
    "layer": _whole,
    "head": _whole,
    "query": _whole,
    "key": _whole,
    "ring": _one_of(RINGS),
    "mode": _one_of(MODES),
    "quantity": _one_of(QUANTITIES),
    "words": _flag,
    "hide": _one_of(HIDDEN),
    "part": _one_of(PAIR_PARTS),
    "log": _flag,
    "own_range": _flag,
    "off": parse_heads,
    "kinds": _kinds,
    "where": _positions,
    "lines": lambda text: text[:MAX_TEXT],
    "source": lambda text: text[:MAX_TEXT],
    "denoise": _flag,
    "factor": _number,
    "answers": _words,
    "cells": _cells,
    "scope": _one_of(SCOPES),
    "plans": _records(SavedPlan, MAX_PLANS),
    "name": lambda text: text[:60],
    "plan": lambda text: text[:MAX_PLAN],
    "shown": _flag,
    "kind": _one_of(DEFAULT_KINDS),
    "panels": _records(Panel, MAX_PANELS),
    "present": _flag,
    "lesson": _one_of(lesson_state.SECTIONS),
    "step": _one_of(lesson_state.SHOWN_STEPS),
    "given": _one_of(lesson_state.INPUTS),
    "edits": lambda text: text[: MAX_EDITS + 1],  # one more, so that the page can say it was too long
    "sizes": lesson_state.read_sizes,
    "mask": _one_of(lesson_state.STEP_MASKS),
    "closing": _one_of(lesson_state.MASKS),
    "sample": lambda text: text[:MAX_NAME],
    "later": lambda text: text[:MAX_NAME],
    "at": _whole,
    "narrow": lambda text: int(text) if text in map(str, lesson_state.NARROW_HEADS) else None,
    "row": lesson_state.read_row,
    "sharp": _number,
    "gone": _whole,
    "copied": _flag,
    "cost": _one_of(cost_state.SECTIONS),
    "shape": cost_state.read_shape,
    "tokens": lambda text: int(text) if text in map(str, cost_state.LENGTHS) else None,
    "number": lambda text: int(text) if text in map(str, cost_state.NUMBER_BYTES) else None,
    "batch": lambda text: int(text) if re.fullmatch(r"[1-9][0-9]{0,3}", text) else None,
    "task": lambda text: text[:MAX_NAME],
    "prompts": lambda text: int(text) if re.fullmatch(r"[1-9][0-9]{0,3}", text) else None,
    "seed": lambda text: int(text) if re.fullmatch(r"0|[1-9][0-9]{0,5}", text) else None,
    "typed": lambda text: text[:MAX_NAME],
    "ways": lambda text: tuple(way for way in DEFAULT_KINDS if way in text.split(",")),
    "without": _plan_names,
    "measure": _one_of(evaluate_state.MEASURES),
    "part_of": lambda text: text[:MAX_NAME],
    "way": _one_of(DEFAULT_KINDS),
    "orders": lambda text: tuple(order for order in evaluate_state.ORDERS if order in text.split(",")),
    "order_by": _one_of(evaluate_state.IMPORTANCE),
}
