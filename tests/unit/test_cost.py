"""What attention costs, counted: known numbers, and the layer's own weights."""

from __future__ import annotations

import pytest
import torch

from mha_core import MultiHeadAttention
from mha_core.cost import PRESETS, AttentionCost, single_head_comparisons


@pytest.mark.parametrize("n_heads", [1, 8])
def test_512_wide_has_as_many_weights_with_one_head_as_with_eight(n_heads: int) -> None:
    assert AttentionCost.of(512, n_heads).total_parameters() == 1_048_576


@pytest.mark.parametrize("n_heads", [1, 8])
def test_the_scores_of_128_tokens_cost_the_same_with_one_head_as_with_eight(n_heads: int) -> None:
    assert AttentionCost.of(512, n_heads).macs(128)["Q Kᵀ"] == 8_388_608


@pytest.mark.parametrize(("d_model", "n_heads", "d_head"), [(512, 8, 64), (768, 12, 64), (512, 64, 8)])
def test_heads_divide_the_width(d_model: int, n_heads: int, d_head: int) -> None:
    assert AttentionCost.of(d_model, n_heads).d_head == d_head


@pytest.mark.parametrize("n_kv_heads", [1, 2, 8])
@pytest.mark.parametrize("bias", [False, True])
def test_parameters_are_those_of_the_layer(n_kv_heads: int, bias: bool) -> None:
    cost = AttentionCost(64, 8, n_kv_heads, 16, bias=bias)
    layer = MultiHeadAttention(d_model=64, n_heads=8, n_kv_heads=n_kv_heads, d_head=16, bias=bias)
    assert cost.total_parameters() == sum(weight.numel() for weight in layer.parameters())


@pytest.mark.parametrize("n_kv_heads", [1, 4, 8])
def test_multiply_accumulates_are_those_that_torch_counts(n_kv_heads: int) -> None:
    """Torch counts two floating-point operations per multiply-accumulate."""
    from torch.utils.flop_counter import FlopCounterMode

    layer = MultiHeadAttention(d_model=64, n_heads=8, n_kv_heads=n_kv_heads)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        output = layer(torch.randn(1, 20, 64)).output
    assert output.shape == (1, 20, 64)
    assert counter.get_total_flops() == 2 * AttentionCost.of(64, 8, n_kv_heads).total_macs(20)


def test_llama_3_keeps_a_quarter_of_what_llama_2_keeps() -> None:
    """128 kB a token in half precision, against 512 kB."""
    assert PRESETS["Llama-3-8B"].kv_bytes(1) == 131_072
    assert PRESETS["Llama-2-7B"].kv_bytes(1) == 524_288
    assert PRESETS["Llama-3-8B"].with_kv_heads(32).kv_bytes(1) == PRESETS["Llama-2-7B"].kv_bytes(1)


def test_a_cache_grows_with_key_value_heads_only() -> None:
    mha = AttentionCost.of(512, 8)
    assert [mha.with_kv_heads(kv).kv_bytes(100) // mha.with_kv_heads(1).kv_bytes(100) for kv in (1, 2, 4, 8)] == [
        1, 2, 4, 8,
    ]  # fmt: skip
    assert [mha.with_kv_heads(kv).kind for kv in (1, 2, 8)] == ["MQA", "GQA", "MHA"]


def test_the_quadratic_term_overtakes_at_the_crossover() -> None:
    cost = AttentionCost.of(512, 8)
    assert cost.crossover() == 1024  # 4 d² n = 2 n² d at n = 2 d
    assert cost.quadratic_share(1024) == pytest.approx(0.5)
    assert cost.quadratic_share(128) < 0.5 < cost.quadratic_share(8192)
    assert cost.score_entries(256) == 4 * cost.score_entries(128) == 8 * 256 * 256


def test_both_ways_of_comparing_with_one_head_are_told() -> None:
    several, same, bare, full = single_head_comparisons(512, 8, 128)
    assert several.parameters == same.parameters == 1_048_576
    assert several.macs == same.macs
    assert bare.parameters == 3 * 512 * 512
    assert full.parameters == 8 * several.parameters


def test_the_table_adds_up() -> None:
    cost = PRESETS["SmolLM2-135M"]
    rows = cost.table(128, bytes_per_number=4, batch=2)
    layer = sum(row.value for row in rows if row.part == "parameters, one layer")
    assert cost.total_parameters() == 30 * layer == next(r.value for r in rows if r.part == "parameters, all layers")
    macs = sum(row.value for row in rows if row.part == "one layer, n tokens" and row.unit == "MACs")
    assert 30 * macs == next(r.value for r in rows if r.part == "all layers, n tokens")
    assert rows[-1].value == 2 * 30 * 3 * 64 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AttentionCost.of(512, 7), "does not divide into 7 heads"),
        (lambda: AttentionCost(512, 8, 3, 64), "cannot share 3 key/value heads"),
        (lambda: AttentionCost(0, 8, 8, 64), "d_model is 0"),
        (lambda: AttentionCost.of(512, 8).table(0), "at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_a_sentence(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
