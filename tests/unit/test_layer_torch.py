"""Our layer and torch's own multi-head attention: the same numbers both ways; and sizes that do not fit."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mha_core.layer import MultiHeadAttention

D_MODEL, HEADS, BATCH, LENGTH, KEYS = 24, 4, 2, 6, 9


def _torch(**arguments: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D_MODEL, HEADS, **({"batch_first": True} | arguments)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.normal_()
    return module


def _x(width: int = D_MODEL, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randn(BATCH, length, width, generator=torch.Generator().manual_seed(seed))


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max()) if a.shape == b.shape else float("inf")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_from_torch_gives_equal_outputs_and_weights(bias: bool, batch_first: bool) -> None:
    module, x = _torch(bias=bias, batch_first=batch_first), _x()
    given = x if batch_first else x.transpose(0, 1)
    output, weights = module(given, given, given, average_attn_weights=False)
    out = MultiHeadAttention.from_torch(module)(x)
    assert _difference(out.output, output if batch_first else output.transpose(0, 1)) <= 1e-6
    assert _difference(out.weights, weights) <= 1e-6


@pytest.mark.parametrize("width", [D_MODEL, 10])
def test_from_torch_cross_attention(width: int) -> None:
    module, x, context = _torch(kdim=width, vdim=width), _x(), _x(width, KEYS, 2)
    output, weights = module(x, context, context, average_attn_weights=False)
    layer = MultiHeadAttention.from_torch(module)
    assert layer.needs_context == (width != D_MODEL)
    out = layer(x, context)
    assert _difference(out.output, output) <= 1e-6
    assert _difference(out.weights, weights) <= 1e-6


@pytest.mark.parametrize("sizes", [{}, {"bias": True}, {"d_context": 10, "bias": True}, {"d_context": D_MODEL}])
def test_to_torch_and_back(sizes: dict[str, Any]) -> None:
    torch.manual_seed(3)
    layer = MultiHeadAttention(D_MODEL, HEADS, **sizes)
    x, context = _x(), _x(layer.d_context, KEYS, 2)
    output, weights = layer.to_torch()(x, context, context, average_attn_weights=False)
    out = layer(x, context)
    assert _difference(out.output, output) <= 1e-6
    assert _difference(out.weights, weights) <= 1e-6
    again = MultiHeadAttention.from_torch(layer.to_torch())
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), again.parameters(), strict=True))


def test_types_and_mode_are_kept() -> None:
    module = _torch().double().train()
    layer = MultiHeadAttention.from_torch(module)
    assert layer.W_Q.dtype == layer.to_torch().out_proj.weight.dtype == torch.float64
    assert layer.training
    assert not MultiHeadAttention.from_torch(module.eval()).to_torch().training


def test_weights_are_copied() -> None:
    module = _torch()
    layer = MultiHeadAttention.from_torch(module)
    before = layer.W_Q.clone()
    with torch.no_grad():
        module.in_proj_weight.zero_()
    assert torch.equal(layer.W_Q, before)


def test_dropout_is_told() -> None:
    with pytest.warns(UserWarning, match=r"dropout 0\.1 .* evaluation mode"):
        layer = MultiHeadAttention.from_torch(_torch(dropout=0.1))
    module, x = _torch(dropout=0.1), _x()
    assert _difference(layer(x).output, module(x, x, x)[0]) <= 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiHeadAttention.from_torch(_torch())


def _masks() -> dict[str, tuple[Tensor | None, Tensor | None]]:
    generator = torch.Generator().manual_seed(4)
    forbidden = torch.rand(LENGTH, LENGTH, generator=generator) < 0.4
    forbidden[:, 0] = False
    per_head = torch.rand(BATCH * HEADS, LENGTH, LENGTH, generator=generator) < 0.4
    per_head[..., 0] = False
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, 4:] = True
    additive, additive_padding = torch.randn(LENGTH, LENGTH, generator=generator), torch.zeros(BATCH, LENGTH)
    additive_padding[1, 4:] = float("-inf")
    return {
        "boolean": (forbidden, None),
        "per head": (per_head, None),
        "padding": (None, padding),
        "both": (forbidden, padding),
        "per head and padding": (per_head, padding),
        "additive": (additive, None),
        "both additive": (additive, additive_padding),
    }


@pytest.mark.parametrize("case", _masks())
def test_masks_are_converted(case: str) -> None:
    """torch's True forbids, ours allows."""
    attn_mask, padding = _masks()[case]
    module, x = _torch(), _x()
    output, weights = module(x, x, x, key_padding_mask=padding, attn_mask=attn_mask, average_attn_weights=False)
    mask = MultiHeadAttention.mask_from_torch(attn_mask, padding, n_heads=HEADS)
    out = MultiHeadAttention.from_torch(module)(x, mask=mask)
    assert mask is not None
    assert (mask.dtype == torch.bool) == ("additive" not in case)
    assert _difference(out.output, output) <= 1e-6
    assert _difference(out.weights, weights) <= 1e-6


