"""Small experiments of the lesson: masks that leak, one wide head against several, averages, heads that can go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mha_core.attention import attend
from mha_core.divergence import row_divergence
from mha_core.layer import MultiHeadAttention
from mha_core.lesson import Example, Sizes, Worked, sentence_example, toy, words_of, work
from mha_core.lesson_edits import Matrices
from mha_core.metrics import row_entropies

PADDING = "[pad]"
N_PADDING = 2
SHE = "The engineer handed the manager the report because she approved it."
SHE_KEYS = ("engineer", "manager", "report", "because")
SHE_ROWS = ((0.85, 0.05, 0.05, 0.05), (0.05, 0.10, 0.75, 0.10))
"""Illustrative, not measured: how two heads could share out the attention of “she”."""


# ---------------------------------------------------------------- masks


@dataclass(frozen=True, eq=False)
class Leak:
    """What a position's output changes by when other tokens change, in the largest number.

    worked: the sentence under the chosen mask. with_mask, without: the change with the right mask, and without any.
    before, after: the two texts that are compared.
    """

    worked: Worked
    with_mask: float
    without: float
    before: tuple[str, ...]
    after: tuple[str, ...]


def padding_mask(n_words: int, n_padding: int) -> Tensor:
    """[key] True for words, False for padding: broadcasts to [head, query, key]."""
    return torch.arange(n_words + n_padding) < n_words


def causal_leak(text: str, later: str, position: int, sizes: Sizes) -> Leak:
    """What is seen at `position` when everything after it is replaced by `later`."""
    example = sentence_example(text, sizes)
    kept = example.tokens[: position + 1]
    other = sentence_example(" ".join(kept + tuple(words_of(later))), sizes)
    with_mask = _change(work(example, causal=True), work(other, causal=True), position)
    return Leak(
        work(example, causal=True),
        with_mask,
        _change(work(example), work(other), position),
        example.tokens,
        other.tokens,
    )


def padding_leak(text: str, position: int, sizes: Sizes) -> Leak:
    """What is seen at `position` when padding is put behind the sentence, as in a batch with a longer one."""
    alone, padded = sentence_example(text, sizes), sentence_example(text, sizes, (PADDING,) * N_PADDING)
    worked = work(padded, mask=padding_mask(len(alone.tokens), N_PADDING))
    plain = work(alone)
    return Leak(
        worked, _change(plain, worked, position), _change(plain, work(padded), position), alone.tokens, padded.tokens
    )


def _change(one: Worked, other: Worked, position: int) -> float:
    return float((one.output[position] - other.output[position]).abs().max())


# ---------------------------------------------------------------- why several heads


def wide_and_narrow(example: Example) -> tuple[Worked, Worked]:
    """One head as wide as all heads together, and the heads: the very same numbers, cut differently.

    The wide head's score of a pair is the sum of the narrow heads' scores.
    """
    narrow = example.layer
    joined = narrow.n_heads * narrow.d_head
    sizes = Sizes(narrow.d_model, 1, joined)
    wide = sizes.layer().double()
    for name in ("W_Q", "W_K", "W_V"):
        weight = getattr(narrow, name)  # [head, d_model, d_head]
        getattr(wide, name).copy_(weight.transpose(0, 1).reshape(1, narrow.d_model, joined))
    wide.W_O.copy_(narrow.W_O.reshape(1, joined, narrow.d_model))
    return work(Example(example.tokens, example.x, wide)), work(example)


def n_parameters(layer: nn.Module) -> int:
    """How many numbers a layer has."""
    return sum(parameter.numel() for parameter in layer.parameters())


def counted_differently(layer: MultiHeadAttention) -> tuple[int, int]:
    """Parameters in the two ways of counting by which several heads cost more than one: a single head of the full
    width without W_O, and as many heads as here that each keep the full width.
    """
    one = MultiHeadAttention(layer.d_model, 1)
    full = MultiHeadAttention(layer.d_model, layer.n_heads, d_head=layer.d_model)
    return n_parameters(one) - one.W_O.numel(), n_parameters(full)


def mixture(shares: Sequence[float]) -> Tensor:
    """[key]: a row of weights in these proportions, made by `attend`: the logarithms of the shares are its scores.

    All shares 0 is a query that may look at nothing: a row of zeros.
    """
    scores = torch.tensor(shares, dtype=torch.float64).clamp(min=0).log()[None, None, None]
    keys = torch.eye(scores.shape[-1], dtype=torch.float64)[None, None]  # one-hot: the output is the row itself
    return attend(torch.zeros_like(scores), keys, keys, mask=scores, scale=1.0).head_outputs[0, 0, 0]


def distance(one: Tensor, other: Tensor) -> float:
    """Total variation of two rows: the share that would have to move; 0 equal, 1 nothing in common."""
    return float((one - other).abs().sum() / 2)


@dataclass(frozen=True, eq=False)
class SingleRow:
    """One row in the place of two. to_both: its distance to each; least: no row's larger distance can be below this."""

    row: Tensor
    to_both: tuple[float, float]
    least: float


