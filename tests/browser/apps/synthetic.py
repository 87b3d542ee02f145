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


HOSTILE = "<img src=x onerror=alert(1)>"
HEBREW = ["הכלב", "רץ", "אל", "הבית", "כי", "הוא", "היה", "רעב", "מאוד"]


def labels(n: int, *, rtl: bool = False) -> list[str]:
    """n token labels: the sentence, one of them hostile; longer texts repeat numbered words."""
    words = ["[CLS]", *HEBREW, "[SEP]"] if rtl else [*WORDS[:5], HOSTILE, *WORDS[6:]]
    return [words[i] if i < len(words) else f"{WORDS[1 + i % 12]}{i}" for i in range(n)]


def target_labels(n: int) -> list[str]:
    """n labels of another text, as cross-attention has them."""
    return [["der", "Ingenieur", "gab", "der", "Managerin", "den", "Bericht", ",", "weil"][i % 9] for i in range(n)]


def viewer_maps(n_heads: int, n_queries: int, n_keys: int, *, causal: bool = False) -> NDArray[np.float32]:
    """[head, query, key], rows sum to 1; cell (7, 2) of every head where there is one is 0.1234 exactly enough."""
    rng = np.random.default_rng(7)
    queries, keys = np.arange(n_queries)[:, None], np.arange(n_keys)[None, :]
    weights = np.empty((n_heads, n_queries, n_keys), np.float32)
    for head in range(n_heads):
        scores = rng.normal(0, 1.2, (n_queries, n_keys)).astype(np.float32)
        scores -= (0.5 * np.abs(queries - keys - head % 4)).astype(np.float32) * (head % 3 != 1)
        scores[:, 0] += 1 + head % 5
        if causal:
            scores = np.where(keys > queries, -np.inf, scores)
        weights[head] = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    if n_queries > 7 and n_keys > 2:
        weights[:, 7] *= (1 - 0.1234) / (1 - weights[:, 7, 2])[:, None]
        weights[:, 7, 2] = 0.1234
    return weights
