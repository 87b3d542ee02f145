"""The Ablate page's sweep: every head of the model switched off, one at a time, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import streamlit as st
from scipy import stats

from mha_core.interventions import HeadRef, InterventionError
from mha_core.preview import HeadPreview
from mha_core.sweep import METRICS, HeadSweep, sweep_steps
from mha_core.tokens import InputError
from mha_core.ui import components
from mha_core.ui.exports import export_menu
from mha_core.ui.lab_more import layers_by_heads
from mha_core.ui.look import maps_of
from mha_core.ui.plan_building import reference_lines
from mha_core.ui.session import Working, current, update
from mha_core.ui.sidebar import Shared
from mha_core.ui.stores import store
from mha_core.ui.sweep_choice import (
    METRIC_KEY,
    kept_sweep,
    sweep_arguments,
    sweep_identity,
    sweep_kinds,
    sweep_metric,
    sweep_metrics,
)
from mha_core.ui.sweep_extras import pairs_and_controls, preview_of
from mha_core.ui.text import plain
from mha_core.view import View
from mha_core.views import provenance

Place = st.delta_generator.DeltaGenerator
_SWITCHES, _OPENS = "switches it off or on", "shows its attention"


def sweep_card(shared: Shared, site: str) -> None:
    """Every head ablated, one at a time: zero beside mean, exactly, filling in while it runs."""
    with st.container(border=True, key="sweep_card"):
        st.subheader("Every head, one at a time", anchor=False)
        left, right = st.columns([2, 5], vertical_alignment="bottom")
        with left:
            st.selectbox("Measure", sweep_metrics(shared), key=METRIC_KEY)
        metric, kinds = sweep_metric(shared), sweep_kinds()
        with right:
            asked = st.button("Sweep all heads exactly", key="sweep", type="primary", icon=":material/play_arrow:")
        st.caption(plain(f"{METRICS[metric]}; ablated minus clean, 0 means nothing changed. Heads are switched off at "
                         "all tokens."))  # fmt: skip
        with st.container(horizontal=True):
            st.segmented_control("A click on a head", (_SWITCHES, _OPENS), default=_SWITCHES, required=True,
                                 key="w_sweep_click")  # fmt: skip
            shared_scale = st.toggle("Same colour scale", value=True, key="w_sweep_scale",
                                     help="Off: each map has its own range, stated above it.")  # fmt: skip
        places = [place.empty() for place in st.columns(len(kinds), gap="medium")]
        if asked:
            _run_sweeps(shared, site, metric, dict(zip(kinds, places, strict=True)))
        sweeps = {kind: kept_sweep(shared, site, kind) for kind in kinds}
        known = {kind: sweep for kind, sweep in sweeps.items() if sweep is not None}
        for kind, place in zip(kinds, places, strict=True):
            if kind in known:
                with place.container():
                    _sweep_map(shared, known[kind], site, list(known.values()) if shared_scale else [known[kind]])
        if known:
            _opened_head(shared, site)
            _ranked_table(known)
            pairs_and_controls(shared, site, known, metric)


def _run_sweeps(shared: Shared, site: str, metric: str, places: Mapping[str, Place]) -> None:
    """Sweep each kind, drawing what is known so far; what was done stays when it is stopped."""
    from mha_core.ui.ablation import measure_reference

    reference = reference_lines(current()) or "corpus"
    if not shared.model.has_means(reference):
        measure_reference(shared.model, reference)
    for kind, place in places.items():
        try:
            _run_sweep(shared, site, metric, kind, place)
        except (InterventionError, InputError) as error:
            st.warning(plain(f"{kind}: {error}"))


def _run_sweep(shared: Shared, site: str, metric: str, kind: str, place: Place) -> None:
    key = ("sweep", *sweep_identity(shared, site, metric, kind))
    estimate = preview_of(shared, site, metric, kind)
    if estimate is not None:
        with place.container():
            _preview_map(shared, estimate, site)
    with Working(f"Sweeping, {kind}", (key, "work"), asked=True) as working:
        steps = sweep_steps(shared.model, shared.tokens, site=site, **sweep_arguments(shared, metric, kind))
        for number, step in enumerate(steps):
            store().keep(key, step)
            working.progress(step.done, step.total)
            with place.container():
                _sweep_map(shared, step, site, [step], f"step_{number}")


def _preview_map(shared: Shared, preview: HeadPreview, site: str) -> None:
    """The estimate that stands until the exact numbers are there, under its own label."""
    st.write(plain(f"{preview.kind}: {preview.method}, {preview.seconds:.1f} s. {preview.note}"))
    layers_by_heads(
        shared, preview.estimates, name=f"{preview.kind}, estimate of {preview.metric}", unit=preview.metric,
        key=f"preview_{preview.kind}", site=site, made={"method": preview.method, "metric": preview.metric},
    )  # fmt: skip


def _sweep_map(shared: Shared, sweep: HeadSweep, site: str, scale_of: Sequence[HeadSweep], part: str = "kept") -> None:
    """One sweep as layers × heads; a click does what the page's choice says. scale_of: the sweeps on its scale."""
    view = _sweep_view(shared, sweep, site, scale_of, part)
    st.write(plain(f"{sweep.kind}: exact, {sweep.done} of {sweep.total} heads in {sweep.seconds:.1f} s"))
    components.matrix(view, key=f"sweep_{sweep.kind}_{part}", on_cell=_on_head(site))
    if part == "kept":
        export_menu(view, f"sweep-{sweep.kind}-{sweep.metric}", f"sweep_{sweep.kind}")


