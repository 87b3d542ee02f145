"""What the server keeps between runs, with a bound on each: loaded models, and traces.

Keys are names and texts, never arrays. Everything kept is a pure result: a model as its files make it, a trace as
(model, text, plan) makes it, so that visitors can share them.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import streamlit as st
from cachetools import LRUCache

from mha_core.loading import load_model
from mha_core.model import Model
from mha_core.tokens import Tokens
from mha_core.trace import Trace

MAX_MODELS = 3
MAX_TRACE_BYTES = 1_000_000_000
MAX_RESULTS = 24  # a sweep of 270 heads over 100 prompts takes a megabyte
MAX_DRAWN_BYTES = 200_000_000
MAX_TOKENIZED = 16


T = TypeVar("T")


def _size(value: Any) -> int:
    """Bytes of a result's arrays, and a kilobyte for what they are wrapped in."""
    if isinstance(value, tuple):
        return sum(map(_size, value))
    return 1000 + int(getattr(value, "nbytes", 0))


class Store:
    """Models by name, and traces and what is drawn from them by key. One for the whole server, safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loading: dict[str, threading.Lock] = {}
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._traces: LRUCache[Hashable, Trace] = LRUCache(MAX_TRACE_BYTES, getsizeof=lambda trace: trace.nbytes)
        self._small: LRUCache[Hashable, Any] = LRUCache(256)
        self._results: LRUCache[Hashable, Any] = LRUCache(MAX_RESULTS)
        self._drawn: LRUCache[Hashable, Any] = LRUCache(MAX_DRAWN_BYTES, getsizeof=_size)
        self._tokens: LRUCache[tuple[str, str, str | None], Tokens] = LRUCache(MAX_TOKENIZED)
        self._unsettled = False

    def has_model(self, name: str) -> bool:
        """Whether the model is in memory."""
        with self._lock:
            return name in self._models

    def loaded(self) -> dict[str, Model]:
        """The models in memory, by name."""
        with self._lock:
            return dict(self._models)

    def model(self, name: str, report: Callable[[str], None]) -> Model:
        """The model, loaded now if it is not in memory. One thread loads it; others who want it wait for that."""
        with self._lock:
            turn = self._loading.setdefault(name, threading.Lock())
        with turn:
            with self._lock:
                if name in self._models:
                    self._models.move_to_end(name)
                    return self._models[name]
            model = load_model(name, report=report)
            with self._lock:
                self._models[name] = model
                while len(self._models) > MAX_MODELS:
                    dropped, _ = self._models.popitem(last=False)
                    self._forget(dropped)
                self._unsettled = True
            return model

    def _forget(self, name: str) -> None:
        """Traces hold on to their model; they go with it."""
        self._loading.pop(name, None)
        for text in [text for text in self._tokens if text[0] == name]:
            self._tokens.pop(text, None)
        for key in [key for key in self._traces if isinstance(key, tuple) and key[0] == name]:
            self._traces.pop(key, None)

    def settle(self) -> None:
        """After a model has been loaded, at the end of a page's run: take what is in memory now out of the garbage
        collector's sight.

        Streamlit collects all garbage after every run of a page, and looking through a million objects of torch,
        transformers and a model, which stay, takes 0.2 s each time.
        """
        with self._lock:
            if not self._unsettled:
                return
            self._unsettled = False
        gc.unfreeze()  # a model that has been dropped meanwhile goes now
        gc.collect()
        gc.freeze()

    def tokens(self, model: Model, text: str, pair: str | None) -> Tokens:
        """A text as the model's tokens, from the store or made now: a page asks for them more than once, and 2,048
        take a tenth of a second.

        Raises:
            InputError: as `Model.tokenize`.
        """
        key = (model.name, text, pair)
        with self._lock:
            if key in self._tokens:
                return self._tokens[key]
        tokens = model.tokenize(text, pair)
        with self._lock:
            self._tokens[key] = tokens
        return tokens

    def trace(self, key: Hashable, make: Callable[[], Trace]) -> Trace:
        """The trace kept under `key`, made now if there is none. One too large to keep is made and not kept."""
        with self._lock:
            if key in self._traces:
                return self._traces[key]
        trace = make()
        with self._lock:
            if trace.nbytes <= MAX_TRACE_BYTES // 2:
                self._traces[key] = trace
        return trace

    def has_trace(self, key: Hashable) -> bool:
        """Whether a trace is kept."""
        with self._lock:
            return key in self._traces

    def peek(self, key: Hashable) -> Any:
        """A small result if it is kept, else None."""
        with self._lock:
            return self._small.get(key)

    def keep(self, key: Hashable, value: Any) -> None:
        """Keep a small result that was made elsewhere."""
        with self._lock:
            self._small[key] = value

    def result(self, key: Hashable) -> Any:
        """A measurement on a task, whole or in part, if it is kept, else None."""
        with self._lock:
            return self._results.get(key)

    def keep_result(self, key: Hashable, value: Any) -> None:
        """Keep a measurement on a task, over an older part of it."""
        with self._lock:
            self._results[key] = value

    def small(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Any small result (numbers of a few kilobytes), kept by key."""
        return self._kept(self._small, key, make)

    def drawn(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is drawn of a trace (arrays of a few megabytes), kept by a key that begins with the trace's `serial`."""
        return self._kept(self._drawn, key, make)

    def _kept(self, cache: LRUCache[Hashable, Any], key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key in cache:
                found: T = cache[key]
                return found
        value = make()
        with self._lock:
            if cache.getsizeof(value) <= cache.maxsize:
                cache[key] = value
        return value


@st.cache_resource
def store() -> Store:
    """The server's one store."""
    return Store()
