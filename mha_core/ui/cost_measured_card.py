"""The Cost page's measurements: our layer, torch's layer and torch's fused kernel, on this machine, now."""

from __future__ import annotations

import os
from collections.abc import Sequence

import streamlit as st
import torch

from mha_core.cost_measured import WAYS, Timing, measure_attention
from mha_core.ui.charts import Line, line_chart
from mha_core.ui.session import Working
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_WIDTHS = (64, 256, 512, 1024)
_HEADS = (1, 2, 4, 8, 16)
_LENGTHS = (16, 64, 256, 512, 1024, 2048)


def measured_section() -> None:
    """Choose sizes, measure, and see by how much each way is slower and why."""
    st.caption(plain(
        "One layer, one sequence, float32, bidirectional, the same weights and input for every way; the outputs are "
        f"compared, too. On this server: {os.cpu_count()} cores, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads."
    ))  # fmt: skip
    with st.container(border=True, horizontal=True, vertical_alignment="bottom"):
        width = st.selectbox("d_model", _WIDTHS, index=2, key="w_measured_width", width=120)
        heads = st.multiselect("Heads", _HEADS, default=(1, 8, 16), key="w_measured_heads", width=220)
        lengths = st.multiselect("Tokens", _LENGTHS, default=(64, 256, 512), key="w_measured_lengths", width=300)
        repeats = st.number_input("Repeats", 3, 99, 9, key="w_measured_repeats", width=120)
        asked = st.button("Measure", key="measure", type="primary", icon=":material/timer:",
                          disabled=not (heads and lengths))  # fmt: skip
    key = ("measured", width, tuple(sorted(heads)), tuple(sorted(lengths)), int(repeats))
    place = st.container()
    if asked:
        _measure(key, width, heads, lengths, int(repeats))
    sizes: list[list[Timing]] | None = store().peek(key)
    if not sizes:
        st.info("Choose sizes and measure. The largest take a second or two.", icon=":material/timer:")
        return
    with place:
        _draw(sizes, complete=len(sizes) == len(heads) * len(lengths))


def _measure(key: tuple[object, ...], width: int, heads: Sequence[int], lengths: Sequence[int], repeats: int) -> None:
    sizes: list[list[Timing]] = []
    with Working("Measuring attention", (key, "work"), asked=True) as working:
        for size in measure_attention(width, heads, lengths, repeats):
            sizes.append(size)
            store().keep(key, list(sizes))
            working.progress(len(sizes), len(heads) * len(lengths))


def _draw(sizes: Sequence[Sequence[Timing]], complete: bool) -> None:
    if not complete:
        st.caption("Stopped before the end: what was measured until then.")
    most = max(timing.n_heads for size in sizes for timing in size)
    rows = [size for size in sizes if size[0].n_heads == most]
    lengths = [size[0].n_tokens for size in rows]
    lines = {
        way: Line(
            lengths, [size[number].milliseconds for size in rows], [size[number].low for size in rows],
            [size[number].high for size in rows],
        )
        for number, way in enumerate(WAYS)
    }  # fmt: skip
    with st.container(border=True):
        st.subheader(f"Time over n, {most} heads", anchor=False)
        line_chart(lines, key="measured_time", alt=f"Milliseconds over the number of tokens with {most} heads",
                   x="n, tokens", y="ms, median and middle half", log_x=True, log_y=True, ticks=lengths)  # fmt: skip
        for sentence in reading(sizes[-1]):
            st.write(plain(sentence))
    table = [
        {
            "tokens": timing.n_tokens, "heads": timing.n_heads, "way": timing.way, "ms, median": timing.milliseconds,
            "ms, middle half": f"{timing.low:.3g}–{timing.high:.3g}",
            "× fused": timing.milliseconds / size[-1].milliseconds,
            "peak memory, MiB": timing.peak_bytes / 2**20, "largest difference": f"{timing.error:.0e}",
        }
        for size in sizes for timing in size
    ]  # fmt: skip
    st.dataframe(table, hide_index=True, alt="Every measurement")
    st.caption("  \n".join(plain(f"{way}: {what}.") for way, what in WAYS.items()))


def reading(size: Sequence[Timing]) -> list[str]:
    """What the last size says, computed from its numbers."""
    by_way = {timing.way: timing for timing in size}
    ours, fused = by_way["ours"], by_way["fused"]
    ratio = ours.milliseconds / fused.milliseconds
    words = (
        f"{ratio:.1f} times as long as" if ratio >= 1.05 else "about as long as" if ratio > 0.95 else "less time than"
    )
    return [
        f"At {ours.n_tokens:,} tokens and {ours.n_heads} heads our layer takes {words} the fused kernel "
        f"({ours.milliseconds:.3g} against {fused.milliseconds:.3g} ms) and "
        f"{ours.peak_bytes / max(fused.peak_bytes, 1):.1f} times its memory. It makes and keeps "
        f"{ours.n_heads} maps of {ours.n_tokens:,} × {ours.n_tokens:,} weights, which is what this app shows; the "
        "fused kernel works through tiles and never holds one.",
        "Medians of runs made in turn; a busy machine makes all of them slower.",
    ]
