"""Beside the sweep: a preview of all heads, pairs of the strongest, and what random changes do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import streamlit as st

from mha_core.interventions import HeadRef, InterventionError
from mha_core.pairs import (
    PairEffects,
    RandomDirections,
    RandomHeads,
    pair_effects,
    random_direction_control,
    random_heads_control,
)
from mha_core.preview import HeadPreview, head_ablation_preview
from mha_core.sweep import METRICS, HeadSweep
from mha_core.ui import components
from mha_core.ui.exports import export_menu
from mha_core.ui.session import Working, current, update
from mha_core.ui.sidebar import Shared
from mha_core.ui.stores import store
from mha_core.ui.sweep_choice import sweep_arguments, sweep_identity
from mha_core.ui.text import plain
from mha_core.view import View
from mha_core.views import provenance

TOP_PAIRS = 8
_CONTROL_SETS = 20


def preview_of(shared: Shared, site: str, metric: str, kind: str) -> HeadPreview | None:
    """First-order estimates of all heads, a fraction of a second; None where the metric has no useful gradient."""
    # KL is least where nothing has changed, so that its gradient is zero: the words' logit difference stands in.
    if metric == "cosine_distance":
        return None
    asked = None if metric == "kl" else metric
    arguments = sweep_arguments(shared, metric, kind) | {"metric": asked}
    answers = current().answers
    if asked is None and len(answers) == 2:
        arguments["answers"] = (answers[0], answers[1])
    try:
        return head_ablation_preview(shared.model, shared.tokens, site=site, **arguments)
    except InterventionError:
        return None


def pairs_and_controls(shared: Shared, site: str, sweeps: Mapping[str, HeadSweep], metric: str) -> None:
    """On request: all pairs of the strongest heads, and random changes of the same size."""
    first = next(iter(sweeps.values()))
    top = [ref for ref, _ in first.ranking()[:TOP_PAIRS]]
    off = [HeadRef.parse(name) for name in current().off]
    with st.container(horizontal=True):
        wants_pairs = st.button(f"All pairs of the top {len(top)}", key="pairs", disabled=len(top) < 2)
        wants_control = st.button(
            f"{_CONTROL_SETS} random sets of {max(len(off), 1)} heads",
            key="control",
            help="Is what is switched off more than chance?",
        )
        wants_directions = st.button(
            "Random directions", key="directions", help="The top heads, pushed as far as their ablation does."
        )
    arguments = sweep_arguments(shared, metric, "zero")
    identity = sweep_identity(shared, site, metric, "zero")
    pairs_key = ("pairs", *identity, tuple(map(str, top)))
    control_key = ("control", *identity, max(len(off), 1))
    direction_key = ("directions", *identity, tuple(map(str, top)))
    try:
        if wants_pairs:
            with Working(
                f"Ablating {len(top) * (len(top) - 1) // 2} pairs", (pairs_key, "work"), asked=True
            ) as working:
                store().keep(pairs_key, pair_effects(
                    shared.model, shared.tokens, top, progress=working.progress, **arguments))  # fmt: skip
        if wants_control:
            with Working("Ablating random heads", (control_key, "work"), asked=True) as working:
                store().keep(control_key, random_heads_control(
                    shared.model, shared.tokens, max(len(off), 1), n=_CONTROL_SETS, site=site, seed=0,
                    progress=working.progress, **arguments))  # fmt: skip
        if wants_directions:
            with Working("Pushing in random directions", (direction_key, "work"), asked=True) as working:
                store().keep(direction_key, random_direction_control(
                    shared.model, shared.tokens, top, seed=0, progress=working.progress, **arguments))  # fmt: skip
    except InterventionError as error:
        st.warning(plain(str(error)))
    _draw_pairs(shared, store().peek(pairs_key))
    _draw_control(store().peek(control_key), len(off))
    _draw_directions(store().peek(direction_key), first)


def _draw_pairs(shared: Shared, pairs: PairEffects | None) -> None:
    if pairs is None:
        return
    names = [str(ref) for ref in pairs.heads]
    array = np.asarray(pairs.interaction, dtype=np.float32)
    top = float(np.nanmax(np.abs(array), initial=0.0)) or 1e-6
    meta = {
        "id": f"pairs|{pairs.metric}|{'+'.join(names)}", "title": "pairs: joint effect − sum of single effects",
        "alt": f"Interaction of every pair of {len(names)} heads", "query_labels": names, "key_labels": names,
        "range": [-top, top], "scale": "linear", "diverging": True, "causal": False, "unit": pairs.metric,
        "query_axis": "head", "key_axis": "head", "caption": "pairs of heads",
    }  # fmt: skip
    made = provenance(shared.model, shared.trace, metric=METRICS.get(pairs.metric, pairs.metric), kind=pairs.kind)
    view = View("matrix", {"map": array}, meta, made)
    st.caption(
        "Joint effect minus the sum of both single effects, exact. Of the effects' own sign: the two do more together "
        "than alone, as where one stands in for the other (a backup). Of the other sign: they do the same work. Click "
        "a pair to switch both off."
    )
    components.matrix(view, key="pairs_map", on_cell=lambda a, b: _choose_pair(names[a], names[b]))
    export_menu(view, "pairs", "pairs")


def _choose_pair(first: str, second: str) -> None:
    update(off=tuple(dict.fromkeys((first, second))))


def _draw_control(control: RandomHeads | None, n_off: int) -> None:
    if control is None:
        return
    largest = np.abs(control.effects).max()
    st.caption(plain(
        f"{len(control.effects)} random sets of {len(control.heads[0])} heads, cut to zero (seed {control.seed}): mean "
        f"effect {control.mean:.3g}, deviation {control.spread:.2g}, largest {largest:.3g} ({control.metric}). "
        f"{'Compare it with what the heads that are off do.' if n_off else ''}"
    ))  # fmt: skip


def _draw_directions(directions: RandomDirections | None, sweep: HeadSweep) -> None:
    if directions is None:
        return
    st.caption(
        "Each head's output pushed as far as cutting it to zero pushes it, in random directions: where that does as "
        "much, the size of the change matters, not what the head writes."
    )
    st.dataframe(
        [
            {
                "head": str(ref),
                "ablated": float(sweep.effects[ref.layer, ref.head]),
                "random directions, mean size": float(size),
            }
            for ref, size in zip(directions.heads, directions.mean_size, strict=True)
        ],
        hide_index=True,
        alt="Ablation beside random directions of the same size",
    )
