"""Our own layer: known numbers, identities, parity with torch, ablation, bad input."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from mha_core.attention import AttentionInputs
from mha_core.interventions import (
    AttentionKnockout,
    HeadAblation,
    InterventionError,
    Interventions,
)
from mha_core.layer import LayerOutput, MultiHeadAttention

D_MODEL, HEADS, BATCH, LENGTH = 24, 4, 2, 6
SIZES: dict[str, dict[str, Any]] = {
    "multi-head": {},
    "bias": {"bias": True},
    "grouped": {"n_kv_heads": 2, "bias": True},
    "multi-query": {"n_kv_heads": 1},
    "own d_head": {"d_head": 5, "bias": True},
    "cross": {"d_context": 10, "bias": True},
}


def _layer(seed: int = 0, **sizes: Any) -> MultiHeadAttention:
    """A layer whose biases are not zero."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(D_MODEL, HEADS, **sizes)
    with torch.no_grad():
        for bias in (layer.b_Q, layer.b_K, layer.b_V, layer.b_O):
            if bias is not None:
                bias.normal_()
    return layer


def _x(seed: int = 1, width: int = D_MODEL, length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, width, generator=torch.Generator().manual_seed(seed))


def _run(layer: MultiHeadAttention, **arguments: Any) -> LayerOutput:
    context = _x(2, layer.d_context, 9) if layer.needs_context else None
    with torch.no_grad():
        return layer(_x(), context, **arguments)


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max()) if a.shape == b.shape else float("inf")


def _toy() -> MultiHeadAttention:
    """The lesson's toy: head 1 selects dimensions 0-1, head 2 dimensions 2-3, and W_O is the identity."""
    layer = MultiHeadAttention(4, 2)
    selection = torch.eye(4).view(4, 2, 2).transpose(0, 1)  # [head, d_model, d_head]
    with torch.no_grad():
        for weight in (layer.W_Q, layer.W_K, layer.W_V):
            weight.copy_(selection)
        layer.W_O.copy_(torch.eye(4).view(2, 2, 4))
    return layer


