"""The one attention function: `softmax(Q K^T * scale + bias + mask) V`, per head.

Every attention weight in Headscope is computed here: by the project's own layer, inside pretrained
models, on the lesson page, and again when a map is looked at. Nothing else multiplies a query by a key.

Axes are always in the order `batch, head, query, key, d_head`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.devices import at_home, is_half
from mha_core.edits import BlockKeys, Edit, UniformWeights, block_keys, edit_outputs, spread_weights
from mha_core.masking import NEG_INF, as_4d, causal_mask


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """How a layer's queries weigh the keys, before anything is mixed.

    weights: [batch, head, query, key] after the softmax and any edit of the weights.
    empty_rows: [batch, head, query] True where a query may attend to nothing (its weights and z are zero), or None
        when there is no such row.
    n_blocked: for each `BlockKeys` edit, in order, how many cells that were open it has closed.
    """

    weights: Tensor
    empty_rows: Tensor | None = None
    n_blocked: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """What one attention leaves behind: `AttentionWeights`, and what they mix.

    head_outputs: [batch, head, query, d_head], z, before the output projection, after any edit.
    """

    weights: Tensor
    head_outputs: Tensor
    empty_rows: Tensor | None = None
    n_blocked: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The arguments of one `attend` call, kept so that it can be made again when a map is looked at."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    edits: tuple[Edit, ...] = ()

    def attend(self) -> AttentionOutput:
        """Run `attend` on these arguments."""
        return attend(
            self.query, self.key, self.value, mask=self.mask, causal=self.causal, bias=self.bias,
            scale=self.scale, softcap=self.softcap, sinks=self.sinks, edits=self.edits,
        )  # fmt: skip

    def weigh(self) -> AttentionWeights:
        """The first half of `attend`: the weights, for who looks at maps only. Equal to the whole's, bit by bit."""
        _check_shapes(self.query, self.key, self.value)
        return _weigh(
            self.query, self.key, self.mask, self.causal, self.bias, self.scale, self.softcap, self.sinks, self.edits
        )

    def of_head(self, head: int) -> AttentionInputs:
        """The arguments that give one head's weights, as the only head. Without the edits of its output."""
        n_heads, n_kv_heads = self.query.shape[1], self.key.shape[1]
        shared = head // (n_heads // n_kv_heads)
        edits = (edit.of_head(head) for edit in self.edits if isinstance(edit, UniformWeights | BlockKeys))
        return replace(
            self, query=self.query[:, head : head + 1], key=self.key[:, shared : shared + 1],
            value=self.value[:, shared : shared + 1], mask=_of_head(self.mask, head), bias=_of_head(self.bias, head),
            sinks=None if self.sinks is None else self.sinks.reshape(-1)[head : head + 1],
            edits=tuple(edit for edit in edits if edit is not None),
        )  # fmt: skip

    def of_rows(self, queries: slice | Tensor, n_keys: int | None = None) -> AttentionInputs:
        """The arguments for some query positions only, and the first keys only. Without edits.

        Causality becomes part of the mask, since row r of the result is the r-th of these positions.
        """
        n_keys = self.key.shape[2] if n_keys is None else n_keys
        mask = _part(self.mask, queries, n_keys)
        if self.causal:
            places = torch.arange(self.query.shape[2], device=self.query.device)[queries]
            open_keys = (torch.arange(n_keys, device=places.device) <= places[:, None])[None, None]
            if mask is None:
                mask = open_keys
            else:
                mask = mask & open_keys if mask.dtype == torch.bool else mask.masked_fill(~open_keys, NEG_INF)
        return replace(
            self, query=self.query[:, :, queries], key=self.key[:, :, :n_keys], value=self.value[:, :, :n_keys],
            mask=mask, causal=False, bias=_part(self.bias, queries, n_keys), edits=(),
        )  # fmt: skip

    def mix(self, weighed: AttentionWeights) -> AttentionOutput:
        """The second half of `attend`, for weights that `weigh` gave."""
        return _mix(weighed, self.value, self.edits)

    def without_edits(self) -> AttentionInputs:
        """The same arguments with no intervention in this call (upstream ones remain in Q, K and V)."""
        return replace(self, edits=())

    def at_home(self) -> AttentionInputs:
        """The same on the CPU, in float32 where it had half precision."""
        if self.query.device.type == "cpu" and not is_half(self.query):
            return self
        mask = self.mask
        if mask is not None and is_half(mask):  # what forbids there must forbid here
            mask = mask.float().masked_fill(mask <= torch.finfo(mask.dtype).min / 2, torch.finfo(torch.float32).min)
        mask, bias, sinks = (None if term is None else at_home(term) for term in (mask, self.bias, self.sinks))
        return replace(
            self, query=at_home(self.query), key=at_home(self.key), value=at_home(self.value), mask=mask, bias=bias,
            sinks=sinks, edits=tuple(edit.to(torch.device("cpu")) for edit in self.edits),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that belong to this call alone (masks and biases are shared by the layers)."""
        return sum(t.numel() * t.element_size() for t in (self.query, self.key, self.value))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    edits: Sequence[Edit] | None = None,
) -> AttentionOutput:
    """Scaled dot-product attention of every head, with per-head weights and outputs.

    Args:
        query: [batch, head, query, d_head].
        key: [batch, kv_head, key, d_head]. The number of query heads must be a multiple of `kv_head` (grouped-query
            attention; 1 is multi-query attention): query heads `g*n ... g*n + n - 1` share key/value head `g`.
        value: [batch, kv_head, key, d_value].
        mask: broadcasts to [batch, head, query, key]. Boolean: True where the query **may** attend (as in torch's
            `scaled_dot_product_attention`; `nn.MultiheadAttention` means the opposite). Floating: added to the
            scaled scores.
        causal: query i may attend to keys 0 ... i only. Needs as many queries as keys.
        bias: added to the scaled scores before the mask (T5's relative positions, ALiBi); broadcasts like `mask`.
        scale: factor on Q K^T; None means 1 / sqrt(d_head).
        softcap: scores become `softcap * tanh(scores / softcap)` before bias and mask (Gemma 2).
        sinks: [head] a learned score per head that takes part in the softmax and attends to nothing (GPT-OSS):
            rows then sum to less than 1.
        edits: interventions, applied to weights and head outputs before anything mixes the heads.

    Returns:
        `AttentionOutput`. Rows of weights sum to 1, except with sinks, and except rows that may attend to nothing:
        those are zero and are reported in `empty_rows`. The softmax of half-precision inputs runs in float32.

    Raises:
        ValueError: shapes that do not fit, in words and numbers.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
    """
    _check_shapes(query, key, value)
    edits = tuple(edits or ())
    weighed = _weigh(query, key, mask, causal, bias, scale, softcap, sinks, edits)
    return _mix(weighed, value, edits)


def _weigh(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, bias: Tensor | None, scale: float | None,
    softcap: float | None, sinks: Tensor | None, edits: tuple[Edit, ...],
) -> AttentionWeights:  # fmt: skip
    scores = attention_scores(query, key, mask=mask, causal=causal, bias=bias, scale=scale, softcap=softcap)
    scores, n_blocked = block_keys(scores, mask, causal, edits)
    weights, empty_rows = _softmax_rows(scores, sinks)
    weights = spread_weights(weights.to(query.dtype), scores, mask, causal, edits)
    return AttentionWeights(weights, empty_rows, n_blocked)


def _mix(weighed: AttentionWeights, value: Tensor, edits: tuple[Edit, ...]) -> AttentionOutput:
    value = _repeat_heads(value, weighed.weights.shape[1])
    head_outputs = weighed.weights @ value  # [batch, head, query, d_value]
    return AttentionOutput(weighed.weights, edit_outputs(head_outputs, edits), weighed.empty_rows, weighed.n_blocked)


def attention_scores(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The scores that go into the softmax, [batch, head, query, key]: Q K^T * scale, softcap, bias, mask.

    Arguments are those of `attend`; out: memory of that size to make them in, or None. Forbidden cells of a boolean or
    causal mask are minus infinity. The order of operations is the libraries' (scale after the product, bias before
    mask), so that equal inputs give equal bits.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key = _repeat_heads(key, query.shape[1])
    scores = torch.matmul(query, key.transpose(-2, -1), out=out)  # [batch, head, query, key]
    # In place where autograd allows it: at 2,048 tokens each copy of the scores of 9 heads is 151 MB.
    scores = scores.mul_(scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    for name, term in (("bias", bias), ("mask", mask)):
        if term is not None:
            _check_broadcast(name, as_4d(name, term), scores)
    if bias is not None:
        scores = scores.add_(as_4d("bias", bias))
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill_(~as_4d("mask", mask), NEG_INF)
    elif mask is not None:
        scores = scores.add_(as_4d("mask", mask))
    if causal:
        scores = scores.masked_fill_(~causal_mask(scores), NEG_INF)
    return scores


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; attend takes four axes: batch, head, position, d_head."
            )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query has d_head {query.shape[-1]} and key has d_head {key.shape[-1]}; they must be equal, "
            "since each score is their dot product."
        )
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"key is {tuple(key.shape)} and value is {tuple(value.shape)}; batch, heads and positions must be equal, "
            "since each key brings one value."
        )
    if query.shape[0] != key.shape[0]:
        raise ValueError(f"query has batch {query.shape[0]} and key has batch {key.shape[0]}; they must be equal.")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"query has {query.shape[1]} heads and key has {key.shape[1]}; the query heads must be a multiple of the "
            "key/value heads, since each key/value head serves an equal group of query heads."
        )


def _of_head(term: Tensor | None, head: int) -> Tensor | None:
    """One head's part of a mask or bias that broadcasts to [batch, head, query, key]."""
    if term is None or term.ndim < 3 or term.shape[-3] == 1:
        return term
    return term[..., head : head + 1, :, :]


def _part(term: Tensor | None, queries: slice | Tensor, n_keys: int) -> Tensor | None:
    """Some rows and the first keys of a mask or bias that broadcasts to [batch, head, query, key]."""
    if term is None:
        return None
    term = term.reshape((1,) * (4 - term.ndim) + tuple(term.shape))
    term = term if term.shape[2] == 1 else term[:, :, queries]
    return term if term.shape[3] == 1 else term[..., :n_keys]


def _check_broadcast(name: str, term: Tensor, scores: Tensor) -> None:
    fits = all(size in (1, full) for size, full in zip(term.shape, scores.shape, strict=True))
    if not fits:
        raise ValueError(
            f"{name} has shape {tuple(term.shape)}; it must broadcast to batch, head, query, key = "
            f"{tuple(scores.shape)}."
        )


def _repeat_heads(tensor: Tensor, n_heads: int) -> Tensor:
    """[batch, kv_head, position, d] -> [batch, head, position, d]: each key/value head once per query head."""
    batch, n_kv_heads, length, d_head = tensor.shape
    if n_kv_heads == n_heads:
        return tensor
    group = n_heads // n_kv_heads
    expanded = tensor[:, :, None].expand(batch, n_kv_heads, group, length, d_head)
    return expanded.reshape(batch, n_heads, length, d_head)


def softmax_of(scores: Tensor, sinks: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """The softmax over the keys of scores [batch, head, query, key]; of half precision in float32.

    sinks: as in `attend`. out: memory of that size to make it in, where there are no sinks.
    """
    dtype = torch.float32 if is_half(scores) else scores.dtype
    if sinks is None:
        return torch.softmax(scores, -1, dtype=dtype, out=out)
    if sinks.numel() != scores.shape[1]:
        raise ValueError(f"sinks has {sinks.numel()} numbers and there are {scores.shape[1]} heads; one per head.")
    sink = sinks.reshape(1, -1, 1, 1).to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(dim=-1, dtype=dtype)[..., :-1]


def _softmax_rows(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weights, and where a row may attend to nothing: all its scores are minus infinity, and its weights are zero."""
    weights = softmax_of(scores, sinks)
    if scores.shape[-1] == 0:
        return weights, None
    # Such a row comes out of the softmax as NaN (with sinks: as zeros). NaN from NaN inputs stays: a bug to be seen.
    if sinks is None and not bool(weights[..., 0].isnan().any()):
        return weights, None
    empty = (scores == NEG_INF).all(dim=-1)
    if not bool(empty.any()):
        return weights, None
    # Again with harmless scores in the empty rows: the gradient of a softmax over minus infinities is NaN too.
    weights = softmax_of(scores.masked_fill(empty[..., None], 0.0), sinks)
    return weights.masked_fill(empty[..., None], 0.0), empty