def test_no_mask_is_no_mask() -> None:
    assert MultiHeadAttention.mask_from_torch() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attn_mask": torch.zeros(7, 6, 6)}, "n_heads is 4, and it must divide 7"),
        ({"attn_mask": torch.zeros(6)}, r"attn_mask has shape \(6,\)"),
        ({"key_padding_mask": torch.zeros(1, 2, 6)}, r"key_padding_mask has shape \(1, 2, 6\)"),
        ({"key_padding_mask": torch.zeros(2, 6, dtype=torch.long)}, "int64"),
    ],
)
def test_masks_torch_would_not_take(arguments: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention.mask_from_torch(**arguments, n_heads=HEADS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"kdim": 8, "vdim": 10}, "kdim 8 and vdim 10"),
    ],
)
def test_what_from_torch_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention.from_torch(_torch(**arguments))
    with pytest.raises(ValueError, match="this is a Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_what_to_torch_refuses() -> None:
    with pytest.raises(ValueError, match="4 query heads sharing 2 key/value heads"):
        MultiHeadAttention(D_MODEL, HEADS, n_kv_heads=2).to_torch()
    with pytest.raises(ValueError, match=r"n_heads 4 \* d_head 5 = 20 and d_model 24"):
        MultiHeadAttention(D_MODEL, HEADS, d_head=5).to_torch()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((10, 4), "d_model 10 is not divisible by n_heads 4"),
        ((24, 4, 3), "n_heads 4 is not a multiple of n_kv_heads 3"),
        ((0, 4), "d_model is 0"),
        ((24, -1), "n_heads is -1"),
        ((24, 4, 0), "n_kv_heads is 0"),
        ((24, 4, None, 2.5), r"d_head is 2\.5"),
        ((24, True), "n_heads is True"),
    ],
)
def test_sizes_that_do_not_fit(sizes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(*sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(6, 24)}, r"x has shape \(6, 24\).*x\[None\]"),
        ({"x": torch.zeros(1, 1, 6, 24)}, "three axes"),
        ({"x": torch.zeros(2, 6, 20)}, "last axis is 20; it must be d_model = 24"),
        ({"x": torch.zeros(2, 6, 24, dtype=torch.long)}, "int64"),
        ({"context": torch.zeros(2, 6, 10)}, "last axis is 10; it must be d_context = 24"),
        ({"context": torch.zeros(3, 6, 24)}, "x has batch 2 and context has batch 3"),
        ({"context": torch.zeros(2, 9, 24), "causal": True}, "6 queries and 9 keys"),
        ({"mask": torch.ones(6, 5, dtype=torch.bool)}, r"mask has shape \(6, 5\).*= \(2, 4, 6, 6\)"),
        ({"mask": torch.ones(2, 6, 6, dtype=torch.bool)}, r"\[2, 1, 6, 6\] \(mask\[:, None\]\)"),
        ({"mask": torch.ones(6, 6, dtype=torch.long)}, r"int64.*mask\.bool\(\)"),
    ],
)
def test_inputs_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    layer = MultiHeadAttention(D_MODEL, HEADS)
    with pytest.raises(ValueError, match=message):
        layer(**({"x": _x()} | arguments))


def test_a_missing_context_is_told() -> None:
    with pytest.raises(ValueError, match="d_context = 10; none was given"):
        MultiHeadAttention(D_MODEL, HEADS, d_context=10)(_x())


def test_a_mask_that_could_mean_two_things_is_refused() -> None:
    layer, x = MultiHeadAttention(D_MODEL, HEADS), torch.zeros(HEADS, LENGTH, D_MODEL)
    with pytest.raises(ValueError, match=r"mask\[:, None\].*mask\[None\]"):
        layer(x, mask=torch.ones(HEADS, LENGTH, LENGTH, dtype=torch.bool))
