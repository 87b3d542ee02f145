"""The one attention function: known numbers, identities, parity with torch and transformers, edits, bad input."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_attention

from mha_core import attention_by_head
from mha_core.attention import AttentionInputs, attend
from mha_core.edits import BlockKeys, ScaleOutput, UniformWeights

BATCH, HEADS, QUERIES, KEYS, D_HEAD = 2, 4, 5, 7, 8
TOY = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])


def _qkv(
    seed: int = 0, kv_heads: int = HEADS, keys: int = KEYS, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((BATCH, HEADS, QUERIES, D_HEAD), (BATCH, kv_heads, keys, D_HEAD), (BATCH, kv_heads, keys, D_HEAD))
    query, key, value = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return query, key, value


def _random_mask(*shape: int, seed: int = 3) -> Tensor:
    """True with probability 0.6, and at key 0 always, so that no row is empty."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[..., 0] = True
    return mask


def _close(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= tolerance


def test_the_toy_of_the_lesson() -> None:
    """X = [[1,0,1,0],[0,1,0,1]], two heads that read dimensions 0-1 and 2-3."""
    heads = TOY.view(1, 2, 2, 2).transpose(1, 2)  # [batch, head, position, d_head]
    out = attend(heads, heads, heads)
    expected = torch.tensor([[0.6698, 0.3302], [0.3302, 0.6698]])
    assert _close(out.weights[0], expected.expand(2, 2, 2), 1e-4)
    assert _close(out.head_outputs[0], expected.expand(2, 2, 2), 1e-4)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "additive", "per head"])
def test_equals_torch(kv_heads: int, mask: str) -> None:
    causal = mask == "causal"
    query, key, value = _qkv(kv_heads=kv_heads, keys=QUERIES if causal else KEYS)
    given = {
        "boolean": _random_mask(QUERIES, KEYS),
        "additive": torch.randn(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(5)),
        "per head": _random_mask(1, HEADS, QUERIES, KEYS),
    }.get(mask)
    out = attend(query, key, value, mask=given, causal=causal, scale=0.3)
    expected = scaled_dot_product_attention(
        query, key, value, attn_mask=given, is_causal=causal, scale=0.3, enable_gqa=kv_heads < HEADS
    )
    assert _close(out.head_outputs, expected)
    assert _close(out.weights.sum(-1), torch.ones(BATCH, HEADS, QUERIES))
    assert out.empty_rows is None
    assert out.n_blocked == ()


@pytest.mark.parametrize("seed", range(5))
def test_identities(seed: int) -> None:
    query, key, value = _qkv(seed)
    out = attend(query, key, value)
    assert _close(attend(query, key, torch.ones_like(value)).head_outputs, torch.ones(BATCH, HEADS, QUERIES, D_HEAD))
    order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(seed))
    shuffled = attend(query, key[:, :, order], value[:, :, order])
    assert _close(shuffled.weights, out.weights[..., order])
    assert _close(shuffled.head_outputs, out.head_outputs)
    assert _close(attend(query, key, value, bias=torch.tensor(3.0)).weights, out.weights)
    assert _close(attend(query * 2, key, value, scale=D_HEAD**-0.5 / 2).weights, out.weights)
    one = attend(query[:, 1:2], key[:, 1:2], value[:, 1:2])
    assert _close(one.weights[:, 0], out.weights[:, 1])


def test_grouped_query_heads_share_keys_in_order() -> None:
    """Query heads 0 and 1 use key/value head 0, heads 2 and 3 use head 1."""
    query, key, value = _qkv(kv_heads=2)
    repeated = attend(query, key[:, [0, 0, 1, 1]], value[:, [0, 0, 1, 1]])
    assert torch.equal(attend(query, key, value).weights, repeated.weights)


def test_values_may_have_another_width() -> None:
    query, key, _ = _qkv()
    assert attend(query, key, torch.randn(BATCH, HEADS, KEYS, 3)).head_outputs.shape == (BATCH, HEADS, QUERIES, 3)


