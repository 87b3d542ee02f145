"""Multi-head attention step by step: a worked example whose every number can be changed, and any sentence.

Nothing here computes attention: the numbers are what `MultiHeadAttention` and `attention_scores` leave behind.
Axes are always in the order `head, query, key, d_head`; there is no batch in what is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.attention import attention_scores
from mha_core.interventions import HeadAblation
from mha_core.layer import MultiHeadAttention
from mha_core.own_layer import embed_words
from mha_core.tokens import split_words

Matrices = Mapping[str, tuple[tuple[float, ...], ...]]

TOY_TOKENS = ("I", "learn.")
_FIRST_TWO = ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, 0.0))
_LAST_TWO = ((0.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
TOY: Matrices = {
    "X": ((1.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 1.0)),
    **{f"{name}0": _FIRST_TWO for name in "QKV"},
    **{f"{name}1": _LAST_TWO for name in "QKV"},
    "O": ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
}
"""The worked example: X [position, d_model]; Q0 … V1, the heads' projections [d_model, d_head]; O [d_model, d_model].

Head 0 reads dimensions 0 and 1, head 1 dimensions 2 and 3, and W_O is the identity: every product can be done by hand.
"""

TOY_HEADS = 2
MAX_WORDS = 12
MAX_D_MODEL, MAX_HEADS, MAX_D_HEAD = 64, 8, 64


class LessonError(ValueError):
    """Something that was typed does not fit; the message says what would."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a layer with seeded projections. d_head: None for d_model / n_heads."""

    d_model: int = 8
    n_heads: int = 2
    d_head: int | None = None
    seed: int = 0

    def layer(self) -> MultiHeadAttention:
        """The layer of these sizes.

        Raises:
            LessonError: sizes that are too large to be shown, or that do not fit together.
        """
        limits = (("d_model", self.d_model, MAX_D_MODEL), ("h", self.n_heads, MAX_HEADS))
        for name, value, most in (*limits, ("d_k", self.d_head or 1, MAX_D_HEAD)):
            if not 1 <= value <= most:
                raise LessonError(f"{name} is {value}; here it can be 1 to {most}.")
        if self.d_head is None and self.d_model % self.n_heads:
            raise LessonError(
                f"d_model {self.d_model} is not divisible by h = {self.n_heads}, so d_k = d_model / h is not a whole "
                "number. Choose other sizes, or give d_k itself."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return MultiHeadAttention(self.d_model, self.n_heads, d_head=self.d_head).requires_grad_(False).eval()


@dataclass(frozen=True, eq=False)
class Example:
    """What goes into the calculation. x: [position, d_model]. left_out: words that are not taken."""

    tokens: tuple[str, ...]
    x: Tensor
    layer: MultiHeadAttention
    left_out: int = 0


def toy(matrices: Matrices = TOY) -> Example:
    """The worked example with these numbers, in double precision."""
    layer = MultiHeadAttention(4, TOY_HEADS).double().requires_grad_(False).eval()
    for name in "QKV":
        stacked = torch.stack([_tensor(matrices[f"{name}{head}"]) for head in range(TOY_HEADS)])
        getattr(layer, f"W_{name}").copy_(stacked)
    layer.W_O.copy_(_tensor(matrices["O"]).view_as(layer.W_O))  # [head * d_head, d_model] -> [head, d_head, d_model]
    return Example(TOY_TOKENS, _tensor(matrices["X"]), layer)


def _tensor(rows: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def words_of(text: str) -> list[str]:
    """A text's words and punctuation marks."""
    return [text[start:end] for start, end in split_words(text)]


def sentence_example(text: str, sizes: Sizes, more: tuple[str, ...] = ()) -> Example:
    """Any sentence, one token per word, with seeded embeddings (and sinusoidal positions) and seeded projections.

    Args:
        text: at least one word; words after the first `MAX_WORDS` are left out.
        sizes: of the layer.
        more: tokens put behind the sentence, such as padding.

    Raises:
        LessonError: no word, or sizes that do not fit.
    """
    words = words_of(text)
    if not words:
        raise LessonError("There is no word to work with. Type a sentence.")
    tokens = (*words[:MAX_WORDS], *more)
    layer = sizes.layer().double()
    x = embed_words(tokens, layer.d_model, sizes.seed).double()
    return Example(tokens, x, layer, max(len(words) - MAX_WORDS, 0))


@dataclass(frozen=True, eq=False)
class Worked:
    """Every intermediate of one attention, in order.

    queries, keys: labels of the positions. heads: names of the heads that are here.
    x: [query, d_model], the layer's input; None where it is not known (inside a real model).
    query: [head, query, d_head]. key, value: [head, key, d_head], as each query head sees them.
    products: Q Kᵀ; scaled: times `scale`; masked: what goes into the softmax; all [head, query, key].
    weights: [head, query, key]. head_outputs: z [head, query, d_head].
    joined: [query, all heads * d_head], the heads' outputs side by side. block: its columns that belong to head 0
    here (a real head is one among others).
    contributions: [head, query, d_model], z W_O of each head. output: [query, d_model], after W_O.
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    heads: tuple[str, ...]
    x: Tensor | None
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    products: Tensor
    scaled: Tensor
    masked: Tensor
    weights: Tensor
    head_outputs: Tensor
    joined: Tensor
    contributions: Tensor
    output: Tensor
    layer: MultiHeadAttention | None = None
    notes: tuple[str, ...] = ()
    block: int = 0

    @property
    def d_head(self) -> int:
        return int(self.query.shape[-1])

    @property
    def residual(self) -> Tensor | None:
        """[query, d_model]: the input plus what attention wrote, which the next component reads."""
        return None if self.x is None else self.x + self.output

    @property
    def closed(self) -> Tensor:
        """[head, query, key] True where the mask lets nothing through."""
        return self.masked == float("-inf")


def work(example: Example, *, causal: bool = False, mask: Tensor | None = None, off: tuple[int, ...] = ()) -> Worked:
    """Run the layer once and keep every step.

    Args:
        causal: each position sees itself and what is before it.
        mask: boolean, True where a query may attend; broadcasts to [head, query, key].
        off: heads whose output is set to zero, before the output projection.
    """
    layer = example.layer
    plan = [HeadAblation([f"L0H{head}" for head in off], kind="zero")] if off else None
    result = layer(example.x[None], mask=mask, causal=causal, ablation=plan)
    query, key = result.query, result.key
    return Worked(
        queries=example.tokens, keys=example.tokens, heads=tuple(f"H{head}" for head in range(layer.n_heads)),
        x=example.x, query=query[0], key=key[0], value=result.value[0], scale=layer.d_head**-0.5,
        products=attention_scores(query, key, scale=1.0)[0], scaled=attention_scores(query, key)[0],
        masked=attention_scores(query, key, mask=mask, causal=causal)[0], weights=result.weights[0],
        head_outputs=result.head_outputs[0], joined=join(result.head_outputs[0]),
        contributions=result.contributions[0], output=result.output[0], layer=layer,
    )  # fmt: skip


def join(head_outputs: Tensor) -> Tensor:
    """[head, query, d_head] -> [query, head * d_head]: the heads' outputs side by side."""
    return head_outputs.transpose(0, 1).reshape(head_outputs.shape[1], -1)
