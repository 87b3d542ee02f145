"""What attention costs, measured on this machine: our layer, torch's layer, and torch's fused kernel, on one input.

All four compute the same output, which is checked. They are timed in turn, so that a machine that is busy is busy for
all of them. Our layer and torch's with weights make every head's map; the fused kernel never holds a map in memory,
which is why it is faster and why it cannot show one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from mha_core.layer import MultiHeadAttention

WAYS = {
    "ours": "our MultiHeadAttention: every head's weights and outputs are kept",
    "torch, weights": "nn.MultiheadAttention, need_weights=True: every head's weights are made",
    "torch, no weights": "nn.MultiheadAttention, need_weights=False: torch may choose its fused kernel",
    "fused": "the same projections around scaled_dot_product_attention: no weights are ever held",
}
_LARGEST_ERROR = 1e-4


@dataclass(frozen=True)
class Timing:
    """One way of computing one layer's attention.

    way: a key of `WAYS`. n_heads, n_tokens: the size. milliseconds: median over `repeats` runs, and the lower and
    upper quartile. peak_bytes: the most that its tensors took beyond input and weights. error: largest difference of
    its output from our layer's.
    """

    way: str
    n_heads: int
    n_tokens: int
    milliseconds: float
    low: float
    high: float
    repeats: int
    peak_bytes: int
    error: float


def measure_attention(
    d_model: int = 512,
    n_heads: Sequence[int] = (1, 8, 16),
    n_tokens: Sequence[int] = (64, 256, 1024),
    repeats: int = 9,
    seed: int = 0,
) -> Iterator[list[Timing]]:
    """Time every size, smallest first; yields the four ways of one size as soon as they are measured.

    Args:
        d_model: width, a multiple of every number of heads. repeats: timed runs of each way, after one that is not.

    Raises:
        ValueError: sizes that do not fit, or nothing to measure.
        RuntimeError: the four ways do not agree, which would make the comparison meaningless.
    """
    sizes = sorted({(n, h) for n in n_tokens for h in n_heads})
    if not sizes or repeats < 3:
        raise ValueError("Measuring needs at least one number of heads, one length and 3 repeats.")
    for _, heads in sizes:
        if heads < 1 or d_model % heads:
            raise ValueError(f"d_model is {d_model} and does not divide into {heads} heads.")
    for n, heads in sizes:
        yield _one_size(d_model, heads, n, repeats, seed)


def _one_size(d_model: int, n_heads: int, n: int, repeats: int, seed: int) -> list[Timing]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, n, d_model, generator=generator)
    ways = _ways(d_model, n_heads, x)
    with torch.inference_mode():
        outputs = {name: run() for name, run in ways.items()}
        peaks = {name: _peak_bytes(run) for name, run in ways.items()}
        errors = {name: float((output - outputs["ours"]).abs().max()) for name, output in outputs.items()}
        if max(errors.values()) > _LARGEST_ERROR:
            raise RuntimeError(f"The ways to compute attention differ by {max(errors.values()):.1e}.")
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, run in ways.items():
                began = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - began)
    timings = []
    for name, values in seconds.items():
        low, middle, high = (1000 * value for value in statistics.quantiles(values, n=4))
        timings.append(Timing(name, n_heads, n, middle, low, high, repeats, peaks[name], errors[name]))
    return timings


def _ways(d_model: int, n_heads: int, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The four computations, with the same weights."""
    torchs = nn.MultiheadAttention(d_model, n_heads, batch_first=True, bias=False).eval()
    ours = MultiHeadAttention.from_torch(torchs).eval()
    into = torchs.in_proj_weight.detach()
    out = torchs.out_proj.weight.detach()

    def fused() -> Tensor:
        projected = linear(x, into).view(1, x.shape[1], 3, n_heads, -1).permute(2, 0, 3, 1, 4)
        z = scaled_dot_product_attention(projected[0], projected[1], projected[2])
        return linear(z.transpose(1, 2).reshape(1, x.shape[1], -1), out)

    return {
        "ours": lambda: ours(x).output,
        "torch, weights": lambda: torchs(x, x, x, need_weights=True, average_attn_weights=False)[0],
        "torch, no weights": lambda: torchs(x, x, x, need_weights=False)[0],
        "fused": fused,
    }


def _peak_bytes(run: Callable[[], Tensor]) -> int:
    """The most that one run's tensors took at once, as torch's own allocator reports it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    level = peak = 0
    for event in recorded.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak
