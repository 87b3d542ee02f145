"""What a layer cannot take, told in numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def check_sizes(**sizes: Any) -> None:
    """Whole numbers from 1 (None: left out), and heads that divide."""
    for name, value in sizes.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is {value!r}; it must be a whole number from 1.")
    d_model, n_heads, n_kv_heads = sizes["d_model"], sizes["n_heads"], sizes["n_kv_heads"]
    if sizes["d_head"] is None and d_model % n_heads:
        raise ValueError(
            f"d_model {d_model} is not divisible by n_heads {n_heads}, so d_head = d_model / n_heads is not whole; "
            "choose other sizes, or give d_head."
        )
    if n_heads % n_kv_heads:
        raise ValueError(
            f"n_heads {n_heads} is not a multiple of n_kv_heads {n_kv_heads}; each key/value head serves an equal "
            "group of query heads."
        )


def check_input(name: str, tensor: Tensor, width_name: str, width: int) -> None:
    """[batch, position, width] of floating-point numbers."""
    shape = tuple(tensor.shape)
    if tensor.ndim == 2:
        raise ValueError(
            f"{name} has shape {shape}; the layer takes three axes: batch, position, {width_name}. "
            f"Add the batch axis with {name}[None]."
        )
    if tensor.ndim != 3:
        raise ValueError(f"{name} has shape {shape}; the layer takes three axes: batch, position, {width_name}.")
    if shape[-1] != width:
        raise ValueError(
            f"{name} has shape {shape}, so its last axis is {shape[-1]}; it must be {width_name} = {width}."
        )
    if not tensor.is_floating_point():
        raise ValueError(
            f"{name} has type {tensor.dtype}; the layer takes floating-point numbers, such as {name}.float()."
        )


def check_mask(mask: Tensor | None, full: tuple[int, int, int, int]) -> None:
    """Refuse what broadcasting would silently misread; `attend` refuses what does not broadcast."""
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"mask has type {mask.dtype}; it must be boolean (True where a query may attend, mask.bool()) or floating "
            "(added to the scores)."
        )
    shape = tuple(mask.shape)
    padded = (1,) * (4 - len(shape)) + shape
    if len(shape) > 4 or any(size not in (1, whole) for size, whole in zip(padded, full, strict=True)):
        raise ValueError(
            f"mask has shape {shape}; it must broadcast to batch, head, query, key = {full}. A mask per batch row is "
            f"[{full[0]}, 1, {full[2]}, {full[3]}] (mask[:, None])."
        )
    if len(shape) == 3 and shape[0] == full[0] == full[1] != 1:
        raise ValueError(
            f"mask has shape {shape}, and batch and n_heads are both {full[0]}; write mask[:, None] for a mask per "
            "batch row, or mask[None] for a mask per head."
        )
