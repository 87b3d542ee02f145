"""The Ablate page's cards around the grid: heads to switch, and the sweep over every head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import streamlit as st
from scipy import stats

from mha_core.interventions import HeadRef
from mha_core.preview import HeadPreview
from mha_core.sweep import METRICS, HeadSweep, sweep_steps
from mha_core.trace import Site
from mha_core.ui import components
from mha_core.ui.exports import export_menu
from mha_core.ui.lab_more import layers_by_heads
from mha_core.ui.session import Working, acted, current, held, update
from mha_core.ui.sidebar import Shared
from mha_core.ui.state import parse_heads
from mha_core.ui.stores import store
from mha_core.ui.sweep_extras import pairs_and_controls, preview_of
from mha_core.ui.text import plain
from mha_core.view import View
from mha_core.views import provenance

SWEEP_KINDS = ("zero", "mean")


def grid_card(shared: Shared, off: tuple[str, ...], site: str) -> tuple[str, ...]:
    """The grid of heads, coloured by the last sweep; a list to type; presets. Returns the heads that are off."""
    from mha_core.ui.ablation import site_choice

    model, trace = shared.model, shared.trace
    shape = trace.sites[site]
    with st.container(border=True, key="grid_card"):
        st.subheader("Heads", anchor=False)
        site_choice(trace, site)
        here = [name for name in off if HeadRef.parse(name).site == site]
        sweep = kept_sweep(shared, site, "zero")
        mine = held()
        chosen = components.head_grid(
            key=f"grid_{model.name}_{site}", n_layers=shape.n_layers, n_heads=shape.n_heads, group=shape.group,
            off=here,
            on_change=acted, site_prefix="" if site == "self" else f"{site}.",
            heat=None if sweep is None else np.abs(sweep.effects),
            heat_label="" if sweep is None else f"exact sweep, |{sweep.metric}|",
        )  # fmt: skip
        if chosen != here:
            off = (*[name for name in off if name not in here], *chosen)
            mine.change(off=off)
        _list_and_presets(off, site, shape, sweep)
    return off


def _list_and_presets(off: tuple[str, ...], site: str, shape: Site, sweep: HeadSweep | None) -> None:
    key, shown = "w_head_list", ", ".join(off)
    if st.session_state.get(key) != shown and not st.session_state.get("_head_list_wrong"):
        st.session_state[key] = shown

    def typed() -> None:
        names = [part for part in st.session_state[key].replace(";", ",").split(",") if part.strip()]
        wrong = [name.strip() for name in names if not parse_heads(name)]
        st.session_state["_head_list_wrong"] = wrong
        if not wrong:
            update(off=parse_heads(",".join(names)))

    st.text_input("As a list", key=key, on_change=typed, placeholder="L1H3, L1H5", max_chars=4000)
    wrong = st.session_state.get("_head_list_wrong")
    if wrong:
        st.warning(plain(f"Not a head: {', '.join(wrong[:4])}. Write heads like L1H3, separated by commas."))
    with st.popover("Presets"):
        count = st.number_input("How many heads", 1, shape.n_layers * shape.n_heads, 2, key="preset_count")
        seed = st.number_input("Seed of the random heads", 0, 999_999, 0, key="preset_seed")
        st.button("Random heads", on_click=_random_heads, args=(site, shape, int(count), int(seed)))
        st.button(
            "Strongest heads of the sweep", disabled=sweep is None, on_click=_strongest_heads, args=(sweep, int(count)),
            help="Sweep every head first, below." if sweep is None else None,
        )  # fmt: skip


def _random_heads(site: str, shape: Site, count: int, seed: int) -> None:
    every = [str(HeadRef(layer, head, site)) for layer in range(shape.n_layers) for head in range(shape.n_heads)]
    places = np.random.default_rng(seed).choice(len(every), size=count, replace=False)
    update(off=tuple(every[place] for place in sorted(places)))


def _strongest_heads(sweep: HeadSweep, count: int) -> None:
    update(off=tuple(str(ref) for ref, _ in sweep.ranking()[:count]))


def sweep_key(shared: Shared, site: str, kind: str) -> tuple[object, ...]:
    """What a sweep is kept by."""
    source = shared.trace.source_tokens.ids if shared.trace.source_tokens else None
    ids = shared.trace.tokens.ids
    return "sweep", shared.model.name, shared.tokens.text, source, ids, site, kind, sweep_metric(shared)


def sweep_metric(shared: Shared) -> str:
    """The metric of the page's sweep: what fits the model, or what the visitor chose."""
    chosen = st.session_state.get("w_sweep_metric")
    options = sweep_metrics(shared)
    return chosen if chosen in options else options[0]


def sweep_metrics(shared: Shared) -> list[str]:
    """The metrics that this model and page can sweep with."""
    if not shared.trace.has_logits or shared.model.kind == "masked-lm":
        return ["cosine_distance"]
    pairs = ["logit_diff"] if len(current().answers) == 2 else []
    # An encoder-decoder's last position predicts the end of its target, which hardly any head changes.
    first = ["loss", "kl"] if shared.model.kind == "seq2seq" else ["kl", "loss"]
    return [*first, "top1_prob", *pairs, "cosine_distance"]


def kept_sweep(shared: Shared, site: str, kind: str) -> HeadSweep | None:
    """A sweep that was made, wholly or in part."""
    return store().peek(sweep_key(shared, site, kind))


