"""What the Ablate page's sweep, its preview, pairs and controls are of: one way to ask, and one key to keep it by."""

from __future__ import annotations

from typing import Any

import streamlit as st

from mha_core.effects import prediction_position
from mha_core.sweep import HeadSweep
from mha_core.ui.effect_cards import compares_sentences
from mha_core.ui.plan_building import reference_lines
from mha_core.ui.session import current
from mha_core.ui.sidebar import Shared
from mha_core.ui.stores import store

METRIC_KEY = "w_sweep_metric"
_CHOSEN_FOR = "_sweep_metric_model"


def sweep_kinds() -> tuple[str, ...]:
    """In which ways every head is switched off: zero beside mean, and resample where the page has another sentence."""
    state = current()
    resamples = "resample" in state.kinds and bool(state.source.strip())
    return ("zero", "mean", "resample") if resamples else ("zero", "mean")


def sweep_metrics(shared: Shared) -> list[str]:
    """The metrics that this model and page can sweep with, the usual one first."""
    state = current()
    # An encoder-decoder's last position predicts the end of its target, which hardly any head changes.
    metrics = ["loss"] if shared.model.kind == "seq2seq" else []
    if prediction_position(shared.model, shared.trace) is not None:
        metrics += ["kl", "top1_prob"]
        metrics += ["logit_diff"] if len(state.answers) == 2 else []
    if shared.model.kind == "causal-lm":
        metrics += ["loss"]
    metrics += ["cosine_distance"]
    if compares_sentences(shared.model) and state.other.strip():
        metrics += ["similarity"]
    return metrics


def sweep_metric(shared: Shared) -> str:
    """The metric of the page's sweep: what the visitor chose for this model, or the usual one."""
    if st.session_state.get(_CHOSEN_FOR) != shared.model.name:
        st.session_state[_CHOSEN_FOR] = shared.model.name
        st.session_state.pop(METRIC_KEY, None)  # another model's metric may be offered here without being the usual one
    chosen, options = st.session_state.get(METRIC_KEY), sweep_metrics(shared)
    return chosen if chosen in options else options[0]


def sweep_arguments(shared: Shared, metric: str, kind: str) -> dict[str, Any]:
    """Arguments of `sweep_steps` and of what stands beside it."""
    state = current()
    arguments: dict[str, Any] = {"metric": metric, "kind": kind}
    arguments["target"] = shared.trace.tokens if shared.trace.source_tokens is not None else None
    arguments["answers"] = (state.answers[0], state.answers[1]) if metric == "logit_diff" else None
    if metric == "similarity":
        arguments["other"] = state.other
    if kind == "mean":
        arguments["reference"] = reference_lines(state) or "corpus"
    if kind == "resample":
        arguments["source"] = state.text if state.denoise else state.source
    return arguments


def sweep_identity(shared: Shared, site: str, metric: str, kind: str) -> tuple[object, ...]:
    """What results are kept by: everything they depend on."""
    source = shared.trace.source_tokens.ids if shared.trace.source_tokens else None
    arguments = {**sweep_arguments(shared, metric, kind), "target": shared.trace.tokens.ids}
    return shared.model.name, shared.tokens.text, source, site, tuple(sorted(arguments.items(), key=lambda i: i[0]))


def kept_sweep(shared: Shared, site: str, kind: str) -> HeadSweep | None:
    """A sweep that was made, wholly or in part."""
    return store().peek(("sweep", *sweep_identity(shared, site, sweep_metric(shared), kind)))
