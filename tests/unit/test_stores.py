"""What the server keeps between runs has a bound, and goes with its model."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from mha_core import InputError, Tokens, load_model
from mha_core.ui.stores import MAX_DRAWN_BYTES, MAX_MODELS, MAX_TOKENIZED, Store

OWN = "own-layer/32x4/{}"


@pytest.fixture
def thawed() -> object:
    """Leaves nothing frozen behind."""
    yield
    gc.unfreeze()


def test_what_is_drawn_is_made_once_and_has_a_bound() -> None:
    store, made = Store(), []

    def make(number: int, size: int) -> np.ndarray:
        made.append(number)
        return np.full(size, number, dtype=np.uint8)

    size = MAX_DRAWN_BYTES // 4
    for number in (0, 1, 0, 1):
        assert store.drawn((7, number), lambda number=number: make(number, size))[0] == number  # type: ignore[misc]
    assert made == [0, 1]
    for number in (2, 3, 4):
        store.drawn((7, number), lambda number=number: (make(number, size), (2, 2)))  # type: ignore[misc]
    store.drawn((7, 4), lambda: make(99, size))
    assert made == [0, 1, 2, 3, 4], "the newest is still there"
    store.drawn((7, 0), lambda: make(0, size))
    assert made == [0, 1, 2, 3, 4, 0], "the oldest had to go"
    too_large = store.drawn((7, 5), lambda: np.zeros(MAX_DRAWN_BYTES + 1, dtype=np.uint8))
    assert len(too_large) == MAX_DRAWN_BYTES + 1
    store.drawn((7, 0), lambda: make(98, size))
    assert 98 not in made, "what is too large to keep pushes nothing out"


def test_a_text_is_made_into_tokens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, model = Store(), load_model(OWN.format(0))
    asked: list[tuple[str, str | None]] = []
    tokenize = model.tokenize

    def counted(text: str, pair: str | None = None) -> Tokens:
        asked.append((text, pair))
        return tokenize(text, pair)

    monkeypatch.setattr(model, "tokenize", counted)
    assert store.tokens(model, "a b", None) is store.tokens(model, "a b", None)
    assert store.tokens(model, "a b c", None).labels == ("a", "b", "c")
    assert asked == [("a b", None), ("a b c", None)]
    for _ in range(2):
        with pytest.raises(InputError):
            store.tokens(model, "", None)
    assert asked[2:] == [("", None)] * 2, "what could not be read is not kept"
    for number in range(MAX_TOKENIZED):
        store.tokens(model, f"text {number}", None)
    store.tokens(model, "a b", None)
    assert asked[-1] == ("a b", None), "the oldest had to go"


def test_tokens_go_with_their_model(thawed: object) -> None:
    store = Store()
    first = store.model(OWN.format(0), print)
    tokens = store.tokens(first, "a b", None)
    for seed in range(1, MAX_MODELS + 1):
        store.model(OWN.format(seed), print)
    assert not store.has_model(OWN.format(0))
    assert store.tokens(first, "a b", None) is not tokens


def test_what_stays_is_frozen_once_after_a_load(thawed: object) -> None:
    store = Store()
    store.settle()
    before = gc.get_freeze_count()
    store.model(OWN.format(0), print)
    store.settle()
    after = gc.get_freeze_count()
    assert after > before
    rubbish: list[list[int]] = [[] for _ in range(1000)]
    store.settle()
    assert gc.get_freeze_count() == after, f"a page's own {len(rubbish)} objects are not frozen with every run"