def test_softcap_bias_and_mask_come_in_the_librarys_order() -> None:
    query, key, value = _qkv()
    bias, mask = torch.randn(1, HEADS, QUERIES, KEYS), _random_mask(QUERIES, KEYS)
    scores = torch.tanh(query @ key.transpose(-2, -1) * 0.5 / 2.0) * 2.0 + bias
    expected = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    out = attend(query, key, value, mask=mask, bias=bias, scale=0.5, softcap=2.0)
    assert _close(out.weights, expected)


def test_sinks_equal_gpt_oss() -> None:
    query, key, value = _qkv(kv_heads=2)
    sinks = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    mask = torch.zeros(1, 1, QUERIES, KEYS).masked_fill(~_random_mask(QUERIES, KEYS), torch.finfo(torch.float32).min)
    module: Any = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
    expected, weights = gpt_oss_attention(module, query, key, value, mask, scaling=0.35, dropout=0.0)
    out = attend(query, key, value, mask=mask, scale=0.35, sinks=sinks)
    assert _close(out.weights, weights)
    assert _close(out.head_outputs.transpose(1, 2), expected)
    assert float(out.weights.sum(-1).max()) < 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_softmax_runs_in_float32(dtype: torch.dtype) -> None:
    query, key, value = _qkv(dtype=dtype)
    out = attend(query, key, value)
    scores = query @ key.transpose(-2, -1) * D_HEAD**-0.5
    assert out.weights.dtype == out.head_outputs.dtype == dtype
    assert torch.equal(out.weights, scores.softmax(-1, dtype=torch.float32).to(dtype))


@pytest.mark.parametrize("kind", ["boolean", "minus infinity"])
def test_rows_that_may_attend_to_nothing_are_zero_and_reported(kind: str) -> None:
    query, key, value = _qkv()
    mask = _random_mask(BATCH, 1, QUERIES, KEYS)
    mask[1, 0, 2] = False
    if kind == "minus infinity":
        mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    out = attend(query, key, value, mask=mask)
    assert not out.weights[1, :, 2].any()
    assert not out.head_outputs[1, :, 2].any()
    assert out.empty_rows is not None
    assert out.empty_rows.nonzero().tolist() == [[1, head, 2] for head in range(HEADS)]
    assert _close(out.weights.sum(-1)[~out.empty_rows], torch.ones(BATCH * HEADS * QUERIES - HEADS))


def test_rows_that_may_attend_to_nothing_are_reported_with_sinks_too() -> None:
    query, key, value = _qkv()
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[2] = False
    out = attend(query, key, value, mask=mask, sinks=torch.zeros(HEADS))
    assert not out.head_outputs[:, :, 2].any()
    assert out.empty_rows is not None
    assert out.empty_rows.any(dim=0).any(dim=0).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("kind", ["boolean", "minus infinity"])
def test_gradients_are_finite_where_rows_are_empty(kind: str) -> None:
    query, key, value = (t.requires_grad_() for t in _qkv())
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[2] = False
    given = mask if kind == "boolean" else torch.zeros(QUERIES, KEYS).masked_fill(~mask, float("-inf"))
    attend(query, key, value, mask=given).head_outputs.pow(2).sum().backward()
    for tensor in (query, key, value):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


def test_the_librarys_large_negative_number_is_left_as_it_is() -> None:
    """An all-closed row of a pretrained run spreads evenly, bit for bit as the library does."""
    query, key, value = _qkv()
    mask = torch.full((1, 1, QUERIES, KEYS), torch.finfo(torch.float32).min)
    out = attend(query, key, value, mask=mask)
    assert torch.equal(out.weights, torch.full_like(out.weights, 1 / KEYS))
    assert out.empty_rows is None


def test_arguments_are_not_changed() -> None:
    query, key, value = _qkv(keys=QUERIES)
    mask, bias = torch.randn(QUERIES, QUERIES), torch.randn(HEADS, QUERIES, QUERIES)
    before = [t.clone() for t in (query, key, value, mask, bias)]
    attend(query, key, value, mask=mask, bias=bias, causal=True, softcap=3.0)
    assert all(torch.equal(a, b) for a, b in zip(before, (query, key, value, mask, bias), strict=True))


