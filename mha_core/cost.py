"""What attention costs, counted: parameters, multiply-accumulates, score entries, KV cache.

Every number is counted from the shapes, exactly; none is measured (that is `cost_measured.py`). A multiply-accumulate
(MAC) is one multiplication and one addition, two floating-point operations. Counted is the attention itself: its four
projections and the two products between queries, keys and values; not norms, softmax, MLPs or embeddings.

Sources: Vaswani et al. 2017 (multi-head attention); Shazeer 2019 (one key/value head, MQA); Ainslie et al. 2023
(grouped, GQA); Pope et al. 2022 (the KV cache).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mha_core.model import Model

__all__ = ["PRESETS", "AttentionCost", "CostRow", "SingleHead", "attention_costs", "single_head_comparisons"]

MAX_SIZE = 1_000_000


@dataclass(frozen=True)
class CostRow:
    """One counted quantity. formula: in the names of `AttentionCost`, n tokens. unit: of `value`. part: its group."""

    part: str
    name: str
    formula: str
    value: int
    unit: str


@dataclass(frozen=True)
class AttentionCost:
    """The shape of a model's attention, and what it costs.

    d_model: width of the residual stream. n_heads: query heads. n_kv_heads: key/value heads (n_heads: MHA, 1: MQA,
    between: GQA). d_head: width of one head. n_layers: attention layers of this shape. bias: projections have one.
    output: there is an output projection W_O.

    Raises:
        ValueError: sizes that do not fit, in a sentence.
    """

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    n_layers: int = 1
    bias: bool = False
    output: bool = True

    def __post_init__(self) -> None:
        for name in ("d_model", "n_heads", "n_kv_heads", "d_head", "n_layers"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_SIZE:
                raise ValueError(f"{name} is {value}; it must be a whole number from 1 to {MAX_SIZE:,}.")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"{self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly; the number of "
                "query heads must be a multiple of it."
            )

    @classmethod
    def of(cls, d_model: int, n_heads: int, n_kv_heads: int | None = None, n_layers: int = 1) -> AttentionCost:
        """The usual shape, whose heads divide the width among them: d_head = d_model / n_heads."""
        if n_heads < 1 or d_model % n_heads:
            raise ValueError(
                f"d_model is {d_model} and does not divide into {n_heads} heads; take a width that is a multiple of "
                "the number of heads, or give d_head."
            )
        return cls(d_model, n_heads, n_kv_heads or n_heads, d_model // n_heads, n_layers)

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA."""
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    def with_kv_heads(self, n_kv_heads: int) -> AttentionCost:
        """The same with another number of key/value heads."""
        return replace(self, n_kv_heads=n_kv_heads)

    # ------------------------------------------------------------------------------------------------ counted

    def parameters(self) -> dict[str, int]:
        """Weights (and biases) of one layer's projections, by name."""
        query, key = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        counted = {"W_Q": self.d_model * query, "W_K": self.d_model * key, "W_V": self.d_model * key}
        if self.output:
            counted["W_O"] = query * self.d_model
        if self.bias:
            counted["biases"] = query + 2 * key + (self.d_model if self.output else 0)
        return counted

    def total_parameters(self) -> int:
        """Of all layers."""
        return self.n_layers * sum(self.parameters().values())

    def macs(self, n: int) -> dict[str, int]:
        """Multiply-accumulates of one layer over a sequence of n tokens, nothing cached, no cell left out.

        A causal kernel may leave out half of the two products; a plain one does not.
        """
        weights = {name: count for name, count in self.parameters().items() if name != "biases"}
        product = n * n * self.n_heads * self.d_head
        return {**{f"X {name}" if name != "W_O" else "Z W_O": n * count for name, count in weights.items()},
                "Q Kᵀ": product, "A V": product}  # fmt: skip

    def total_macs(self, n: int) -> int:
        """Of all layers."""
        return self.n_layers * sum(self.macs(n).values())

    def quadratic_share(self, n: int) -> float:
        """What of the multiply-accumulates grows with n²: Q Kᵀ and A V, between 0 and 1."""
        macs = self.macs(n)
        return (macs["Q Kᵀ"] + macs["A V"]) / sum(macs.values())

    def crossover(self) -> float:
        """The length at which the two products cost as much as the projections: beyond, the n² term is the larger."""
        linear = sum(count for name, count in self.parameters().items() if name != "biases")
        return linear / (2 * self.n_heads * self.d_head)

    def score_entries(self, n: int) -> int:
        """Cells of all attention maps of one layer: h · n²."""
        return self.n_heads * n * n

    def kv_numbers_per_token(self) -> int:
        """Numbers that all layers keep of one token: a key and a value per key/value head."""
        return 2 * self.n_layers * self.n_kv_heads * self.d_head

    def kv_bytes(self, n: int, bytes_per_number: int = 2, batch: int = 1) -> int:
        """The KV cache of `batch` sequences of n tokens."""
        return self.kv_numbers_per_token() * n * bytes_per_number * batch

    def table(self, n: int, bytes_per_number: int = 2, batch: int = 1) -> list[CostRow]:
        """Everything counted, with its formula."""
        if n < 1 or bytes_per_number < 1 or batch < 1:
            raise ValueError(f"n = {n}, bytes = {bytes_per_number}, batch = {batch}: each must be at least 1.")
        rows = [CostRow("parameters, one layer", name, _PARAMETER[name], value, "weights")
                for name, value in self.parameters().items()]  # fmt: skip
        rows.append(CostRow("parameters, all layers", "all projections", "layers · Σ", self.total_parameters(),
                            "weights"))  # fmt: skip
        rows += [CostRow("one layer, n tokens", name, _MACS[name], value, "MACs") for name, value in
                 self.macs(n).items()]  # fmt: skip
        rows += [
            CostRow("all layers, n tokens", "projections and products", "layers · Σ", self.total_macs(n), "MACs"),
            CostRow("one layer, n tokens", "score entries", "h · n²", self.score_entries(n), "numbers"),
            CostRow("one layer, n tokens", "score memory, if kept", "h · n² · bytes",
                    self.score_entries(n) * bytes_per_number * batch, "bytes"),
            CostRow("KV cache, all layers", "per token", "2 · layers · h_kv · d_head · bytes",
                    self.kv_bytes(1, bytes_per_number), "bytes"),
            CostRow("KV cache, all layers", f"{batch} × {n:,} tokens", "per token · n · batch",
                    self.kv_bytes(n, bytes_per_number, batch), "bytes"),
        ]  # fmt: skip
        return rows


