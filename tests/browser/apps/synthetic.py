"""Made-up attention maps with known shapes, for the component tests: no model needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TEXT = "[CLS] the engineer handed the manager the report because she approved it . [SEP]"
WORDS = TEXT.split()


def maps(n_heads: int, n: int, *, causal: bool = False, seed: int = 0) -> NDArray[np.float32]:
    """[head, query, key], rows sum to 1: some heads diagonal, some on the first token, some spread."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 1.0, (n_heads, n, n))
    positions = np.arange(n)
    for head in range(n_heads):
        if head % 4 == 0:
            scores[head] -= 0.9 * np.abs(positions[:, None] - positions[None, :] - 1)
        if head % 3 != 1:
            scores[head, :, 0] += 1 + head % 5
    if causal:
        scores = np.where(positions[None, :] > positions[:, None], -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def model(n_layers: int, n_heads: int, n: int, *, causal: bool = False) -> NDArray[np.float32]:
    """[layer, head, query, key]."""
    return np.stack([maps(n_heads, n, causal=causal, seed=layer) for layer in range(n_layers)])
