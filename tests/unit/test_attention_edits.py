"""Edits of one attention call: what they change, and that they change nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mha_core.attention import AttentionInputs
from mha_core.edits import BlockKeys, Edit, ReplaceOutput, ScaleOutput, UniformWeights

BATCH, HEADS, LENGTH, D_HEAD = 3, 4, 5, 8
ALL_OTHERS = [0, 2, 3]


def _inputs(causal: bool = True, seed: int = 0, kv_heads: int = HEADS, edits: tuple[Edit, ...] = ()) -> AttentionInputs:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(BATCH, HEADS, LENGTH, D_HEAD, generator=generator)
    key, value = (torch.randn(BATCH, kv_heads, LENGTH, D_HEAD, generator=generator) for _ in range(2))
    return AttentionInputs(query, key, value, causal=causal, edits=edits)


def _t(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def _close(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= tolerance


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("factor", [0.0, 0.5, -2.0])
def test_scaling_a_head_touches_that_head_alone(factor: float, kv_heads: int) -> None:
    clean = _inputs(kv_heads=kv_heads).attend()
    out = _inputs(kv_heads=kv_heads, edits=(ScaleOutput(_t(1), factor=factor),)).attend()
    assert torch.equal(out.weights, clean.weights)
    assert torch.equal(out.head_outputs[:, 1], clean.head_outputs[:, 1] * factor)
    assert torch.equal(out.head_outputs[:, ALL_OTHERS], clean.head_outputs[:, ALL_OTHERS])


def test_zero_is_zero_even_of_infinity() -> None:
    inputs = _inputs(edits=(ScaleOutput(_t(1)),))
    inputs.value[:, 1] = float("inf")
    assert not inputs.attend().head_outputs[:, 1].any()


def test_each_row_of_the_batch_can_lose_another_head() -> None:
    """What a sweep needs: head i of row i, and the others as they were."""
    clean = _inputs().attend().head_outputs
    out = _inputs(edits=(ScaleOutput(_t(0, 1, 3), rows=_t(0, 1, 2)),)).attend().head_outputs
    for row, cut in enumerate((0, 1, 3)):
        for head in range(HEADS):
            expected = torch.zeros(LENGTH, D_HEAD) if head == cut else clean[row, head]
            assert torch.equal(out[row, head], expected)


def test_rows_and_positions_together() -> None:
    clean = _inputs().attend().head_outputs
    out = _inputs(edits=(ScaleOutput(_t(2, 2), rows=_t(0, 2), positions=_t(1, 4)),)).attend().head_outputs
    expected = clean.clone()
    for row in (0, 2):
        expected[row, 2, [1, 4]] = 0.0
    assert torch.equal(out, expected)


def test_replacing_takes_one_value_or_one_per_position_or_row() -> None:
    clean = _inputs().attend().head_outputs
    one, per_position = torch.randn(2, 1, D_HEAD), torch.randn(2, 2, D_HEAD)
    out = _inputs(edits=(ReplaceOutput(_t(1, 3), value=one),)).attend().head_outputs
    assert torch.equal(out[:, [1, 3]], one.expand(BATCH, 2, LENGTH, D_HEAD))
    assert torch.equal(out[:, [0, 2]], clean[:, [0, 2]])
    out = _inputs(edits=(ReplaceOutput(_t(1, 3), positions=_t(0, 4), value=per_position),)).attend().head_outputs
    assert torch.equal(out[:, [1, 3]][:, :, [0, 4]], per_position.expand(BATCH, 2, 2, D_HEAD))
    assert torch.equal(out[:, :, 1:4], clean[:, :, 1:4])
    out = _inputs(edits=(ReplaceOutput(_t(1, 3), rows=_t(2, 0), value=one),)).attend().head_outputs
    assert torch.equal(out[2, 1], one[0].expand(LENGTH, D_HEAD))
    assert torch.equal(out[0, 3], one[1].expand(LENGTH, D_HEAD))
    assert torch.equal(out[1], clean[1])


def test_uniform_spreads_over_what_may_be_attended_to() -> None:
    clean = _inputs().attend()
    out = _inputs(edits=(UniformWeights(_t(1), positions=_t(0, 3)),)).attend()
    assert torch.equal(out.weights[:, 1, 3], torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0]).expand(BATCH, LENGTH))
    assert torch.equal(out.weights[:, 1, 4], clean.weights[:, 1, 4])
    assert torch.equal(out.weights[:, ALL_OTHERS], clean.weights[:, ALL_OTHERS])
    assert _close(out.head_outputs[:, 1, 3], _inputs().value[:, 1, :4].mean(1))


def test_blocked_keys_renormalise_the_row_and_are_counted() -> None:
    clean = _inputs().attend()
    out = _inputs(edits=(BlockKeys(_t(1, 2), positions=_t(3), keys=_t(0, 4)),)).attend()
    kept = clean.weights[:, 1:3, 3].clone()
    kept[..., 0] = 0.0
    assert _close(out.weights[:, 1:3, 3], kept / kept.sum(-1, keepdim=True))
    assert torch.equal(out.weights[:, [0, 3]], clean.weights[:, [0, 3]])
    assert torch.equal(out.weights[:, :, :3], clean.weights[:, :, :3])
    assert out.n_blocked == (BATCH * 2,)  # key 4 is in the future of position 3: it was closed before


@pytest.mark.parametrize("mask", ["causal", "boolean", "library"])
def test_the_future_stays_closed_when_nothing_is_left(mask: str) -> None:
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    inputs = _inputs(causal=mask == "causal")
    given = {
        "causal": None,
        "boolean": allowed,
        "library": torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~allowed, torch.finfo(torch.float32).min),
    }[mask]
    edit = BlockKeys(_t(1), positions=_t(2), keys=_t(0, 1, 2))
    out = AttentionInputs(
        inputs.query, inputs.key, inputs.value, mask=given, causal=inputs.causal, edits=(edit,)
    ).attend()
    assert not out.weights[:, 1, 2].any()
    assert not out.head_outputs[:, 1, 2].any()
    assert not out.weights.triu(1).any()
    assert out.empty_rows is not None
    assert out.empty_rows.nonzero().tolist() == [[row, 1, 2] for row in range(BATCH)]


def test_blocked_keys_stay_closed_for_a_uniform_head() -> None:
    edits = (BlockKeys(_t(1), positions=_t(3), keys=_t(0, 1)), UniformWeights(_t(1)))
    for order in (edits, edits[::-1]):
        weights = _inputs(edits=order).attend().weights[:, 1, 3]
        assert _close(weights, torch.tensor([0.0, 0.0, 0.5, 0.5, 0.0]).expand(BATCH, LENGTH))


def test_blocking_what_is_closed_already_counts_nothing() -> None:
    clean = _inputs().attend()
    out = _inputs(
        edits=(BlockKeys(_t(1), positions=_t(0), keys=_t(3)), BlockKeys(_t(1), positions=_t(3), keys=_t(0)))
    ).attend()
    assert out.n_blocked == (0, BATCH)
    assert torch.equal(out.weights[:, 1, 0], clean.weights[:, 1, 0])


def test_no_edits_and_scaling_by_one_are_bit_equal() -> None:
    clean = _inputs().attend()
    for edits in ((), (ScaleOutput(_t(0, 1, 2, 3), factor=1.0),)):
        out = _inputs(edits=edits).attend()
        assert torch.equal(out.weights, clean.weights)
        assert torch.equal(out.head_outputs, clean.head_outputs)
    assert torch.equal(_inputs(edits=(ScaleOutput(_t(1)),)).without_edits().attend().head_outputs, clean.head_outputs)


def test_edits_let_gradients_through() -> None:
    edits = (
        ScaleOutput(_t(0)),
        UniformWeights(_t(1)),
        ReplaceOutput(_t(2), value=torch.zeros(1)),
        BlockKeys(_t(3), positions=_t(3), keys=_t(1)),
    )
    inputs = _inputs(edits=edits)
    for tensor in (inputs.query, inputs.value):
        tensor.requires_grad_()
    inputs.attend().head_outputs.pow(2).sum().backward()
    assert inputs.value.grad is not None
    assert inputs.query.grad is not None
    assert not inputs.value.grad[:, [0, 2]].any()
    assert inputs.value.grad[:, [1, 3]].any(-1).all()
    assert not inputs.query.grad[:, :3].any()
    assert inputs.query.grad.isfinite().all()