def test_kept_arguments_give_the_call_again() -> None:
    query, key, value = _qkv()
    inputs = AttentionInputs(query, key, value, mask=_random_mask(QUERIES, KEYS), scale=0.2, softcap=5.0)
    direct = attend(query, key, value, mask=inputs.mask, scale=0.2, softcap=5.0)
    assert torch.equal(inputs.attend().weights, direct.weights)
    assert inputs.nbytes == 4 * (query.numel() + key.numel() + value.numel())


def test_exact_zeros_above_the_diagonal() -> None:
    query, key, value = _qkv(keys=QUERIES)
    for masks in itertools.product((None, torch.randn(QUERIES, QUERIES)), (None, torch.randn(HEADS, 1, 1))):
        assert not attend(query, key, value, causal=True, mask=masks[0], bias=masks[1]).weights.triu(1).any()


BAD_SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "three axes": ({"query": (4, 5, 8)}, "four axes"),
    "another d_head": ({"query": (2, 4, 5, 6)}, "query has d_head 6 and key has d_head 8"),
    "fewer values": ({"value": (2, 4, 6, 8)}, r"key is \(2, 4, 7, 8\) and value is \(2, 4, 6, 8\)"),
    "another batch": ({"query": (3, 4, 5, 8)}, "batch 3 and key has batch 2"),
    "heads that do not divide": ({"query": (2, 6, 5, 8)}, "6 heads and key has 4"),
    "a mask too long": ({"mask": (5, 8)}, r"mask has shape .*5, 8.* = \(2, 4, 5, 7\)"),
    "a bias too deep": ({"bias": (1, 1, 1, 5, 7)}, r"bias has shape \(1, 1, 1, 5, 7\)"),
    "sinks for other heads": ({"sinks": (3,)}, "3 numbers and there are 4 heads"),
}


@pytest.mark.parametrize("case", BAD_SHAPES)
def test_shapes_that_do_not_fit_are_told_in_numbers(case: str) -> None:
    shapes, message = BAD_SHAPES[case]
    arguments: dict[str, Any] = dict(zip(("query", "key", "value"), _qkv(), strict=True))
    arguments |= {name: torch.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=message):
        attend(**arguments)


def test_causal_needs_as_many_queries_as_keys() -> None:
    with pytest.raises(ValueError, match="5 queries and 7 keys"):
        attend(*_qkv(), causal=True)


def test_a_mask_of_whole_numbers_is_refused() -> None:
    """Zeros and ones of a tokenizer's attention_mask would be added to the scores and close nothing."""
    with pytest.raises(ValueError, match=r"mask.*int64"):
        attend(*_qkv(), mask=torch.ones(QUERIES, KEYS, dtype=torch.long))


# ---------------------------------------------------------------- head by head, as long texts are


BY_HEAD = ("plain", "causal", "mask", "causal and mask", "library's mask", "bias", "half", "empty rows", "grouped",
           "softcap", "sinks", "uniform", "blocked", "scaled")  # fmt: skip