def _sweep_view(shared: Shared, sweep: HeadSweep, site: str, scale_of: Sequence[HeadSweep], part: str) -> View:
    effects = sweep.effects.astype(np.float32)
    tops = [float(np.nanmax(np.abs(other.effects), initial=0.0)) for other in scale_of]
    top = max(tops) or 1e-6
    diverging = any(bool(np.nanmin(other.effects, initial=0.0) < -1e-9) for other in scale_of)
    n_layers, n_heads = effects.shape
    meta = {
        "id": f"sweep|{sweep.kind}|{sweep.metric}|{sweep.done}|{top:.6g}|{part}",
        "alt": f"Effect of each head under {sweep.kind}, {n_layers} layers (rows) by {n_heads} heads (columns)",
        "title": f"{sweep.kind}, {sweep.done} of {sweep.total} heads",
        "query_labels": [f"L{i}" for i in range(n_layers)], "key_labels": [f"H{i}" for i in range(n_heads)],
        "range": [-top if diverging else 0.0, top], "scale": "linear", "diverging": diverging, "causal": False,
        "query_axis": "layer", "key_axis": "head", "unit": sweep.metric, "caption": "layers (rows) by heads (columns)",
    }  # fmt: skip
    made = provenance(
        shared.model, shared.trace, site=site, sweep=sweep.method, metric=METRICS[sweep.metric], kind=sweep.kind,
        baseline=sweep.baseline,
    )  # fmt: skip
    return View("matrix", {"map": effects}, meta, made)


def _on_head(site: str) -> Callable[[int, int], None]:
    def clicked(layer: int, head: int) -> None:
        if st.session_state.get("w_sweep_click") == _OPENS:
            update(layer=layer, head=head)
        else:
            toggle_head(str(HeadRef(layer, head, site)))

    return clicked


def toggle_head(name: str) -> None:
    """Switch one head off, or on again."""
    off = current().off
    update(off=tuple(n for n in off if n != name) if name in off else (*off, name))


def _opened_head(shared: Shared, site: str) -> None:
    """The attention of the head that was clicked, in the clean run."""
    if st.session_state.get("w_sweep_click") != _OPENS:
        return
    state = current()
    maps = maps_of(shared.model, shared.trace, site, state.layer)
    st.write(plain(f"{HeadRef(state.layer, state.head, site)}, where it looks in the clean run"))
    components.matrix(maps.matrix_view(state.head), key="sweep_opened")


def _ranked_table(sweeps: Mapping[str, HeadSweep]) -> None:
    first = next(iter(sweeps.values()))
    rows = []
    for rank, (ref, _) in enumerate(first.ranking(), start=1):
        values = {kind: float(sweep.effects[ref.layer, ref.head]) for kind, sweep in sweeps.items()}
        rows.append({"rank": rank, "head": str(ref), **values})
    st.dataframe(rows, hide_index=True, alt="Heads by the size of their effect", height=300)
    for (one, a), (other, b) in pairwise(sweeps.items()):
        flat = [np.abs(sweep.effects).ravel() for sweep in (a, b)]
        both = np.isfinite(flat[0]) & np.isfinite(flat[1])
        if both.sum() > 2:
            agreement = stats.spearmanr(flat[0][both], flat[1][both]).statistic
            st.caption(f"Rank agreement of {one} and {other} over {both.sum()} heads: {agreement:.2f} (Spearman).")
