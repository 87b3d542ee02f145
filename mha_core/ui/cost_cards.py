"""The Cost page's calculator: sizes in, parameters, multiply-accumulates, maps and KV cache out, with formulas."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from mha_core.cost import PRESETS, AttentionCost, attention_costs, single_head_comparisons
from mha_core.ui.charts import Line, line_chart
from mha_core.ui.cost_state import LENGTHS, NUMBER_BYTES, shape_text, sizes_of_shape
from mha_core.ui.session import bind, current, update
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_NUMBERS = {4: "float32, 4 bytes", 2: "half precision, 2 bytes", 1: "8 bit, 1 byte"}
_FIELDS = ("d_model", "n_heads", "n_kv_heads", "d_head", "n_layers")
_LABELS = {
    "d_model": "d_model, width", "n_heads": "h, query heads", "n_kv_heads": "h_kv, key/value heads",
    "d_head": "d_head", "n_layers": "layers",
}  # fmt: skip
_MOST = {"d_model": 999_999, "n_heads": 9_999, "n_kv_heads": 9_999, "d_head": 99_999, "n_layers": 9_999}
CUSTOM = "your own sizes"


def calculator_section() -> None:
    """Counted, never measured: every number follows from the sizes."""
    st.caption(
        "Counted from the shapes, exactly. A multiply-accumulate (MAC) is one multiplication and one addition. Counted "
        "is the attention itself: its projections and the two products; not norms, softmax, MLPs or embeddings."
    )
    left, right = st.columns([4, 9], gap="medium")
    with left, st.container(border=True):
        _sizes()
    try:
        d_model, n_heads, n_kv_heads, d_head, n_layers, bias = sizes_of_shape(current().shape)
        cost = AttentionCost(d_model, n_heads, n_kv_heads, d_head, n_layers, bias)
    except ValueError as error:
        with right:
            st.warning(plain(str(error)))
        return
    with right:
        _totals(cost)
        _table(cost)
    _curves(cost)
    _one_head(cost)


def shapes() -> dict[str, AttentionCost]:
    """What can be chosen by name: published shapes, and every model in memory."""
    known = dict(PRESETS)
    for name, model in store().loaded().items():
        for site, cost in attention_costs(model).items():
            where = "" if site == "self" else f", {site}"
            known[f"{model.details.title}{where} (loaded: {name})"] = cost
    return known


def _sizes() -> None:
    state, known = current(), shapes()
    key = "w_preset"
    same = [name for name, cost in known.items() if shape_text(cost) == state.shape] or [CUSTOM]
    before = st.session_state.get(key)
    chosen = before if before in same else same[0]  # BERT-base and GPT-2 have one shape
    names = [*known, CUSTOM]
    if before != chosen:
        st.session_state[key] = chosen

    def preset_changed() -> None:
        name = st.session_state[key]
        if name in known:
            update(shape=shape_text(known[name]))

    st.selectbox("Shape", names, key=key, on_change=preset_changed)
    values = dict(zip(_FIELDS, sizes_of_shape(state.shape), strict=False))
    # Row by row, so that they keep their order where a narrow page puts columns under each other.
    rows = [st.columns(2) for _ in range(3)]
    places = [column for row in rows for column in row]
    for name, place in zip(_FIELDS, places, strict=False):
        with place:
            _size_field(name, values)
    with places[-1]:
        st.number_input("Sequences at once", 1, 9_999, **bind("batch", convert=int))
    st.select_slider("n, tokens", LENGTHS, format_func=lambda n: f"{n:,}", **bind("tokens", convert=int))
    st.segmented_control(
        "One number", NUMBER_BYTES, format_func=_NUMBERS.__getitem__, required=True, **bind("number", convert=int)
    )


def _size_field(name: str, values: Mapping[str, int]) -> None:
    key = f"w_size_{name}"
    if st.session_state.get(key) != values[name]:
        st.session_state[key] = values[name]

    def changed() -> None:
        *_, bias = sizes_of_shape(current().shape)
        sizes = {**values, name: int(st.session_state[key])}
        update(shape="x".join(str(sizes[field]) for field in _FIELDS) + ("b" if bias else ""))

    st.number_input(_LABELS[name], 1, _MOST[name], key=key, on_change=changed)


def _totals(cost: AttentionCost) -> None:
    state = current()
    n = state.tokens
    with st.container(horizontal=True):
        st.metric("Parameters, all layers", _short(cost.total_parameters()), f"{cost.total_parameters():,}",
                  delta_color="off", delta_arrow="off", border=True)  # fmt: skip
        st.metric(f"MACs, {n:,} tokens", _short(cost.total_macs(n)),
                  f"{cost.quadratic_share(n):.1%} of them grow with n²", delta_color="off", delta_arrow="off",
                  border=True)  # fmt: skip
        st.metric("Score entries, one layer", _short(cost.score_entries(n)),
                  f"{_size(cost.score_entries(n) * state.number * state.batch)} if kept", delta_color="off",
                  delta_arrow="off", border=True)  # fmt: skip
        st.metric(f"KV cache, {cost.kind}", _size(cost.kv_bytes(n, state.number, state.batch)),
                  f"{_size(cost.kv_bytes(1, state.number))} a token", delta_color="off", delta_arrow="off",
                  border=True)  # fmt: skip
    st.caption(
        f"The n² term overtakes the projections at n = {cost.crossover():,.0f} tokens. "
        f"A head is {cost.d_head} wide; {cost.n_heads} heads together {cost.n_heads * cost.d_head}."
    )


def _table(cost: AttentionCost) -> None:
    state = current()
    rows = [
        {"what": row.part, "of": row.name, "formula": row.formula, "value": f"{row.value:,}", "unit": row.unit,
         "as": _size(row.value) if row.unit == "bytes" else _short(row.value)}
        for row in cost.table(state.tokens, state.number, state.batch)
    ]  # fmt: skip
    st.dataframe(rows, hide_index=True, height=390, alt="Everything counted, with its formula")


def _curves(cost: AttentionCost) -> None:
    state = current()
    lengths = [n for n in LENGTHS if n >= 16]
    with st.container(border=True):
        st.subheader("What grows how", anchor=False)
        over_n, over_h, over_kv = st.tabs(["over n", "over the number of heads", "KV cache"])
        with over_n:
            products = [cost.n_layers * (cost.macs(n)["Q Kᵀ"] + cost.macs(n)["A V"]) for n in lengths]
            linear = [cost.total_macs(n) - product for n, product in zip(lengths, products, strict=True)]
            line_chart(
                {
                    "projections, grow with n": Line(lengths, linear),
                    "Q Kᵀ and A V, grow with n²": Line(lengths, products),
                },
                key="cost_over_n", alt="Multiply-accumulates of all layers over the number of tokens",
                x="n, tokens", y="MACs, all layers", log_x=True, log_y=True, ticks=lengths[::2], mark=cost.crossover(),
            )  # fmt: skip
            st.caption(
                f"Both axes are logarithmic. The dotted line: n = {cost.crossover():,.0f}, where both are equal."
            )
        with over_h:
            heads = [h for h in (1, 2, 4, 8, 16, 32, 64, 128) if cost.d_model % h == 0]
            divided = [AttentionCost.of(cost.d_model, h, None, cost.n_layers) for h in heads]
            line_chart(
                {
                    "weights of the projections": Line(heads, [one.total_parameters() for one in divided]),
                    f"MACs, {state.tokens:,} tokens": Line(heads, [one.total_macs(state.tokens) for one in divided]),
                    "score entries, one layer": Line(heads, [one.score_entries(state.tokens) for one in divided]),
                },
                key="cost_over_h", alt="Cost over the number of heads at equal width",
                x="h, heads of equal total width", y="count", log_x=True, log_y=True, ticks=heads,
            )  # fmt: skip
            st.caption(plain(
                f"At equal width ({cost.d_model}) weights and MACs do not depend on the number of heads; only the maps "
                f"do: h · n². A head is {cost.d_model // heads[-1]} wide at {heads[-1]} heads."
            ))  # fmt: skip
        with over_kv:
            kinds = {"MHA": cost.n_heads, "MQA": 1}
            if 1 < cost.n_kv_heads < cost.n_heads:
                kinds = {"MHA": cost.n_heads, "GQA": cost.n_kv_heads, "MQA": 1}
            line_chart(
                {
                    f"{kind}, {kv} key/value heads": Line(
                        lengths,
                        [cost.with_kv_heads(kv).kv_bytes(n, state.number, state.batch) / 2**20 for n in lengths],
                    )
                    for kind, kv in kinds.items()
                },
                key="cost_kv", alt="KV cache over the number of tokens for MHA, GQA and MQA", x="n, tokens", y="MiB",
                log_x=True, log_y=True, ticks=lengths[::2],
            )  # fmt: skip
            shared = [kv for kv in range(1, cost.n_heads + 1) if cost.n_heads % kv == 0]
            line_chart(
                {
                    "KiB a token": Line(
                        shared, [cost.with_kv_heads(kv).kv_bytes(1, state.number) / 1024 for kv in shared]
                    ),
                    "W_K and W_V, thousand weights a layer": Line(
                        shared, [2 * cost.with_kv_heads(kv).parameters()["W_K"] / 1000 for kv in shared]
                    ),
                },
                key="cost_over_kv", alt="What is kept of a token, and the weights of W_K and W_V, over key/value heads",
                x=f"h_kv, key/value heads that {cost.n_heads} query heads share", y="KiB; thousand weights",
                log_x=True, ticks=shared,
            )  # fmt: skip
            st.caption("1 key/value head is MQA, as many as query heads MHA, between them GQA.")


def _one_head(cost: AttentionCost) -> None:
    with st.container(border=True):
        st.subheader("One head or several: both answers", anchor=False)
        st.caption(
            "Textbooks say that several heads cost the same, and that they cost more. Both count correctly, and count "
            "different layers. One layer, multi-head (as many key/value as query heads), no biases."
        )
        try:
            ways = single_head_comparisons(cost.d_model, cost.n_heads, current().tokens)
        except ValueError as error:
            st.info(plain(str(error)), icon=":material/info:")
            return
        base = ways[0]
        rows = [
            {
                "layer": way.name, "weights": f"{way.parameters:,}", "× weights": way.parameters / base.parameters,
                f"MACs, {current().tokens:,} tokens": f"{way.macs:,}", "× MACs": way.macs / base.macs,
                "that is": way.says,
            }
            for way in ways
        ]  # fmt: skip
        st.dataframe(rows, hide_index=True, alt="One head against several, counted in each way")


def _short(value: float) -> str:
    """1,048,576 as "1.05 M"."""
    for factor, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {name}" if value < 999.5 * factor else f"{value / factor:,.0f} {name}"
    return f"{value:,.0f}"


def _size(n_bytes: float) -> str:
    """Bytes in binary units."""
    for factor, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.3g} {name}" if n_bytes < 999.5 * factor else f"{n_bytes / factor:,.0f} {name}"
    return f"{n_bytes:,.0f} B"
