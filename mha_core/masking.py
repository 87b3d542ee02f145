"""Which keys a query may attend to, from masks of every kind."""

from __future__ import annotations

import torch
from torch import Tensor

NEG_INF = float("-inf")


def as_4d(name: str, term: Tensor) -> Tensor:
    """A mask or bias ("mask", "bias") with all four axes: batch, head, query, key.

    Raises:
        ValueError: it has more axes, or is of another type than such a term.
    """
    if not term.is_floating_point() and (name != "mask" or term.dtype != torch.bool):
        kinds = "boolean (True where a query may attend) or floating (added to the scores)"
        raise ValueError(f"{name} has type {term.dtype}; it must be {kinds if name == 'mask' else 'floating'}.")
    if term.ndim > 4:
        raise ValueError(f"{name} has shape {tuple(term.shape)}; it must broadcast to batch, head, query, key.")
    return term.reshape((1,) * (4 - term.ndim) + tuple(term.shape))


def causal_mask(scores: Tensor) -> Tensor:
    """[query, key] True where key <= query."""
    n_queries, n_keys = scores.shape[-2:]
    if n_queries != n_keys:
        raise ValueError(
            f"causal=True was given with {n_queries} queries and {n_keys} keys; it needs as many queries as keys, "
            "since otherwise it is unclear which key is the present. Pass a boolean mask instead."
        )
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=scores.device).tril()


def open_cells(mask: Tensor) -> Tensor:
    """True where a mask of either kind lets a query attend.

    Additive masks of the libraries forbid with the lowest finite number instead of minus infinity.
    """
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def allowed_cells(mask: Tensor | None, causal: bool, like: Tensor) -> Tensor:
    """[batch|1, head|1, query, key] True where mask and causality let a query attend."""
    allowed = torch.ones((), dtype=torch.bool, device=like.device).expand(1, 1, *like.shape[-2:])
    if mask is not None:
        allowed = allowed & open_cells(as_4d("mask", mask))
    if causal:
        allowed = allowed & causal_mask(like)
    return allowed
