"""Measures of attention and of effects: arrays in, arrays out. No model, no Streamlit.

Attention arrays are [head, query, key], rows summing to 1 (or 0 for a row that may attend to nothing, and less than 1
with sinks). Logarithms are natural: entropies, losses and divergences are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FLOOR = 1e-30
_CHUNK = 1 << 17  # numbers worked on at a time: half a megabyte, which stays in the processor's cache


def first_token_share(weights: Tensor) -> Tensor:
    """Mean weight on key 0, over all queries: [head]. The "attention sink" of Xiao et al. 2023."""
    return weights[..., 0].mean(dim=-1)


def previous_token_share(weights: Tensor) -> Tensor:
    """Mean weight on key i-1, over queries i from 1: [head]. 0 when there is a single query."""
    diagonal = weights.diagonal(offset=-1, dim1=-2, dim2=-1)
    return diagonal.mean(dim=-1) if diagonal.shape[-1] else weights.new_zeros(weights.shape[:-2])


def next_token_share(weights: Tensor) -> Tensor:
    """Mean weight on key i+1, over queries i up to the last but one: [head]. 0 when there is a single query, and in
    every causal model.
    """
    diagonal = weights.diagonal(offset=1, dim1=-2, dim2=-1)
    return diagonal.mean(dim=-1) if diagonal.shape[-1] else weights.new_zeros(weights.shape[:-2])


def self_share(weights: Tensor) -> Tensor:
    """Mean weight on key i, over queries i: [head]."""
    return weights.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def special_share(weights: Tensor, special: Tensor) -> Tensor:
    """Mean over queries of the weight on all special keys together: [head]. special: boolean [key].

    Raises:
        ValueError: as many marks as keys are needed.
    """
    if special.shape != weights.shape[-1:]:
        raise ValueError(f"special marks {len(special)} keys and the weights have {weights.shape[-1]}; one per key.")
    return (weights @ special.to(weights.dtype)).mean(dim=-1)


def mean_distance(weights: Tensor) -> Tensor:
    """Mean over queries i of Σ_j α(i, j) |i - j|, how many positions away a head looks: [head], in tokens."""
    maps = weights.detach().numpy()
    n_queries, n_keys = maps.shape[-2:]
    # Every row of |i - j| is a window on one list of distances: no second array of the weights' size.
    away = np.abs(np.arange(1 - n_queries, n_keys, dtype=maps.dtype))
    distances = np.lib.stride_tricks.sliding_window_view(away, n_keys)[::-1]
    return torch.from_numpy(np.einsum("...qk,qk->...q", maps, distances).mean(axis=-1, keepdims=True))[..., 0]


def row_entropies(weights: Tensor) -> Tensor:
    """Entropy −Σ_j α ln α of every row, in nats: [..., query] for weights [..., query, key]."""
    flat = weights.detach().float().reshape(-1, weights.shape[-1]).numpy()
    out = np.empty(len(flat), dtype=np.float32)
    step = max(1, _CHUNK // weights.shape[-1])
    for start in range(0, len(flat), step):
        rows = flat[start : start + step]
        rows = rows[:, : n_seen_keys(rows)]
        logs = np.maximum(rows, np.float32(_FLOOR))  # 0 ln 0 = 0, by a floor below every weight that matters
        np.log(logs, out=logs)
        out[start : start + step] = -np.einsum("rk,rk->r", rows, logs)
    return torch.from_numpy(out.clip(min=0)).view(weights.shape[:-1])


def n_seen_keys(*maps: NDArray[np.floating]) -> int:
    """How many keys, from the first on, some row [row, key] looks at: in a causal model half of all, on average."""
    largest = np.maximum.reduce([rows.max(axis=0) for rows in maps])
    seen = np.flatnonzero(largest)
    return int(seen[-1]) + 1 if len(seen) else 0


def entropy_share(weights: Tensor, causal: bool | None = None) -> Tensor:
    """Mean entropy of the rows, divided by the most a row could have (log of the keys it may see): [head], 0 to 1.

    causal: query i may see keys 0 to i, not every key. None: so where query 0 sees key 0 only. A row with one key has
    no choice; it counts as 0 and is not divided by log 1 = 0.
    """
    return _entropy_share(weights, row_entropies(weights), causal)


def _entropy_share(weights: Tensor, entropies: Tensor, causal: bool | None) -> Tensor:
    n_queries, n_keys = weights.shape[-2:]
    if causal is None:
        causal = n_queries == n_keys and not bool(weights[..., 0, 1:].any())
    n_open = torch.arange(1, n_keys + 1) if causal else torch.full((n_queries,), n_keys)
    return (entropies / n_open.clamp_min(2).log()).mean(dim=-1)


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """What a measure may look at: weights [head, query, key], and what is known about them.

    special: boolean [key], True for the model's own marks; None: not known. causal: queries see no later key; None: it
        is read from the weights.
    """

    weights: Tensor
    special: Tensor | None = None
    causal: bool | None = None

    @cached_property
    def entropies(self) -> Tensor:
        """`row_entropies` of the weights, made once for the measures that need them."""
        return row_entropies(self.weights)


@dataclass(frozen=True)
class Measure:
    """One number per head. `compute` makes it from a layer's weights.

    name: in words. definition: one line. formula: the same as LaTeX. function: [head] for an `AttentionContext`; None
        where the sentence's own weights do not tell it (see `from_sentence`).
    needs_square: queries are keys. needs_special: the special keys must be known.
    unit: "" for a share from 0 to 1, otherwise "tokens" or "nats".
    """

    name: str
    definition: str
    formula: str
    function: Callable[[AttentionContext], Tensor] | None
    needs_square: bool = True
    needs_special: bool = False
    unit: str = ""

    @property
    def from_sentence(self) -> bool:
        """Whether it is a number of the sentence at hand; otherwise of the model alone (`mha_core.induction`)."""
        return self.function is not None

    def range(self, n_queries: int, n_keys: int) -> tuple[float, float]:
        """The least and the most it can be for maps of this size."""
        if self.unit == "tokens":
            return 0.0, float(max(n_queries, n_keys, 2) - 1)
        return 0.0, math.log(max(n_keys, 2)) if self.unit == "nats" else 1.0

    def text(self, value: float) -> str:
        """A value with its unit, as it is shown: "0.41", "3.2 tokens"."""
        return f"{value:.2f}" if not self.unit else f"{value:.1f} {self.unit}"

    def compute(self, weights: Tensor, *, special: Tensor | None = None, causal: bool | None = None) -> Tensor:
        """The measure of every head, [head], for weights [head, query, key].

        special: boolean [key], the special keys. causal: whether queries see no later key; None: read from the weights.

        Raises:
            ValueError: the weights are not square, or the special keys are not given, where that is needed; or the
                measure is not one of a sentence.
        """
        return self.of(AttentionContext(weights, special, causal))

    def of(self, context: AttentionContext) -> Tensor:
        """`compute`, for a context that several measures share."""
        if self.function is None:
            raise ValueError(f"{self.name!r} is no measure of one sentence; mha_core.induction runs the model for it.")
        n_queries, n_keys = context.weights.shape[-2:]
        if self.needs_square and n_queries != n_keys:
            raise ValueError(
                f"{self.name!r} compares positions of one text; these maps have {n_queries} queries and {n_keys} keys "
                "of two texts."
            )
        if self.needs_special and context.special is None:
            raise ValueError(f"{self.name!r} needs to know which keys are special tokens; pass special=.")
        return self.function(context)


def _special(context: AttentionContext) -> Tensor:
    assert context.special is not None  # `Measure.of` has looked
    return special_share(context.weights, context.special)


MEASURES: dict[str, Measure] = {
    "first": Measure(
        "first token", "mean over queries i of α(i, 0), the weight on the first token",
        r"\frac{1}{n}\sum_i \alpha_{i,0}", lambda c: first_token_share(c.weights), needs_square=False,
    ),
    "previous": Measure(
        "previous token", "mean over queries i ≥ 1 of α(i, i−1), the weight on the token before",
        r"\frac{1}{n-1}\sum_{i \ge 1} \alpha_{i,i-1}", lambda c: previous_token_share(c.weights),
    ),
    "next": Measure(
        "next token", "mean over queries i < n−1 of α(i, i+1), the weight on the token after (0 in a causal model)",
        r"\frac{1}{n-1}\sum_{i < n-1} \alpha_{i,i+1}", lambda c: next_token_share(c.weights),
    ),
    "self": Measure(
        "self", "mean over queries i of α(i, i), the weight on the token itself",
        r"\frac{1}{n}\sum_i \alpha_{i,i}", lambda c: self_share(c.weights),
    ),
    "special": Measure(
        "special tokens", "mean over queries of the weight on all special tokens together",
        r"\frac{1}{n}\sum_i \sum_{j \in \mathrm{special}} \alpha_{i,j}", _special,
        needs_square=False, needs_special=True,
    ),
    "entropy": Measure(
        "spread", "mean over queries of −Σ α ln α ÷ ln(number of keys the query may see), 1 when a row is even",
        r"\frac{1}{n}\sum_i \frac{-\sum_j \alpha_{i,j} \ln \alpha_{i,j}}{\ln m_i}",
        lambda c: _entropy_share(c.weights, c.entropies, c.causal), needs_square=False,
    ),
    "nats": Measure(
        "entropy", "mean over queries of −Σ α ln α, in nats: e to this power is how many keys share the row",
        r"-\frac{1}{n}\sum_i \sum_j \alpha_{i,j} \ln \alpha_{i,j}",
        lambda c: c.entropies.mean(dim=-1), needs_square=False, unit="nats",
    ),
    "distance": Measure(
        "mean distance", "mean over queries i of Σ α(i, j) |i−j|, how many tokens away the head looks",
        r"\frac{1}{n}\sum_i \sum_j \alpha_{i,j}\,|i-j|", lambda c: mean_distance(c.weights), unit="tokens",
    ),
    "induction": Measure(
        "induction",
        "on random tokens repeated once: mean weight from each repeated token to the one after its first occurrence",
        r"\frac{1}{\ell}\sum_{i=\ell}^{2\ell-1} \alpha_{i,\,i-\ell+1}", None,
    ),
}  # fmt: skip


def sentence_measures(*, square: bool, special: bool) -> dict[str, Measure]:
    """The measures that maps of one sentence give. square: queries are keys. special: special keys are known."""
    return {
        name: measure
        for name, measure in MEASURES.items()
        if measure.from_sentence and (square or not measure.needs_square) and (special or not measure.needs_special)
    }


def measure_heads(
    weights: Tensor, names: Iterable[str], *, special: Tensor | None = None, causal: bool | None = None
) -> dict[str, Tensor]:
    """Several measures of one layer, name -> [head], sharing what they need. Arguments as in `Measure.compute`."""
    context = AttentionContext(weights, special, causal)
    return {name: MEASURES[name].of(context) for name in names}


def special_mask(special: Sequence[bool]) -> Tensor:
    """`Tokens.special` as the boolean [key] that measures take."""
    return torch.tensor(special, dtype=torch.bool)


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
