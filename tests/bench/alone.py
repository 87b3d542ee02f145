"""What is measured in a process of its own. Imports only light things at the top: their time and memory would count."""

from __future__ import annotations

import time
from typing import Any

from tests.bench.measure import in_turn, peak_bytes, resident_bytes, sentence

SMOLLM2 = "smollm2-135m-instruct"
N_TOKENS = 2048
LAYERS = (0, 13, 29)
SENTENCE = "The keys to the old wooden cabinet in the hallway are on the table near the window. "


def start(name: str) -> dict[str, float]:
    """In a fresh process: seconds for importing the package, for loading a model, and for its first run."""
    began = time.perf_counter()
    from mha_core import load_model

    imported = time.perf_counter()
    model = load_model(name)
    loaded = time.perf_counter()
    model.run("When Mary and John went to the store, John gave a drink to")
    ran = time.perf_counter()
    return {"import": imported - began, "load": loaded - imported, "run": ran - loaded}


def long_text() -> str:
    """More than enough; it is cut at the limit."""
    return SENTENCE * 200


class StoppedError(Exception):
    """What the progress of a run that is given up raises."""


def run_and_look() -> dict[str, Any]:
    """In a fresh process: a run with its overview, maps of some layers, a run that is stopped, and one after it."""
    import torch

    from mha_core import load_model
    from mha_core.views import Overview

    memory = {"imports": resident_bytes()}
    model = load_model(SMOLLM2)
    memory["the model"] = resident_bytes()
    tokens = model.tokenize(long_text())
    assert len(tokens) == N_TOKENS
    seconds, steps = {}, []

    began = time.perf_counter()
    overview = Overview("self")
    trace = model.run(
        tokens,
        progress=lambda done, total: steps.append((done, total)),
        observe=lambda slot, head, weights: overview.add(slot[1], weights, head),
    )
    seconds["run with every head's thumbnail and measures"] = time.perf_counter() - began
    assert overview.is_complete(model.n_layers)
    assert steps == [(layer, model.n_layers) for layer in range(model.n_layers)]
    memory["a run, its trace kept"] = resident_bytes()

    for layer in LAYERS:
        began = time.perf_counter()
        weights = trace.weights(layer)
        seconds[f"maps of layer {layer} again"] = time.perf_counter() - began
        assert weights.shape == (model.n_heads, N_TOKENS, N_TOKENS)
        assert float((weights.sum(dim=-1) - 1).abs().max()) < 1e-4
    del weights
    began = time.perf_counter()
    Overview.of(trace, "self")
    seconds["all thumbnails and measures again, from the trace"] = time.perf_counter() - began
    expected = trace.hidden
    trace_bytes = trace.nbytes
    del trace

    def stop_half_way(done: int, total: int) -> None:
        if done == total // 2:
            raise StoppedError

    before = resident_bytes()
    began = time.perf_counter()
    for _ in range(3):
        try:
            model.run(tokens, progress=stop_half_way)
        except StoppedError:
            continue
        raise AssertionError("progress raised and the run went on")
    seconds["stopped half-way"] = (time.perf_counter() - began) / 3
    left_behind = resident_bytes() - before
    again = model.run(tokens)
    return {
        "memory": memory,
        "peak": peak_bytes(),
        "seconds": seconds,
        "trace": trace_bytes,
        "left_behind": left_behind,
        "is_equal": torch.equal(again.hidden, expected),
    }


def against_the_library() -> dict[str, list[float]]:
    """In a fresh process: seconds of our run and of the library's plain forward, in turn."""
    from mha_core import load_model
    from tests.bench.library import plain_forward, plain_model

    model = load_model(SMOLLM2)
    tokens = model.tokenize(long_text())
    forward = plain_forward(plain_model(SMOLLM2, model.kind), model.kind, tokens.ids)
    pairs = in_turn(lambda: model.run(tokens), forward, pairs=4, warm_up=1)
    return {"own": list(pairs.first.values), "library": list(pairs.second.values)}


def memory_of_a_sweep(name: str, n_tokens: str) -> dict[str, int]:
    """In a fresh process: bytes it occupied after a first run, and at most, with a sweep of every head."""
    from mha_core import load_model
    from mha_core.sweep import head_ablation_sweep

    model = load_model(name)
    tokens = model.tokenize(sentence(lambda text: len(model.tokenize(text)), int(n_tokens)))
    model.run(tokens)
    before = resident_bytes()
    head_ablation_sweep(model, tokens)
    return {"before": before, "peak": peak_bytes()}
