"""The project's own attention layer: a projection per head, around the one attention function.

Axes are always in the order `batch, head, query, key, d_head`; `position` stands for either query or key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mha_core.attention import AttentionInputs
from mha_core.interventions import Intervention, Interventions
from mha_core.layer_checks import check_input, check_mask, check_sizes
from mha_core.layer_plan import edits_for, require_effect

if TYPE_CHECKING:
    from mha_core.pretrained import PretrainedModel


@dataclass(frozen=True, eq=False)
class LayerOutput:
    """What one call of a `MultiHeadAttention` leaves behind.

    output: [batch, query, d_model].
    weights: [batch, head, query, key] after the softmax and any edit.
    head_outputs: [batch, head, query, d_head], z, before the output projection, after any edit.
    query: [batch, head, query, d_head]. key, value: [batch, kv_head, key, d_head].
    empty_rows: [batch, head, query] True where a query may attend to nothing; None when there is no such row.
    attention_inputs: the `attend` call that was made, to make the weights again later.
    """

    output: Tensor
    weights: Tensor
    head_outputs: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    empty_rows: Tensor | None
    attention_inputs: AttentionInputs
    _output_weights: Tensor

    @cached_property
    def contributions(self) -> Tensor:
        """[batch, head, query, d_model]: what each head adds to the output. They sum to it (with the bias `b_O`).

        Made when first looked at, since it is as large as the output once per head; look before the next optimiser
        step, which changes `W_O`.
        """
        return self.head_outputs @ self._output_weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention with named projections per head: self, causal or cross; MHA, GQA or MQA.

    Args:
        d_model: width of the input of the queries and of the output.
        n_heads: number of query heads.
        n_kv_heads: number of key/value heads, each serving `n_heads / n_kv_heads` query heads; None: `n_heads`
            (multi-head); 1: multi-query; between: grouped-query attention.
        d_head: width of each head; None: `d_model / n_heads`.
        d_context: width of the sequence that keys and values come from, for cross-attention; None: `d_model`.
        bias: whether each projection adds a bias.

    Attributes:
        W_Q: [head, d_model, d_head]. W_K, W_V: [kv_head, d_context, d_head]. W_O: [head, d_head, d_model].
        b_Q: [head, d_head]. b_K, b_V: [kv_head, d_head]. b_O: [d_model]. None without bias.
        layer_index, site: which layer this is when it came from a model (`from_model`); else 0 and "self".
        causal: what `forward` does when its own `causal` is left out; True only in a model's causal layer.

    Raises:
        ValueError: sizes that do not fit, with the numbers.

    Source: Vaswani et al. 2017, section 3.2.2; grouped-query attention: Ainslie et al. 2023.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_context: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_sizes(d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head, d_context=d_context)
        self.d_model = d_model
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.d_head = d_head = d_model // n_heads if d_head is None else d_head
        self.d_context = d_model if d_context is None else d_context
        self.needs_context = d_context is not None
        self.layer_index = 0
        self.site = "self"
        self.causal = False
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(n_kv_heads, self.d_context, d_head))
        self.W_V = nn.Parameter(torch.empty(n_kv_heads, self.d_context, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        shapes = {"b_Q": (n_heads, d_head), "b_K": (n_kv_heads, d_head), "b_V": (n_kv_heads, d_head), "b_O": (d_model,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)) if bias else None)
        self.b_Q: nn.Parameter | None
        self.b_K: nn.Parameter | None
        self.b_V: nn.Parameter | None
        self.b_O: nn.Parameter | None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: Xavier uniform on each joined matrix, all heads side by side; biases zero."""
        with torch.no_grad():
            for weight in (self.W_Q, self.W_K, self.W_V):  # [head, width, d_head]; joined: [width, head * d_head]
                n_heads, width, d_head = weight.shape
                joined = nn.init.xavier_uniform_(weight.new_empty(width, n_heads * d_head))
                weight.copy_(joined.view(width, n_heads, d_head).transpose(0, 1))
            nn.init.xavier_uniform_(self.W_O.view(self.n_heads * self.d_head, self.d_model))
            for bias in (self.b_Q, self.b_K, self.b_V, self.b_O):
                if bias is not None:
                    bias.zero_()

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool | None = None,
        ablation: Interventions | Iterable[Intervention] | Intervention | None = None,
    ) -> LayerOutput:
        """Attend from each position of `x` to the positions of `context`, or of `x` itself.

        Args:
            x: [batch, query, d_model].
            context: [batch, key, d_context], for cross-attention; None: `x`.
            mask: broadcasts to [batch, head, query, key]. Boolean: True where a query **may** attend
                (`mask_from_torch` converts torch's). Floating: added to the scaled scores.
            causal: query i attends to keys 0 ... i only. Left out: the layer's own `causal`, which is False unless
                the layer was taken from a causal model.
            ablation: `HeadAblation`s and `AttentionKnockout`s on heads of this layer, which is layer 0, and also
                `layer_index`. Kinds zero, scale, uniform, and mean over this input's own query positions
                (`reference="sentence"`; each batch row by itself, without any edit in this layer).

        Returns:
            `LayerOutput`.

        Raises:
            ValueError: sizes that do not fit, with the numbers.
            InterventionError: a head, layer or position that is not here, or a kind that needs another run.
        """
        causal = self.causal if causal is None else causal
        mask = None if mask is None else _normal(mask)
        query, key, value = self.project(x, context)
        check_mask(mask, (x.shape[0], self.n_heads, query.shape[2], key.shape[2]))
        inputs = AttentionInputs(query, key, value, mask=mask, causal=causal)
        plan, inputs = edits_for(ablation, inputs, self.layer_index, self.site)
        attended = inputs.attend()
        require_effect(plan, attended)
        return LayerOutput(
            self.merge(attended.head_outputs), attended.weights, attended.head_outputs, query, key, value,
            attended.empty_rows, inputs, self.W_O,
        )  # fmt: skip

    def project(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head.

        Args:
            x: [batch, query, d_model].
            context: [batch, key, d_context]; None: `x`.

        Returns:
            query [batch, head, query, d_head]; key and value [batch, kv_head, key, d_head].

        Raises:
            ValueError: sizes that do not fit, with the numbers.
        """
        check_input("x", x, "d_model", self.d_model)
        if context is None:
            if self.needs_context:
                raise ValueError(
                    f"This layer takes keys and values from a context of width d_context = {self.d_context}; "
                    f"none was given. Call layer(x, context) with context [batch, key, {self.d_context}]."
                )
            context = x
        check_input("context", context, "d_context", self.d_context)
        if context.shape[0] != x.shape[0]:
            raise ValueError(f"x has batch {x.shape[0]} and context has batch {context.shape[0]}; they must be equal.")
        x, context = _normal(x), _normal(context)
        return (
            _per_head(x, self.W_Q, self.b_Q),
            _per_head(context, self.W_K, self.b_K),
            _per_head(context, self.W_V, self.b_V),
        )

    def merge(self, head_outputs: Tensor) -> Tensor:
        """[batch, head, query, d_head] -> output [batch, query, d_model]: heads joined, then projected."""
        batch, n_heads, length, d_head = head_outputs.shape
        joined = head_outputs.transpose(1, 2).reshape(batch, length, n_heads * d_head)
        output = joined @ self.W_O.reshape(n_heads * d_head, self.d_model)
        return output if self.b_O is None else output + self.b_O

    def contributions(self, head_outputs: Tensor) -> Tensor:
        """[batch, head, query, d_head] -> [batch, head, query, d_model]: what each head adds to the output."""
        return head_outputs @ self.W_O

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, d_head={self.d_head}, "
            f"d_context={self.d_context}, bias={self.b_O is not None}"
        )

    @staticmethod
    def mask_from_torch(
        attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, n_heads: int | None = None
    ) -> Tensor | None:
        """Convert the masks of `nn.MultiheadAttention`, where True **forbids**, to one of ours, where True allows.

        Args:
            attn_mask: [query, key] or [batch * n_heads, query, key], boolean or floating (added to the scores).
            key_padding_mask: [batch, key] or [key], boolean or floating.
            n_heads: needed for an `attn_mask` with three axes.

        Returns:
            A mask that broadcasts to [batch, head, query, key]: boolean when all that was given is boolean, else
            floating. None when nothing was given.

        Raises:
            ValueError: shapes or types that torch would not take either.
        """
        from mha_core.layer_torch import mask_from_torch

        return mask_from_torch(attn_mask, key_padding_mask, n_heads)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """A layer with the weights of torch's own, giving equal outputs and equal per-head weights.

        The layer takes [batch, position, d_model] whatever `module.batch_first` says; masks go through
        `mask_from_torch`. Our layer has no dropout: the two are equal in evaluation mode, and a warning says so when
        `module.dropout` is above 0.

        Raises:
            ValueError: `add_bias_kv`, `add_zero_attn`, or a kdim that differs from vdim.
        """
        from mha_core.layer_torch import from_torch

        return from_torch(cls, module)

    def to_torch(self) -> nn.MultiheadAttention:
        """The same layer as an `nn.MultiheadAttention` with `batch_first=True`.

        Raises:
            ValueError: what torch's layer cannot hold: fewer key/value heads, or n_heads * d_head unequal to d_model.
        """
        from mha_core.layer_torch import to_torch

        return to_torch(self)

    @classmethod
    def from_model(cls, model: PretrainedModel, layer: int = 0, site: str = "self") -> MultiHeadAttention:
        """A pretrained layer's projections in our layer.

        `layer(x)`, with `x` the hidden states that go into the model's attention module, gives that attention's
        output after the output projection and before the residual sum. The projections are found by comparing what
        the module's linear parts put out with the queries, keys and values that arrive at the attention function.

        Args:
            model: from `load_model`.
            layer: layer number, from 0. It stays known as `layer_index`, and heads may be named by it.
            site: "self", or "enc", "dec", "cross" in an encoder-decoder; "cross" takes `layer(x, context)`.

        Raises:
            ValueError: no such layer or site, or a model whose attention is more than projections (rotary or
                relative positions, score caps, sinks): these act inside the attention, so projections alone do not
                give its output.
        """
        from mha_core.layer_pretrained import from_model

        return from_model(cls, model, layer, site)


def _normal(tensor: Tensor) -> Tensor:
    """The tensor as autograd can keep it: what a `Trace` holds was made in inference mode, and is copied first."""
    grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    return tensor.clone() if grad and tensor.is_inference() else tensor


def _per_head(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[batch, position, width] through [head, width, d_head] -> [batch, head, position, d_head]."""
    n_heads, width, d_head = weight.shape
    joined = x @ weight.transpose(0, 1).reshape(width, n_heads * d_head)  # one product for all heads
    if bias is not None:
        joined = joined + bias.reshape(-1)
    return joined.view(*x.shape[:2], n_heads, d_head).transpose(1, 2)
