"""Sinusoidal positions, for models of our own."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoidal_positions(n_positions: int, d_model: int) -> Tensor:
    """[position, d_model]: sines in even dimensions, cosines in odd ones (Vaswani et al. 2017, section 3.5)."""
    position = torch.arange(n_positions)[:, None]
    rates = torch.exp(-math.log(10000.0) * torch.arange(0, d_model, 2) / d_model)
    table = torch.zeros(n_positions, d_model)
    table[:, 0::2] = torch.sin(position * rates)
    table[:, 1::2] = torch.cos(position * rates[: d_model // 2])
    return table