def test_the_toy_of_the_lesson() -> None:
    out = _toy()(torch.tensor([[[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]]))
    expected = torch.tensor([[0.6698, 0.3302], [0.3302, 0.6698]])
    assert _difference(out.weights[0], expected.expand(2, 2, 2)) <= 1e-4
    assert _difference(out.head_outputs[0], expected.expand(2, 2, 2)) <= 1e-4
    assert _difference(out.output[0], expected.repeat(1, 2)) <= 1e-4


def test_as_many_weights_with_one_head_as_with_eight() -> None:
    for heads in (1, 8):
        layer = MultiHeadAttention(d_model=512, n_heads=heads)
        assert sum(p.numel() for p in layer.parameters()) == 1_048_576
        assert layer.d_head == 512 // heads


@pytest.mark.parametrize("case", SIZES)
def test_shapes(case: str) -> None:
    layer = _layer(**SIZES[case])
    out, keys = _run(layer), 9 if layer.needs_context else LENGTH
    assert out.output.shape == (BATCH, LENGTH, D_MODEL)
    assert out.weights.shape == (BATCH, HEADS, LENGTH, keys)
    assert out.head_outputs.shape == out.query.shape == (BATCH, HEADS, LENGTH, layer.d_head)
    assert out.key.shape == out.value.shape == (BATCH, layer.n_kv_heads, keys, layer.d_head)
    assert out.contributions.shape == (BATCH, HEADS, LENGTH, D_MODEL)
    assert out.empty_rows is None


@pytest.mark.parametrize("case", SIZES)
def test_contributions_and_bias_sum_to_the_output(case: str) -> None:
    layer = _layer(**SIZES[case])
    out = _run(layer)
    total = out.contributions.sum(1) + (0.0 if layer.b_O is None else layer.b_O)
    assert _difference(total, out.output) <= 2e-6
    assert _difference(layer.contributions(out.head_outputs), out.contributions) == 0
    assert _difference(layer.merge(out.head_outputs), out.output) == 0


@pytest.mark.parametrize("case", SIZES)
def test_the_steps_written_out_give_the_same(case: str) -> None:
    """Head by head, as the formula reads."""
    layer = _layer(**SIZES[case])
    x, context = _x(), _x(2, layer.d_context, 9) if layer.needs_context else _x()
    out, zero = _run(layer), torch.zeros(HEADS, 1)
    b_q, b_k, b_v = (zero if b is None else b for b in (layer.b_Q, layer.b_K, layer.b_V))
    for head in range(HEADS):
        kv = head * layer.n_kv_heads // HEADS
        query, key, value = (
            x @ layer.W_Q[head] + b_q[head],
            context @ layer.W_K[kv] + b_k[kv],
            context @ layer.W_V[kv] + b_v[kv],
        )
        weights = (query @ key.transpose(1, 2) / layer.d_head**0.5).softmax(-1)
        assert _difference(out.weights[:, head], weights) <= 1e-6
        assert _difference(out.contributions[:, head], weights @ value @ layer.W_O[head]) <= 2e-6


def test_kept_arguments_give_the_weights_again() -> None:
    out = _run(_layer(), causal=True, ablation=[HeadAblation("L0H1", "uniform")])
    assert isinstance(out.attention_inputs, AttentionInputs)
    assert torch.equal(out.attention_inputs.attend().weights, out.weights)
    assert torch.equal(out.attention_inputs.query, out.query)


def test_masks_and_causality() -> None:
    layer, mask = _layer(), torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool)
    mask[1, ..., 4:] = False
    assert not _run(layer, mask=mask).weights[1, ..., 4:].any()
    assert not _run(layer, causal=True).weights.triu(1).any()
    mask[1] = False
    empty = _run(layer, mask=mask)
    assert empty.empty_rows is not None
    assert empty.empty_rows[1].all()
    assert not empty.output[1].any()
    x = _x()
    cut = layer(x[:, :3], causal=True).output
    assert _difference(layer(x, causal=True).output[:, :3], cut) <= 1e-6


def test_it_learns() -> None:
    """Every parameter has a gradient, and a few steps lower the loss."""
    layer, x, target = _layer(n_kv_heads=2, bias=True), _x(), _x(5)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (layer(x).output - target).pow(2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    assert all(bool(g.any()) for name, g in gradients.items() if name != "b_K")  # softmax does not see b_K


def test_no_gradient_reaches_a_head_that_is_switched_off() -> None:
    layer = _layer()
    layer(_x(), ablation=[HeadAblation("L0H1")]).output.sum().backward()
    for weight in (layer.W_Q, layer.W_V, layer.W_O):
        assert weight.grad is not None
        assert not weight.grad[1].any()
        assert weight.grad[0].any()


@pytest.mark.parametrize("case", SIZES)
def test_state_dict_round_trip(case: str) -> None:
    layer, other = _layer(0, **SIZES[case]), _layer(7, **SIZES[case])
    assert _difference(_run(layer).output, _run(other).output) > 0.01
    other.load_state_dict(layer.state_dict())
    assert torch.equal(_run(layer).output, _run(other).output)
    assert torch.equal(_run(copy.deepcopy(layer)).output, _run(layer).output)
    expected = {"W_Q", "W_K", "W_V", "W_O"} | ({"b_Q", "b_K", "b_V", "b_O"} if layer.b_O is not None else set())
    assert set(layer.state_dict()) == expected


def test_starts_like_torchs_own_layer() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(512, 8, bias=True)
    bound = (6 / (512 + 512)) ** 0.5
    for weight in (layer.W_Q, layer.W_K, layer.W_V, layer.W_O):
        assert float(weight.detach().abs().max()) == pytest.approx(bound, rel=1e-3)
        assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=1e-2)
    assert layer.b_Q is not None
    assert not layer.b_Q.any()


