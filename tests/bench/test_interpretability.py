"""Every head ablated: our sweep against one forward per head by nnsight and TransformerLens, with the same numbers."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from mha_core import load_model
from mha_core.sweep import head_ablation_sweep
from tests.bench.interpretability import LIBRARIES, find
from tests.bench.measure import Spread, sentence, tell

pytestmark = pytest.mark.bench

SMOLLM2, N_TOKENS = "smollm2-135m-instruct", 14
HEADS = 30  # of 270: the others take as long
ROUNDS = 2
LARGEST_ERROR = 1e-4


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_sweep_against_another_library(library: str) -> None:
    missing = find(library)
    if missing:
        pytest.skip(missing)
    model = load_model(SMOLLM2)
    shape = model.sites[model.main_site]
    tokens = model.tokenize(sentence(lambda text: len(model.tokenize(text)), N_TOKENS))
    read = LIBRARIES[library](SMOLLM2, tokens.ids, shape.d_head)

    def one_by_one() -> np.ndarray:
        clean = torch.log_softmax(read().double(), dim=-1)
        effects = []
        for place in range(HEADS):
            ablated = torch.log_softmax(read(*divmod(place, shape.n_heads)).double(), dim=-1)
            effects.append(float((clean.exp() * (clean - ablated)).sum()))
        return np.array(effects)

    head_ablation_sweep(model, tokens)
    read()
    ours, theirs = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        sweep = head_ablation_sweep(model, tokens)
        swept = time.perf_counter()
        effects = one_by_one()
        ours.append(swept - began)
        theirs.append((time.perf_counter() - swept) * sweep.effects.size / HEADS)
        error = float(abs(sweep.effects.ravel()[:HEADS] - effects).max())
        assert error <= LARGEST_ERROR
    row = {
        "heads": sweep.effects.size,
        "tokens": N_TOKENS,
        "sweep, s": Spread(tuple(ours)).text(digits=2),
        f"{library}, s": Spread(tuple(theirs)).text(digits=1),
        "times faster": Spread(tuple(b / a for a, b in zip(ours, theirs, strict=True))).text(digits=1),
        "largest error": f"{error:.1e}",
    }
    note = f"{library}: {HEADS} heads were run one by one and their time scaled to {sweep.effects.size}."
    tell(f"Exact sweep against {library}: {SMOLLM2}", [row], [note])
