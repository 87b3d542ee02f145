"""Our layer from and to torch's own `nn.MultiheadAttention`, and its masks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mha_core.layer import MultiHeadAttention


def mask_from_torch(attn_mask: Tensor | None, key_padding_mask: Tensor | None, n_heads: int | None) -> Tensor | None:
    """See `MultiHeadAttention.mask_from_torch`."""
    masks = []
    if attn_mask is not None:
        masks.append(_attn_mask_axes(attn_mask, n_heads))
    if key_padding_mask is not None:
        if key_padding_mask.ndim not in (1, 2):
            raise ValueError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}; torch takes [batch, key] or [key]."
            )
        masks.append(key_padding_mask.reshape(-1, 1, 1, key_padding_mask.shape[-1]))  # [batch, 1, 1, key]
    for mask in masks:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise ValueError(f"A mask has type {mask.dtype}; torch takes boolean (True forbids) or floating masks.")
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        return torch.stack(torch.broadcast_tensors(*(~mask for mask in masks))).all(dim=0)
    return torch.stack(torch.broadcast_tensors(*map(_additive, masks))).sum(dim=0)


def _attn_mask_axes(mask: Tensor, n_heads: int | None) -> Tensor:
    """[query, key] or [batch * head, query, key] -> [batch or 1, head or 1, query, key]."""
    if mask.ndim == 2:
        return mask[None, None]
    if mask.ndim != 3:
        raise ValueError(
            f"attn_mask has shape {tuple(mask.shape)}; torch takes [query, key] or [batch * n_heads, query, key]."
        )
    if not n_heads or mask.shape[0] % n_heads:
        raise ValueError(
            f"attn_mask has shape {tuple(mask.shape)}, whose first axis is batch * n_heads; n_heads is {n_heads}, and "
            f"it must divide {mask.shape[0]}."
        )
    return mask.reshape(-1, n_heads, *mask.shape[1:])


def _additive(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))


def from_torch(cls: type[MultiHeadAttention], module: nn.MultiheadAttention) -> MultiHeadAttention:
    """See `MultiHeadAttention.from_torch`."""
    _check_torch_module(module)
    d_model, n_heads = module.embed_dim, module.num_heads
    d_context = None if module.kdim == d_model else module.kdim
    layer = cls(d_model, n_heads, d_context=d_context, bias=module.in_proj_bias is not None)
    packed: Tensor | None = module.in_proj_weight
    weights = _separate_weights(module) if packed is None else packed.chunk(3)
    layer.to(module.out_proj.weight.device, module.out_proj.weight.dtype)
    with torch.no_grad():
        for target, weight in zip((layer.W_Q, layer.W_K, layer.W_V), weights, strict=True):
            # torch keeps [head * d_head, width]
            target.copy_(weight.view(n_heads, layer.d_head, -1).transpose(1, 2))
        layer.W_O.copy_(module.out_proj.weight.T.reshape(layer.W_O.shape))
        if module.in_proj_bias is not None:
            for bias, part in zip((layer.b_Q, layer.b_K, layer.b_V), module.in_proj_bias.chunk(3), strict=True):
                _filled(bias).copy_(part.view(n_heads, layer.d_head))
            _filled(layer.b_O).copy_(module.out_proj.bias)
    return layer.train(module.training)


def _separate_weights(module: nn.MultiheadAttention) -> tuple[Tensor, ...]:
    """Q, K and V [d_model, width]; torch keeps them apart when keys have another width than queries."""
    return module.q_proj_weight, module.k_proj_weight, module.v_proj_weight


def _check_torch_module(module: nn.MultiheadAttention) -> None:
    if not isinstance(module, nn.MultiheadAttention):
        raise ValueError(f"from_torch takes an nn.MultiheadAttention; this is a {type(module).__name__}.")
    if module.bias_k is not None or module.bias_v is not None:
        raise ValueError(
            "This nn.MultiheadAttention has add_bias_kv=True: an extra learned key that our layer has not."
        )
    if module.add_zero_attn:
        raise ValueError(
            "This nn.MultiheadAttention has add_zero_attn=True: an extra key of zeros that our layer has not."
        )
    if module.kdim != module.vdim:
        raise ValueError(
            f"This nn.MultiheadAttention has kdim {module.kdim} and vdim {module.vdim}; our layer takes keys and "
            "values from one context, so they must be equal."
        )
    if module.dropout > 0:
        warnings.warn(
            f"This nn.MultiheadAttention has dropout {module.dropout:g} on its weights; our layer has none, so the two "
            "are equal in evaluation mode only.",
            stacklevel=4,
        )


def to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """See `MultiHeadAttention.to_torch`."""
    if layer.n_kv_heads != layer.n_heads:
        raise ValueError(
            f"This layer has {layer.n_heads} query heads sharing {layer.n_kv_heads} key/value heads; "
            "nn.MultiheadAttention needs as many key/value heads as query heads."
        )
    if layer.n_heads * layer.d_head != layer.d_model:
        raise ValueError(
            f"This layer has n_heads {layer.n_heads} * d_head {layer.d_head} = {layer.n_heads * layer.d_head} and "
            f"d_model {layer.d_model}; nn.MultiheadAttention needs them to be equal."
        )
    module = nn.MultiheadAttention(
        layer.d_model, layer.n_heads, bias=layer.b_O is not None, kdim=layer.d_context, vdim=layer.d_context,
        batch_first=True, device=layer.W_O.device, dtype=layer.W_O.dtype,
    )  # fmt: skip
    weights = [w.transpose(1, 2).reshape(layer.d_model, -1) for w in (layer.W_Q, layer.W_K, layer.W_V)]
    packed: Tensor | None = module.in_proj_weight
    with torch.no_grad():
        targets = _separate_weights(module) if packed is None else packed.chunk(3)
        for target, weight in zip(targets, weights, strict=True):
            target.copy_(weight)
        module.out_proj.weight.copy_(layer.W_O.reshape(layer.d_model, layer.d_model).T)
        if layer.b_O is not None:
            biases = [_filled(b).reshape(-1) for b in (layer.b_Q, layer.b_K, layer.b_V)]
            module.in_proj_bias.copy_(torch.cat(biases))
            module.out_proj.bias.copy_(layer.b_O)
    return module.train(layer.training)


def _filled(bias: Tensor | None) -> Tensor:
    if bias is None:
        raise ValueError("A layer has all four biases or none; one of them is missing.")
    return bias