def test_ablation_kinds() -> None:
    layer = _layer(bias=True)
    clean = _run(layer)
    z = clean.head_outputs[:, 1]
    expected = {
        ("zero",): torch.zeros_like(z),
        ("mean", "sentence"): z.mean(1, keepdim=True).expand_as(z),
        ("scale", 0.5): z * 0.5,
        ("uniform",): clean.value[:, 1].mean(1, keepdim=True).expand_as(z),
    }
    for (kind, *extra), value in expected.items():
        arguments: dict[str, Any] = {{"mean": "reference", "scale": "factor"}[str(kind)]: extra[0]} if extra else {}
        out = _run(layer, ablation=[HeadAblation("L0H1", str(kind), **arguments)])
        assert _difference(out.head_outputs[:, 1], value) <= 1e-6, kind
        assert torch.equal(out.head_outputs[:, [0, 2, 3]], clean.head_outputs[:, [0, 2, 3]])
        change = out.contributions[:, 1] - clean.contributions[:, 1]
        assert _difference(out.output - clean.output, change) <= 2e-6
        there = _run(layer, ablation=Interventions([HeadAblation("L0H1", str(kind), positions=[2, -1], **arguments)]))
        assert _difference(there.head_outputs[:, 1, [2, 5]], value[:, [2, 5]]) <= 1e-6, kind
        assert torch.equal(there.head_outputs[:, 1, [0, 1, 3, 4]], z[:, [0, 1, 3, 4]])


def test_a_plan_that_changes_nothing_is_bit_equal() -> None:
    layer = _layer(bias=True)
    clean = _run(layer)
    plans: list[Any] = [None, [], Interventions(), HeadAblation(["L0H0", "L0H3"], "scale", factor=1.0)]
    for plan in plans:
        assert torch.equal(_run(layer, ablation=plan).output, clean.output)


def test_knockouts() -> None:
    layer = _layer()
    clean = _run(layer, causal=True).weights
    out = _run(layer, causal=True, ablation=AttentionKnockout([0, 1], [3], heads=[2])).weights
    kept = clean[:, 2, 3].clone()
    kept[:, :2] = 0.0
    assert _difference(out[:, 2, 3], kept / kept.sum(-1, keepdim=True)) <= 1e-6
    assert torch.equal(out[:, [0, 1, 3]], clean[:, [0, 1, 3]])
    with pytest.raises(InterventionError, match="changes nothing"):
        _run(layer, causal=True, ablation=AttentionKnockout([5], [2]))


def test_head_outputs_are_cut_before_the_output_projection() -> None:
    """A slice of the output mixes all heads: zeroing it is another thing, and not the contribution of a head."""
    layer = _layer()
    clean, out = _run(layer), _run(layer, ablation=[HeadAblation("L0H0")])
    sliced = clean.output.clone()
    sliced[..., : layer.d_head] = 0.0
    assert _difference(out.output, clean.output - clean.contributions[:, 0]) <= 1e-6
    assert _difference(out.output, sliced) > 0.05


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (HeadAblation("L0H4"), "L0H4 names head 4; this layer has 4 heads, numbered 0 to 3"),
        (HeadAblation("L2H0"), "L2H0 names layer 2; this is a single layer, layer 0"),
        (HeadAblation("cross.L0H0"), "cross.L0H0 is in 'cross'; this layer is 'self'"),
        (HeadAblation("L0H0", "mean"), "mean ablation of L0H0 needs a run on other sentences"),
        (HeadAblation("L0H0", "mean", reference=("One.",)), "reads no text"),
        (HeadAblation("L0H0", "resample", source="Another."), "resample ablation of L0H0 needs a run"),
        (HeadAblation("L0H0", positions=[6]), "position 6"),
        (AttentionKnockout([0], [1], layers=[1]), "names layer 1"),
        (AttentionKnockout([0], [1], heads=[9]), "head 9"),
        (AttentionKnockout([9], [1]), "src 9"),
        (AttentionKnockout([0], [1], site="enc"), "'enc'; this layer is 'self'"),
    ],
)
def test_what_one_layer_cannot_do(item: HeadAblation | AttentionKnockout, message: str) -> None:
    with pytest.raises(InterventionError, match=message):
        _run(_layer(), ablation=[item])
