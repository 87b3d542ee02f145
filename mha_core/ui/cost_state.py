"""What a visitor chose on the Cost page: part of `ViewState`, so that a calculation has an address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mha_core.cost import AttentionCost

SECTIONS = ("calculator", "measured", "experiment")
NUMBER_BYTES = (4, 2, 1)
LENGTHS = tuple(2**power for power in range(18))  # 1 to 131,072 tokens
DEFAULT_SHAPE = "512x8x8x64x6"
_SHAPE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,3})x([1-9]\d{0,3})x([1-9]\d{0,4})x([1-9]\d{0,3})(b?)")


@dataclass(frozen=True)
class CostChoices:
    """Choices of the Cost page.

    cost: the section. shape: "512x8x8x64x6b": d_model, query heads, key/value heads, d_head, layers, biases.
    tokens: length of a sequence. number: bytes of one number. batch: sequences at once.
    """

    cost: str = SECTIONS[0]
    shape: str = DEFAULT_SHAPE
    tokens: int = 128
    number: int = 2
    batch: int = 1


def shape_text(cost: AttentionCost) -> str:
    """A shape for an address."""
    sizes = (cost.d_model, cost.n_heads, cost.n_kv_heads, cost.d_head, cost.n_layers)
    return "x".join(map(str, sizes)) + ("b" if cost.bias else "")


def sizes_of_shape(text: str) -> tuple[int, int, int, int, int, bool]:
    """d_model, query heads, key/value heads, d_head, layers, biases; whether they fit is said by `AttentionCost`."""
    match = _SHAPE.fullmatch(text) or _SHAPE.fullmatch(DEFAULT_SHAPE)
    assert match is not None
    d_model, n_heads, n_kv_heads, d_head, n_layers = (int(part) for part in match.groups()[:5])
    return d_model, n_heads, n_kv_heads, d_head, n_layers, bool(match.group(6))


def read_shape(text: str) -> str | None:
    """An address's shape if it can be read."""
    return text if _SHAPE.fullmatch(text) else None
