"""Measuring attention: four ways, one output, and memory that grows as it must. Times are never asserted."""

from __future__ import annotations

import pytest

from mha_core.cost_measured import WAYS, measure_attention


def test_every_size_is_measured_in_four_ways_that_agree() -> None:
    sizes = list(measure_attention(64, n_heads=(8, 1), n_tokens=(16, 256), repeats=3))
    assert [(size[0].n_tokens, size[0].n_heads) for size in sizes] == [(16, 1), (16, 8), (256, 1), (256, 8)]
    for size in sizes:
        assert [timing.way for timing in size] == list(WAYS)
        for timing in size:
            assert timing.error < 1e-5
            assert 0 < timing.low <= timing.milliseconds <= timing.high


def test_maps_take_memory_that_the_fused_kernel_does_not() -> None:
    (size,) = measure_attention(64, n_heads=(8,), n_tokens=(512,), repeats=3)
    peak = {timing.way: timing.peak_bytes for timing in size}
    one_layers_maps = 8 * 512 * 512 * 4
    assert peak["ours"] >= one_layers_maps
    assert peak["torch, weights"] >= one_layers_maps
    assert peak["fused"] < one_layers_maps


@pytest.mark.parametrize(
    "sizes", [{"n_heads": (7,)}, {"n_heads": ()}, {"n_tokens": ()}, {"repeats": 1}, {"n_heads": (0,)}]
)
def test_sizes_that_cannot_be_measured_are_refused(sizes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"does not divide|at least one"):
        next(measure_attention(64, **sizes))  # type: ignore[arg-type]
