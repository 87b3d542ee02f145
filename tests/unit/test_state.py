"""A visitor's choices travel through a URL and come back; whatever else a URL says does no harm."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from mha_core import HeadAblation, Interventions
from mha_core.examples import EXAMPLES
from mha_core.ui import cost_state, evaluate_state, lesson_state
from mha_core.ui.state import (
    DEFAULT_KINDS,
    DEFAULT_MODEL,
    DEFAULT_TEXT,
    HIDDEN,
    KINDS,
    MAX_NAME,
    MAX_TEXT,
    MODES,
    PAIR_PARTS,
    QUANTITIES,
    RINGS,
    SCOPES,
    SITES,
    Panel,
    SavedPlan,
    ViewState,
    parse_heads,
)
from mha_core.ui.text import plain

TEXTS = (
    "", "   ", "R&D #1 = 50%", "123", "0", "a=b&c=d?e#f", "100%25", "+1 + 1", "café\nnaïve\tend", "\r\n",
    "💩 👨\u200d👩\u200d👧", "هذا اختبار", "שלום, world", "東京メトロ", "</script> <b>x</b>", "null", "None", ",",
    "[SEP] **bold** $x$ :red[y]", "trailing ", " leading", "\u00a0", "\x00", "L1H3,L1H5", "word " * 3000,
)  # fmt: skip


def through_url(state: ViewState) -> ViewState:
    """What a visitor gets who opens the link of another."""
    address = urlencode(state.to_query())
    return ViewState.from_query(dict(parse_qsl(address, keep_blank_values=True, strict_parsing=bool(address))))


def random_text(rng: random.Random) -> str:
    alphabet = [*"abc &=#%+?/\\\"'<>$*_`[]{}|~^;:@,.!\n\t", "é", "東", "💩", "ه", "\u200d", "\u202e", "1"]
    return rng.choice([rng.choice(TEXTS), "".join(rng.choices(alphabet, k=rng.randrange(40)))])


def random_heads(rng: random.Random) -> tuple[str, ...]:
    names = [f"{rng.choice(('', 'enc.', 'dec.', 'cross.'))}L{rng.randrange(40)}H{rng.randrange(20)}" for _ in range(8)]
    return tuple(dict.fromkeys(names[: rng.randrange(9)]))


def random_panel(rng: random.Random) -> Panel:
    return Panel(
        model=rng.choice(["", "own-layer/96x6/3", "a/b@main"]), text=random_text(rng), pair=random_text(rng),
        site=rng.choice(["", "enc", "cross"]), layer=rng.randrange(40), head=rng.randrange(-1, 20),
        quantity=rng.choice(QUANTITIES), off=random_heads(rng), kind=rng.choice(DEFAULT_KINDS),
    )  # fmt: skip


def random_plan(rng: random.Random) -> SavedPlan:
    plan = Interventions(HeadAblation(random_heads(rng) or "L0H0", rng.choice(DEFAULT_KINDS)))
    return SavedPlan(rng.choice(["plan 1", "a, b", "<b>", "💩"]), plan.to_json(), rng.random() < 0.5)


def random_state(rng: random.Random) -> ViewState:
    def coin() -> bool:
        return rng.random() < 0.5

    words = [" Mary", " John", "x]", "a,b", '"', "é", "null", "1"]
    return ViewState(
        model=rng.choice([DEFAULT_MODEL, "own-layer/96x6/3", "a/b@main", "/srv/models/my model", "ü", "<script>"]),
        text=random_text(rng), pair=random_text(rng), other=random_text(rng), lines=random_text(rng),
        source=random_text(rng), site=rng.choice(SITES), layer=rng.randrange(1000), head=rng.randrange(100),
        query=rng.randrange(-1, 2048), key=rng.randrange(-1, 2048), ring=rng.choice(RINGS), mode=rng.choice(MODES),
        quantity=rng.choice(QUANTITIES), words=coin(), hide=rng.choice(HIDDEN), part=rng.choice(PAIR_PARTS), log=coin(),
        own_range=coin(), off=random_heads(rng), kinds=tuple(kind for kind in KINDS if coin()), denoise=coin(),
        where=rng.choice(["", "last", "0", "3,5,12"]), factor=rng.choice([0.5, 0.0, -2.0, 1e-3, 1 / 3]),
        answers=tuple(rng.sample(words, rng.randrange(3))), cells=tuple(rng.sample(["9<4", "10<4", "0<0"], 2)),
        scope=rng.choice(SCOPES), plans=tuple(random_plan(rng) for _ in range(rng.randrange(3))),
        panels=tuple(random_panel(rng) for _ in range(rng.randrange(3))), present=coin(),
        lesson=rng.choice(lesson_state.SECTIONS), step=rng.choice(lesson_state.SHOWN_STEPS), copied=coin(),
        given=rng.choice(lesson_state.INPUTS), edits=rng.choice(["", "X.0.1=3,Q1.2.0=-0.5", "X.0.0=abc"]),
        sizes=rng.choice(["8x2", "16x4x3/7"]), mask=rng.choice(lesson_state.STEP_MASKS), at=rng.randrange(-1, 12),
        closing=rng.choice(lesson_state.MASKS), sample=random_text(rng)[:MAX_NAME], later=random_text(rng)[:99],
        narrow=rng.choice(lesson_state.NARROW_HEADS), row=rng.choice(["45,5,45,5", "0,0,0,100"]),
        sharp=rng.choice([0.0, 2.5]), gone=rng.randrange(-1, 2),
        cost=rng.choice(cost_state.SECTIONS), shape=rng.choice(["512x8x8x64x6", "576x9x3x64x30b"]),
        tokens=rng.choice(cost_state.LENGTHS), number=rng.choice(cost_state.NUMBER_BYTES), batch=rng.randrange(1, 99),
        task=random_text(rng)[:MAX_NAME], prompts=rng.randrange(1, 9999), seed=rng.choice([0, 7, 999_999]),
        typed=rng.choice(["", "L1H3, L1H5; L2H0", "what?"]), ways=tuple(kind for kind in DEFAULT_KINDS if coin()),
        without=tuple(rng.sample(["a", "a, b", " c", "[d", "💩"], rng.randrange(4))),
        measure=rng.choice(evaluate_state.MEASURES), part_of=random_text(rng)[:MAX_NAME],
        way=rng.choice(DEFAULT_KINDS), orders=tuple(order for order in evaluate_state.ORDERS if coin()),
        order_by=rng.choice(evaluate_state.IMPORTANCE),
    )  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("field", ["text", "pair", "other"])
def test_every_text_survives_the_url(field: str, text: str) -> None:
    state = ViewState().with_(**{field: text})
    assert through_url(state) == state


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_survives_the_url(example: Any) -> None:
    state = ViewState(text=example.text, pair=example.pair)
    assert through_url(state) == state


@pytest.mark.parametrize("seed", range(10))
def test_any_state_survives_the_url(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        state = random_state(rng)
        assert through_url(state) == state


def test_the_default_state_has_a_clean_address() -> None:
    assert ViewState().to_query() == {}
    assert ViewState.from_query({}) == ViewState()
    assert ViewState().text == DEFAULT_TEXT


def test_only_what_differs_is_in_the_address() -> None:
    assert ViewState(layer=3, off=("L1H3", "L1H5")).to_query() == {"layer": "3", "off": "L1H3,L1H5"}


def test_an_answer_that_begins_like_a_list_survives_the_url() -> None:
    state = ViewState(answers=("[SEP]", "[x"))
    assert through_url(state) == state


@pytest.mark.parametrize("name", [field.name for field in fields(ViewState)])
def test_every_choice_can_be_in_the_address(name: str) -> None:
    rng = random.Random(1)
    assert len({through_url(random_state(rng)).to_query().get(name) for _ in range(50)}) > 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"layer": "-7"}, {}), ({"layer": "abc"}, {}), ({"layer": "1e3"}, {}), ({"layer": "²"}, {}),
        ({"layer": "٣"}, {}), ({"layer": ""}, {}), ({"layer": "9" * 5000}, {}), ({"layer": "0" * 6 + "9" * 5000}, {}),
        ({"layer": "10000"}, {}),
        ({"words": "yes"}, {}), ({"words": "1"}, {"words": True}), ({"panels": "{"}, {}), ({"panels": "[" * 9000}, {}),
        ({"panels": '[7, "x", null, {"layer": "x", "off": 3, "kind": "y"}]'}, {"panels": (Panel(),)}),
        ({"layer": "999"}, {"layer": 999}), ({"head": "1.5"}, {}),
        ({"query": "-1"}, {}), ({"query": "-7"}, {}), ({"query": "4"}, {"query": 4}), ({"ring": "sink"}, {}),
        ({"ring": ""}, {}), ({"site": "everywhere"}, {}), ({"site": "dec"}, {"site": "dec"}), ({"model": ""}, {}),
        ({"unknown": "x", "_view_state": "y"}, {}), ({"off": ""}, {}), ({"off": "garbage,,;L1,H3,L1H"}, {}),
        ({"off": "L99H99,garbage,L1H3"}, {"off": ("L99H99", "L1H3")}), ({"off": "L1H3,l1h3 "}, {"off": ("L1H3",)}),
        ({"kinds": ""}, {"kinds": ()}), ({"kinds": "mean"}, {"kinds": ("mean",)}), ({"kinds": "mean,zero"}, {}),
        ({"factor": "nan"}, {}), ({"factor": "1e400"}, {}), ({"factor": "2"}, {"factor": 2.0}), ({"where": "1,x"}, {}),
        ({"where": "last"}, {"where": "last"}), ({"cells": "9<4,x<1"}, {"cells": ("9<4",)}), ({"plans": "{}"}, {}),
        ({"answers": "[1, null]"}, {}), ({"answers": "a,b,c"}, {"answers": ("a", "b")}),
        ({"prompts": "0"}, {}), ({"prompts": "1e3"}, {}), ({"seed": "007"}, {}), ({"measure": "x"}, {}),
        ({"ways": "x"}, {"ways": ()}),
        ({"orders": "random,x"}, {"orders": ("random",)}), ({"order_by": ""}, {}), ({"without": "[7]"}, {}),
        ({"kinds": "mean,foo"}, {"kinds": ("mean",)}), ({"kinds": "foo"}, {}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_becomes_its_default(query: dict[str, str], expected: dict[str, Any]) -> None:
    assert ViewState.from_query(query) == ViewState(**expected)


def test_long_values_are_capped() -> None:
    state = ViewState.from_query({"model": "m" * 10_000, "text": "x" * 100_000, "pair": "y" * 100_000})
    assert (len(state.model), len(state.text), len(state.pair)) == (MAX_NAME, MAX_TEXT, MAX_TEXT)


def test_a_million_heads_are_read_quickly_and_capped() -> None:
    names = parse_heads("L1H3," * 1_000_000)
    assert names == ("L1H3",)
    assert len(parse_heads(",".join(f"L{n // 64}H{n % 64}" for n in range(5000)))) == 4096


def test_whatever_a_query_says_becomes_a_state_that_has_an_address() -> None:
    rng = random.Random(0)
    names = [*(field.name for field in fields(ViewState)), "x", "embed"]
    junk = ["", ",", "L1H3", "-0", "1" * 400, "\x00", "<script>", "zero,,mean", "NaN", "{}", "💩" * 500, "[{}]", "[]"]
    for _ in range(500):
        state = ViewState.from_query({name: rng.choice(junk) for name in rng.sample(names, 6)})
        assert through_url(state) == state


def test_a_changed_copy_leaves_the_original() -> None:
    state = ViewState()
    assert state.with_(layer=2).layer == 2
    assert state == ViewState()


@pytest.mark.parametrize("text", ["**x**", ":red[x]", "$a$", "<b>", "[a](b)", "`c`", "# h", "a\\b", "1. x", "~~x~~"])
def test_escaped_text_has_no_punctuation_without_a_backslash(text: str) -> None:
    escaped = plain(text)
    at = 0
    letters = []
    while at < len(escaped):
        if escaped[at] == "\\":
            at += 1
        else:
            assert escaped[at].isalnum() or escaped[at] == " "
        letters.append(escaped[at])
        at += 1
    assert "".join(letters) == text


def test_an_address_without_a_text_has_one_that_its_model_reads() -> None:
    dates = ViewState.from_query({"model": "date-translator"})
    assert dates.text == "the 3rd of March, 2021"
    assert dates.to_query() == {"model": "date-translator"}
    typed = dates.with_(text=DEFAULT_TEXT)
    assert ViewState.from_query(typed.to_query()) == typed