_PARAMETER = {
    "W_Q": "d_model · h · d_head",
    "W_K": "d_model · h_kv · d_head",
    "W_V": "d_model · h_kv · d_head",
    "W_O": "h · d_head · d_model",
    "biases": "(h + 2 h_kv) · d_head + d_model",
}
_MACS = {
    "X W_Q": "n · d_model · h · d_head",
    "X W_K": "n · d_model · h_kv · d_head",
    "X W_V": "n · d_model · h_kv · d_head",
    "Q Kᵀ": "h · n² · d_head",
    "A V": "h · n² · d_head",
    "Z W_O": "n · h · d_head · d_model",
}

PRESETS: Mapping[str, AttentionCost] = {
    "Transformer (2017), base encoder": AttentionCost(512, 8, 8, 64, 6),
    "BERT-base": AttentionCost(768, 12, 12, 64, 12, bias=True),
    "GPT-2 (124M)": AttentionCost(768, 12, 12, 64, 12, bias=True),
    "Llama-2-7B": AttentionCost(4096, 32, 32, 128, 32),
    "Llama-3-8B": AttentionCost(4096, 32, 8, 128, 32),
    "SmolLM2-135M": AttentionCost(576, 9, 3, 64, 30),
    "all-MiniLM-L6-v2": AttentionCost(384, 12, 12, 32, 6, bias=True),
}
"""Published shapes, from each model's configuration."""


def attention_costs(model: Model) -> dict[str, AttentionCost]:
    """A loaded model's attention, by site ("self", or "enc", "dec" and "cross")."""
    costs = {}
    for site, shape in model.sites.items():
        projection = model.projection_by_head(site, 0)
        costs[site] = AttentionCost(
            projection.weight.shape[-1], shape.n_heads, shape.n_kv_heads, shape.d_head, shape.n_layers,
            bias=projection.bias is not None,
        )  # fmt: skip
    return costs


@dataclass(frozen=True)
class SingleHead:
    """Several heads against one, one way to count. parameters: of one layer. macs: of one layer over n tokens."""

    name: str
    says: str
    parameters: int
    macs: int


def single_head_comparisons(d_model: int, n_heads: int, n: int) -> list[SingleHead]:
    """One head against several, in each of the ways that textbooks count; the first is what it is compared with.

    At equal width the projections cost the same, which is why "several heads are free". Where the single head has no
    W_O, or where every head keeps the full width, several cost more. Both are right about different layers.
    """
    several = AttentionCost.of(d_model, n_heads)
    one = AttentionCost.of(d_model, 1)
    bare = replace(one, output=False)
    full = AttentionCost(d_model, n_heads, n_heads, d_model)
    ways = [
        (f"{n_heads} heads of {several.d_head}", "what is compared with", several),
        (f"one head of {d_model}, with W_O", "the same: the width is only divided otherwise", one),
        (f"one head of {d_model}, without W_O", "less: one head has nothing to mix", bare),
        (f"{n_heads} heads of {d_model} each", f"{n_heads} times the projections: no head is narrower", full),
    ]
    return [SingleHead(name, says, shape.total_parameters(), shape.total_macs(n)) for name, says, shape in ways]