def single_row(shares: Sequence[float]) -> SingleRow:
    """How near one row comes to both of `SHE_ROWS`.

    Going from one to the other by way of this row cannot be shorter than going directly, so the larger of the two
    distances is at least half of theirs.
    """
    row, first, second = mixture(shares), *map(mixture, SHE_ROWS)
    return SingleRow(row, (distance(row, first), distance(row, second)), distance(first, second) / 2)


def best_shares() -> tuple[float, ...]:
    """A single row that is as near to both as any can be: half of each."""
    return tuple(((mixture(SHE_ROWS[0]) + mixture(SHE_ROWS[1])) / 2).tolist())


# ---------------------------------------------------------------- not an average


@dataclass(frozen=True)
class Trap:
    """torch's own layer and ours on the same input. Shapes, and the largest differences."""

    output: tuple[int, ...]
    default_weights: tuple[int, ...]
    head_weights: tuple[int, ...]
    weight_error: float
    output_error: float
    average_error: float
    hidden: float


def average_trap(d_model: int = 512, n_heads: int = 8, batch: int = 2, length: int = 128) -> Trap:
    """`nn.MultiheadAttention` gives the average of its heads unless it is told otherwise; ours gives the heads.

    hidden: how far a single head's weight is from the average it disappears in, at most.
    """
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        module = nn.MultiheadAttention(d_model, n_heads, batch_first=True).eval()
        x = torch.randn(batch, length, d_model)
        output, average = module(x, x, x)
        _, weights = module(x, x, x, average_attn_weights=False)
        ours = MultiHeadAttention.from_torch(module)(x)
        return Trap(
            tuple(output.shape), tuple(average.shape), tuple(weights.shape),
            _largest(ours.weights - weights), _largest(ours.output - output),
            _largest(ours.weights.mean(dim=1) - average), _largest(weights - average[:, None]),
        )  # fmt: skip


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())


@dataclass(frozen=True, eq=False)
class Opposite:
    """Two heads that look in opposite directions. weights [head, query, key]; average [query, key].

    divergence: between the two heads' rows, in nats (at most ln 2). entropies: of head 0, head 1 and the average.
    """

    weights: Tensor
    average: Tensor
    divergence: float
    entropies: tuple[float, float, float]


def opposite_heads(n_words: int, sharp: float) -> Opposite:
    """Head 0 looks at the word before, head 1 at the word after; `sharp` is the score there, and 0 elsewhere.

    The layer reads nothing but positions (X is the identity), W_K is the identity, and W_Q of the heads moves it by
    one place in opposite directions.
    """
    layer = MultiHeadAttention(n_words, 2, d_head=n_words).double().requires_grad_(False).eval()
    eye = torch.eye(n_words, dtype=torch.float64)
    before = torch.diag(torch.ones(n_words - 1, dtype=torch.float64), -1)
    factor = sharp * n_words**0.5  # the layer divides by the root of d_head
    layer.W_Q.copy_(torch.stack([before, before.T]) * factor)
    layer.W_K.copy_(torch.stack([eye, eye]))
    weights = layer(eye[None]).weights[0]
    average = weights.mean(dim=0)
    maps = (weights[0], weights[1], average)
    first, second, both = (float(row_entropies(one[None]).mean()) for one in maps)
    return Opposite(weights, average, float(row_divergence(weights[0], weights[1]).mean()), (first, second, both))


# ---------------------------------------------------------------- heads that can go


@dataclass(frozen=True)
class Removal:
    """A head taken out: how wrong the layer's output is, in parts of its length, before and after W_O is refitted."""

    head: int
    before: float
    after: float


def removals(matrices: Matrices, copied: bool, n_texts: int = 32, length: int = 6) -> tuple[Removal, ...]:
    """Each head of the worked example taken out, measured on seeded random inputs.

    copied: head 1 is made a copy of head 0 (its W_Q, W_K and W_V) first. Refitting is least squares: the W_O with which
    the heads that are left come nearest to what the layer wrote with all of them.
    """
    layer = toy(matrices).layer
    if copied:
        for weight in (layer.W_Q, layer.W_K, layer.W_V):
            weight[1] = weight[0]
    generator = torch.Generator().manual_seed(0)
    result = layer(torch.randn(n_texts, length, layer.d_model, generator=generator, dtype=torch.float64))
    wanted = result.output.reshape(-1, layer.d_model)
    size = max(float(torch.linalg.vector_norm(wanted)), 1e-12)
    found = []
    for head in range(layer.n_heads):
        rest = [other for other in range(layer.n_heads) if other != head]
        left = result.head_outputs[:, rest].transpose(1, 2).reshape(len(wanted), -1)
        kept = layer.W_O[rest].reshape(-1, layer.d_model)
        # gelsd: also where a head's outputs are all zero, or depend on each other
        refitted = torch.linalg.lstsq(left, wanted, driver="gelsd").solution
        before, after = (float(torch.linalg.vector_norm(left @ w - wanted)) / size for w in (kept, refitted))
        found.append(Removal(head, before, after))
    return tuple(found)