def long_call(kind: str) -> AttentionInputs:
    """A call of 2 x 4 heads and 33 positions, to be taken for a long one."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if kind == "half" else torch.float32
    query, key, value = (
        torch.randn(2, n_heads, 33, 8, generator=generator).to(dtype)
        for n_heads in (4, *[2 if kind == "grouped" else 4] * 2)
    )
    mask = torch.rand(33, 33, generator=generator) > 0.3
    mask[:, 0] = True
    future = torch.full((2, 1, 33, 33), torch.finfo(torch.float32).min).triu(1)
    future[1, :, :, 30:] = torch.finfo(torch.float32).min  # padding; its rows see the text
    some = torch.tensor([1, 3])
    options: dict[str, dict[str, Any]] = {
        "causal": {"causal": True},
        "mask": {"mask": mask},
        "causal and mask": {"mask": mask, "causal": True},
        "library's mask": {"mask": future},
        "bias": {"bias": torch.randn(1, 4, 33, 33, generator=generator), "causal": True},
        "empty rows": {"mask": (torch.arange(33) != 7)[:, None].expand(33, 33), "causal": True},
        "softcap": {"softcap": 5.0, "scale": 2.0, "causal": True},
        "sinks": {"sinks": torch.randn(4, generator=generator), "causal": True},
        "uniform": {"edits": (UniformWeights(some),), "causal": True},
        "blocked": {"edits": (BlockKeys(some, rows=torch.tensor([0, 1]), keys=torch.tensor([2])),), "causal": True},
        "scaled": {"edits": (ScaleOutput(some, positions=torch.tensor([4])),), "causal": True},
    }
    return AttentionInputs(query, key, value, **options.get(kind, {}))


@pytest.fixture(params=[16, 512])
def taken_for_long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_by_head, "LARGE", 0)
    monkeypatch.setattr(attention_by_head, "_ROWS", request.param)


@pytest.mark.usefixtures("taken_for_long")
@pytest.mark.parametrize("kind", BY_HEAD)
def test_weights_made_head_by_head_are_those_of_the_whole_call(kind: str) -> None:
    inputs = long_call(kind)
    expected = inputs.weigh().weights
    alone = torch.stack([attention_by_head.weigh_head(inputs, head) for head in range(4)], dim=1)
    at_a_time = torch.stack(attention_by_head.map_heads(inputs, lambda _, weights: weights.clone()), dim=1)
    for found in (alone, at_a_time, attention_by_head.weigh(inputs).weights):
        assert found.dtype == expected.dtype
        assert _close(found, expected)


@pytest.mark.usefixtures("taken_for_long")
@pytest.mark.parametrize("kind", BY_HEAD)
def test_weights_made_some_rows_at_a_time_are_those_of_the_whole_call(kind: str) -> None:
    inputs = long_call(kind)
    expected, found, rows = inputs.weigh().weights, torch.zeros(2, 4, 33, 33), []

    def keep(some: slice, weights: Tensor) -> None:
        found[:, :, some, : weights.shape[-1]] = weights.float()
        rows.append(some.start)

    attention_by_head.map_rows(inputs, keep)
    assert _close(found, expected.float())
    assert sorted(set(rows)) == sorted(rows)


@pytest.mark.usefixtures("taken_for_long")
@pytest.mark.parametrize("kind", BY_HEAD)
def test_outputs_made_head_by_head_are_those_of_the_whole_call(kind: str) -> None:
    inputs, seen = long_call(kind), {}

    def look(first: int, weights: Tensor) -> None:
        seen.update({first + i: weights[:, i].clone() for i in range(weights.shape[1])})

    expected = inputs.attend()
    with torch.inference_mode():
        z, n_blocked = attention_by_head.outputs(inputs, look)
    assert _close(z, expected.head_outputs, 0.01 if kind == "half" else 1e-6)
    assert n_blocked == expected.n_blocked
    assert _close(torch.stack([seen[head] for head in range(4)], dim=1), expected.weights)


@pytest.mark.usefixtures("taken_for_long")
def test_keys_that_are_closed_to_all_rows_are_left_out() -> None:
    assert attention_by_head._cuts(long_call("plain"))[0][1] == 33
    for kind in ("causal", "library's mask"):
        cuts = attention_by_head._cuts(long_call(kind))
        assert cuts[0][1] == min(33, -(-cuts[0][0].stop // 16) * 16)
    assert all(n_keys == 33 for _, n_keys in attention_by_head._cuts(long_call("mask")))


@pytest.mark.usefixtures("taken_for_long")
def test_gradients_pass_through_a_long_call() -> None:
    inputs = long_call("causal")
    inputs.query.requires_grad_()
    z, _ = attention_by_head.outputs(inputs)
    (found,) = torch.autograd.grad(z.square().sum(), inputs.query)
    (expected,) = torch.autograd.grad(inputs.attend().head_outputs.square().sum(), inputs.query)
    assert _close(found, expected)


@pytest.mark.usefixtures("taken_for_long")
def test_many_threads_make_heads_of_many_calls_at_a_time() -> None:
    calls = [long_call(kind) for kind in ("plain", "causal", "grouped", "library's mask")]
    expected = [call.weigh().weights for call in calls]

    def wrong(number: int) -> int:
        which = number % len(calls)
        found = attention_by_head.map_heads(calls[which], lambda _, weights: weights.clone())
        return int(not _close(torch.stack(found, dim=1), expected[which]))

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(wrong, range(200))) == 0
