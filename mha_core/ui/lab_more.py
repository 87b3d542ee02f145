"""More of the Ablate page: what happens downstream, direct and total effect, the text going on, and keeping plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import streamlit as st

from mha_core.attribution import DirectAttribution, direct_logit_attribution, self_repair
from mha_core.continuation import continuations
from mha_core.downstream import DownstreamChange, downstream_change
from mha_core.interventions import HeadRef, InterventionError, Interventions
from mha_core.script import pytorch_script
from mha_core.sweep import HeadSweep
from mha_core.trace import Trace
from mha_core.ui import components
from mha_core.ui.exports import export_menu
from mha_core.ui.look import look_of_state, maps_of
from mha_core.ui.session import SLOW_TOKENS, Working, current, update
from mha_core.ui.sidebar import Shared
from mha_core.ui.state import MAX_PLAN, MAX_PLANS, SavedPlan
from mha_core.ui.stores import store
from mha_core.ui.text import plain
from mha_core.view import View, light_difference
from mha_core.views import provenance


def layers_by_heads(
    shared: Shared, values: np.ndarray, *, name: str, unit: str, key: str, site: str, made: Mapping[str, object],
    on_head: object = None,
) -> View:  # fmt: skip
    """A number per head as layers (rows) by heads (columns); a click on one calls `on_head(layer, head)`."""
    array = np.asarray(values, dtype=np.float32)
    top = float(np.nanmax(np.abs(array), initial=0.0)) or 1e-6
    diverging = bool((array < -1e-9).any())
    n_layers, n_heads = array.shape
    meta = {
        "id": f"{key}|{name}|{hash(array.tobytes()) & 0xFFFFFFFF:x}", "title": name, "unit": unit,
        "alt": f"{name}: {n_layers} layers (rows) by {n_heads} heads (columns), {unit}",
        "query_labels": [f"L{i}" for i in range(n_layers)], "key_labels": [f"H{i}" for i in range(n_heads)],
        "range": [-top if diverging else 0.0, top], "scale": "linear", "diverging": diverging, "causal": False,
        "query_axis": "layer", "key_axis": "head", "caption": "layers (rows) by heads (columns)",
    }  # fmt: skip
    view = View("matrix", {"map": array}, meta, provenance(shared.model, shared.trace, site=site, **made))
    components.matrix(view, key=key, on_cell=on_head)  # type: ignore[arg-type]
    return view


def downstream_card(shared: Shared, runs: Mapping[str, Trace], site: str) -> None:
    """Which later heads attend differently because of the ablation; any of them before, after and in difference."""
    names = [name for name in runs if name != "clean"]
    if not names:
        return
    with st.expander("Downstream: later heads that attend differently", key="downstream", on_change="rerun") as opened:
        if not opened.open:
            return
        name = st.segmented_control("Run", names, default=names[0], required=True, key="downstream_run")
        name = name if name in runs else names[0]
        change = _downstream(shared, runs[name], site)
        st.caption(
            "Mean over queries of the Jensen–Shannon divergence between a head's rows before and after, in nats "
            "(0: the same, ln 2 = 0.693: nothing shared). Click a head to see it."
        )
        left, right = st.columns([2, 3], gap="medium")
        with left:
            view = layers_by_heads(
                shared, change.divergence, name=f"changed attention, {name}", unit="JS divergence, nats",
                key="downstream_map", site=site, made={"run": str(runs[name].interventions)},
                on_head=lambda layer, head: update(layer=layer, head=head),
            )  # fmt: skip
            export_menu(view, "downstream", "downstream")
            for ref, value in change.ranking(6):
                st.button(f"{ref}  {value:.3f}", key=f"downstream_{ref}", type="tertiary",
                          on_click=update, kwargs={"layer": ref.layer, "head": ref.head})  # fmt: skip
        with right:
            _before_after(shared, runs[name], change, site)


def _downstream(shared: Shared, changed: Trace, site: str) -> DownstreamChange:
    clean = shared.trace
    key = ("downstream", shared.model.name, clean.tokens.text, clean.tokens.ids, changed.interventions, site)

    def make() -> DownstreamChange:
        with Working("Comparing every head's rows", key, show=len(clean.tokens) > SLOW_TOKENS) as working:
            return downstream_change(clean, changed, site, working.progress)

    result: DownstreamChange = store().small(key, make)
    return result


def _before_after(shared: Shared, changed: Trace, change: DownstreamChange, site: str) -> None:
    """The chosen head, or the one that changed most where that one did not change."""
    layer, head = current().layer, current().head
    most = change.ranking(1)
    if most and change.divergence[layer, head] == 0:
        layer, head = most[0][0].layer, most[0][0].head
    st.write(plain(f"{HeadRef(layer, head, site)}, {change.divergence[layer, head]:.3f} nats"))
    clean_maps, changed_maps = (
        maps_of(shared.model, trace, site, layer, replace(look_of_state(), quantity="weights"))
        for trace in (shared.trace, changed)
    )
    view = st.segmented_control("Map", ["before", "after", "difference"], default="difference", key="downstream_view")
    if view == "before":
        components.matrix(clean_maps.matrix_view(head), key="downstream_before")
    elif view == "after":
        components.matrix(changed_maps.matrix_view(head), key="downstream_after")
    else:
        difference = clean_maps.difference_view(changed_maps, head)
        components.matrix(light_difference(difference), key="downstream_difference")


def direct_card(shared: Shared, site: str, sweep: HeadSweep | None) -> None:
    """Direct logit attribution of every head, and where a sweep is there, what of the total effect is repaired."""
    if not shared.trace.has_logits:
        return
    with st.expander("Direct and total effect of every head", key="direct", on_change="rerun") as opened:
        if not opened.open:
            return
        answers = current().answers
        key = ("direct", shared.model.name, shared.tokens.text, shared.trace.tokens.ids, answers, site)
        pair = (answers[0], answers[1]) if len(answers) == 2 else None
        try:
            direct: DirectAttribution = store().small(
                key, lambda: direct_logit_attribution(shared.model, shared.trace, pair, site=site)
            )
        except (InterventionError, ValueError) as error:
            st.info(plain(str(error)), icon=":material/info:")
            return
        _draw_direct(shared, direct, site, sweep)


def _draw_direct(shared: Shared, direct: DirectAttribution, site: str, sweep: HeadSweep | None) -> None:
    words = " − ".join(f"“{word}”" for word in direct.answers)
    st.caption(plain(
        f"Direct: what each head's z·W_O adds to the logit of {words} through the final norm, frozen at this run "
        f"(exact for the frozen norm; all parts sum to {direct.total:.2f}, remainder {direct.remainder:.0e}). Total: "
        "what cutting the head to zero changes in all. Self-repair = total − direct: what later layers make up for."
    ))  # fmt: skip
    columns = st.columns(2, gap="medium")
    made = {"answers": list(direct.answers), "quantity": "direct logit attribution"}
    with columns[0]:
        layers_by_heads(shared, direct.heads, name="direct", unit="logits", key="direct_map", site=site, made=made)
    with columns[1]:
        if sweep is not None and sweep.metric == "logit_diff" and np.isfinite(sweep.effects).all():
            repair = self_repair(direct, sweep.effects)
            layers_by_heads(
                shared, repair, name="self-repair: total − direct", unit="logits", key="repair_map", site=site,
                made={**made, "quantity": "total minus direct effect"},
            )  # fmt: skip
        else:
            st.info("Follow two answers above and sweep all heads with logit_diff: the total effect then stands here.")


def continuation_card(shared: Shared, runs: Mapping[str, Trace]) -> None:
    """The text going on, before and after, word by word."""
    if shared.model.kind not in ("causal-lm", "seq2seq"):
        return
    with st.expander("How the text goes on, before and after", key="continuation", on_change="rerun") as opened:
        if not opened.open:
            return
        count = st.slider("Tokens", 5, 60, 20, key="continue_count")
        if not st.button("Write on", icon=":material/edit:"):
            return
        for name, trace in runs.items():
            st.caption(plain(name))
            place, written = st.empty(), ""
            try:
                for piece in continuations(shared.model, shared.tokens, trace.interventions, count):
                    written += piece.text
                    place.text(written)  # also where a visitor's next click ends the writing
            except InterventionError as error:
                place.warning(plain(str(error)))


def plans_card(shared: Shared, plans: Mapping[str, Interventions]) -> None:
    """Keep plans, compare them, take them away as JSON or as a plain PyTorch script, and bring them back."""
    state = current()
    with st.expander(f"Plans ({len(state.plans)} kept)", key="plans", on_change="rerun") as opened:
        if not opened.open:
            return
        for number, saved in enumerate(state.plans):
            _kept_plan(number, saved)
        if plans:
            _keep_plan(shared, plans)
        upload = st.file_uploader("Load a plan (JSON)", type="json", max_upload_size=1, key="plan_upload")
        if upload is not None and st.session_state.get("_plan_loaded") != upload.file_id:
            st.session_state["_plan_loaded"] = upload.file_id
            _load_plan(upload.name, upload.getvalue().decode("utf-8", "replace"))


def _kept_plan(number: int, saved: SavedPlan) -> None:
    left, middle, right = st.columns([3, 6, 1], vertical_alignment="center")
    left.toggle(plain(saved.name or "kept plan"), saved.shown, key=f"plan_shown_{number}_{saved.name}",
                on_change=_change_plan, args=(number, "toggle"), help="Run it beside the others")  # fmt: skip
    try:
        middle.caption(plain(str(Interventions.from_json(saved.plan))))
    except InterventionError as error:
        middle.caption(plain(str(error)))
    right.button("", icon=":material/delete:", key=f"plan_delete_{number}", on_click=_change_plan,
                 args=(number, "delete"), help="Forget this plan")  # fmt: skip


def _change_plan(number: int, what: str) -> None:
    plans = list(current().plans)
    if what == "delete":
        plans.pop(number)
    else:
        plans[number] = replace(plans[number], shown=not plans[number].shown)
    update(plans=tuple(plans))


def _keep_plan(shared: Shared, plans: Mapping[str, Interventions]) -> None:
    chosen = st.selectbox("Of this page", list(plans), key="plan_chosen")
    plan = plans.get(chosen) or next(iter(plans.values()))
    st.text(str(plan))
    name, keep = st.columns([3, 1], vertical_alignment="bottom")
    title = name.text_input("Name", max_chars=60, key="plan_name", placeholder=f"plan {len(current().plans) + 1}")
    keep.button("Keep", disabled=len(current().plans) >= MAX_PLANS, on_click=_add_plan, args=(title, plan.to_json()))
    json_side, script_side = st.columns(2)
    json_side.download_button("JSON", plan.to_json(), "headscope-plan.json", "application/json", on_click="ignore")
    try:
        script = pytorch_script(shared.model, shared.trace, plan)
    except (InterventionError, ValueError) as error:
        script_side.caption(plain(f"No script: {error}"))
    else:
        script_side.download_button(
            "PyTorch script", script, "headscope-plan.py", "text/x-python", on_click="ignore",
            help="Reproduces the effect with torch and transformers alone.",
        )  # fmt: skip


def _add_plan(name: str, plan: str) -> None:
    plans = current().plans
    saved = SavedPlan(name.strip() or f"plan {len(plans) + 1}", plan[:MAX_PLAN])
    update(plans=(*plans, saved)[:MAX_PLANS])


def _load_plan(name: str, text: str) -> None:
    try:
        plan = Interventions.from_json(text)
    except InterventionError as error:
        st.error(plain(str(error)))
        return
    _add_plan(name.removesuffix(".json"), plan.to_json())
    st.rerun()