def sweep_card(shared: Shared, site: str) -> None:
    """Every head ablated, one at a time: zero beside mean, exactly, filling in while it runs."""
    with st.container(border=True, key="sweep_card"):
        st.subheader("Every head, one at a time", anchor=False)
        options = sweep_metrics(shared)
        left, right = st.columns([2, 5], vertical_alignment="bottom")
        with left:
            st.selectbox("Measure", options, key="w_sweep_metric")
        metric = sweep_metric(shared)
        with right:
            asked = st.button("Sweep all heads exactly", type="primary", icon=":material/play_arrow:")
        st.caption(plain(f"{METRICS[metric]}; ablated minus clean, 0 means nothing changed."))
        places = [place.empty() for place in st.columns(2, gap="medium")]
        if asked:
            _run_sweeps(shared, site, metric, places)
        sweeps = {kind: kept_sweep(shared, site, kind) for kind in SWEEP_KINDS}
        known = {kind: sweep for kind, sweep in sweeps.items() if sweep is not None}
        for kind, place in zip(SWEEP_KINDS, places, strict=True):
            if kind in known:
                with place.container():
                    _sweep_map(shared, known, kind, site, "kept")
        if known:
            _ranked_table(known)
            pairs_and_controls(shared, site, known, metric)


def _run_sweeps(shared: Shared, site: str, metric: str, places: Sequence[st.delta_generator.DeltaGenerator]) -> None:
    """Sweep each kind, drawing what is known so far; what was done stays when it is stopped."""
    from mha_core.ui.ablation import measure_reference

    model = shared.model
    if not model.has_means("corpus"):
        measure_reference(model)
    answers = (current().answers[0], current().answers[1]) if metric == "logit_diff" else None
    target = shared.trace.tokens if shared.trace.source_tokens is not None else None
    for kind, place in zip(SWEEP_KINDS, places, strict=True):
        key = sweep_key(shared, site, kind)
        estimate = preview_of(shared, site, metric, kind)
        if estimate is not None:
            with place.container():
                _preview_map(shared, estimate, site)
        with Working(f"Sweeping, {kind}", (key, "work")) as working:
            steps = sweep_steps(
                model, shared.tokens, metric=metric, kind=kind, site=site, answers=answers, target=target
            )
            for number, step in enumerate(steps):
                store().keep(key, step)
                working.progress(step.done, step.total)
                with place.container():
                    _sweep_map(shared, {kind: step}, kind, site, f"step_{number}")


def _preview_map(shared: Shared, preview: HeadPreview, site: str) -> None:
    """The estimate that stands until the exact numbers are there, under its own label."""
    st.write(plain(f"{preview.kind}: {preview.method}, {preview.seconds:.1f} s. {preview.note}"))
    layers_by_heads(
        shared, preview.estimates, name=f"{preview.kind}, estimate of {preview.metric}", unit=preview.metric,
        key=f"preview_{preview.kind}", site=site, made={"method": preview.method, "metric": preview.metric},
    )  # fmt: skip


def _sweep_map(shared: Shared, sweeps: dict[str, HeadSweep], kind: str, site: str, part: str) -> None:
    """One sweep as layers × heads; a click switches the head off or on."""
    sweep = sweeps[kind]
    effects = sweep.effects.astype(np.float32)
    diverging = bool(np.nanmin(effects) < -1e-9) if np.isfinite(effects).any() else False
    top = max(float(np.nanmax(np.abs(s.effects), initial=0.0)) for s in sweeps.values()) or 1e-6
    n_layers, n_heads = effects.shape
    meta = {
        "id": f"sweep|{kind}|{sweep.metric}|{sweep.done}|{part}",
        "alt": f"Effect of each head under {kind}, {n_layers} layers (rows) by {n_heads} heads (columns)",
        "title": f"{kind}, {sweep.done} of {sweep.total} heads", "query_labels": [f"L{i}" for i in range(n_layers)],
        "key_labels": [f"H{i}" for i in range(n_heads)], "range": [-top if diverging else 0.0, top], "scale": "linear",
        "diverging": diverging, "causal": False, "query_axis": "layer", "key_axis": "head",
        "unit": sweep.metric, "caption": "layers (rows) by heads (columns)",
    }  # fmt: skip
    made = provenance(
        shared.model, shared.trace, site=site, sweep=sweep.method, metric=METRICS[sweep.metric], kind=kind,
        baseline=sweep.baseline,
    )  # fmt: skip
    view = View("matrix", {"map": effects}, meta, made)
    st.write(plain(f"{kind}: exact, {sweep.done} of {sweep.total} heads in {sweep.seconds:.1f} s"))
    components.matrix(
        view, key=f"sweep_{kind}_{part}", on_cell=lambda layer, head: toggle_head(str(HeadRef(layer, head, site)))
    )
    if part == "kept":
        export_menu(view, f"sweep-{kind}-{sweep.metric}", f"sweep_{kind}")


def toggle_head(name: str) -> None:
    """Switch one head off, or on again."""
    off = current().off
    update(off=tuple(n for n in off if n != name) if name in off else (*off, name))


def _ranked_table(sweeps: dict[str, HeadSweep]) -> None:
    first = next(iter(sweeps.values()))
    rows = []
    for rank, (ref, _) in enumerate(first.ranking()[:20], start=1):
        values = {kind: float(sweep.effects[ref.layer, ref.head]) for kind, sweep in sweeps.items()}
        rows.append({"rank": rank, "head": str(ref), **values})
    st.dataframe(rows, hide_index=True, alt="Heads by the size of their effect", height=300)
    if len(sweeps) == 2:
        flat = [np.abs(sweep.effects).ravel() for sweep in sweeps.values()]
        both = np.isfinite(flat[0]) & np.isfinite(flat[1])
        if both.sum() > 2:
            agreement = stats.spearmanr(flat[0][both], flat[1][both]).statistic
            st.caption(f"Rank agreement of zero and mean over {both.sum()} heads: {agreement:.2f} (Spearman).")
