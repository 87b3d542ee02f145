"""Measures of attention and of effects: arrays in, arrays out. No model, no Streamlit.

Attention arrays are [head, query, key], rows summing to 1 (or 0 for a row that may attend to nothing). Logarithms are
natural: entropies, losses and divergences are in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def first_token_share(weights: Tensor) -> Tensor:
    """Mean weight on key 0, over all queries: [head]. The "attention sink" of Xiao et al. 2023."""
    return weights[..., 0].mean(dim=-1)


def previous_token_share(weights: Tensor) -> Tensor:
    """Mean weight on key i-1, over queries i from 1: [head]. 0 when there is a single query."""
    diagonal = weights.diagonal(offset=-1, dim1=-2, dim2=-1)
    return diagonal.mean(dim=-1) if diagonal.shape[-1] else weights.new_zeros(weights.shape[:-2])


def self_share(weights: Tensor) -> Tensor:
    """Mean weight on key i, over queries i: [head]."""
    return weights.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def entropy_share(weights: Tensor) -> Tensor:
    """Mean entropy of the rows, divided by the most a row could have (log of the keys it may see): [head], 0 to 1.

    A query may see every key, or, where query 0 sees key 0 only, the keys up to itself. A row with one key has no
    choice; it counts as 0 and is not divided by log 1 = 0.
    """
    n_queries, n_keys = weights.shape[-2:]
    causal = n_queries == n_keys and not bool(weights[..., 0, 1:].any())
    n_open = torch.arange(1, n_keys + 1) if causal else torch.full((n_queries,), n_keys)
    return (torch.special.entr(weights).sum(dim=-1) / n_open.clamp_min(2).log()).mean(dim=-1)


@dataclass(frozen=True)
class Measure:
    """One number per head, from 0 to 1. name: in words. definition: one line. needs_square: queries are keys."""

    name: str
    definition: str
    function: Callable[[Tensor], Tensor]
    needs_square: bool = True


MEASURES: dict[str, Measure] = {
    "first": Measure(
        "first token", "mean over queries i of α(i, 0), the weight on the first token", first_token_share, False
    ),
    "previous": Measure(
        "previous token", "mean over queries i ≥ 1 of α(i, i−1), the weight on the token before", previous_token_share
    ),
    "self": Measure("self", "mean over queries i of α(i, i), the weight on the token itself", self_share),
    "entropy": Measure(
        "spread", "mean over queries of −Σ α ln α ÷ ln(number of keys the query may see), 1 when a row is even",
        entropy_share, False,
    ),
}  # fmt: skip


def kl_divergence(clean_logits: Tensor, changed_logits: Tensor) -> Tensor:
    """KL(clean ‖ changed) of the distributions over the vocabulary, in nats: [...] for logits [..., vocabulary]."""
    clean, changed = clean_logits.log_softmax(dim=-1), changed_logits.log_softmax(dim=-1)
    # Rounding can leave -1e-9 where nothing changed; a divergence is never negative.
    return (clean.exp() * (clean - changed)).sum(dim=-1).clamp_min(0)


def token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy of each token given those before it, in nats: [position - 1], for positions 1 to the last.

    logits: [position, vocabulary], where row i predicts position i + 1. ids: [position].
    """
    if len(ids) < 2:
        return logits.new_zeros(0)
    return torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")


def logit_difference(logits: Tensor, first: int, second: int) -> Tensor:
    """Logit of one vocabulary entry minus that of another: [...] for logits [..., vocabulary]."""
    return logits[..., first] - logits[..., second]


def sentence_embedding(hidden: Tensor) -> Tensor:
    """Mean of the token vectors, the pooling of sentence-transformers: [d_model] for hidden [position, d_model]."""
    return hidden.mean(dim=0)


def cosine_similarity(first: Tensor, second: Tensor) -> float:
    """Cosine of the angle between two vectors, -1 to 1."""
    return float(torch.nn.functional.cosine_similarity(first, second, dim=0))


def token_movement(clean_hidden: Tensor, changed_hidden: Tensor) -> Tensor:
    """How far each token's final vector moved, relative to its length: ‖changed - clean‖ / ‖clean‖, [position]."""
    return (changed_hidden - clean_hidden).norm(dim=-1) / clean_hidden.norm(dim=-1).clamp_min(1e-12)
