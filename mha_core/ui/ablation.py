"""The Ablate page's controls and runs: how heads are replaced, the ablated runs, and the proof line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from mha_core.corpus import corpus_sentences
from mha_core.effects import plan_for
from mha_core.model import Model
from mha_core.trace import Trace
from mha_core.ui.effect_cards import EffectCards, compares_sentences
from mha_core.ui.session import SLOW_TOKENS, Working, bind, current, run
from mha_core.ui.sidebar import Shared
from mha_core.ui.state import KINDS, MAX_TEXT
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_EXPLAINED = {
    "zero": "**zero**: the head's output becomes 0. The rest of the network has never seen that, so it can exaggerate.",
    "mean": "**mean**: it becomes the head's average output over {n} reference sentences, so that only what it does "
    "for this sentence is gone.",
}


def site_choice(trace: Trace, site: str) -> None:
    """Which attention the grid shows, where there are several."""
    if len(trace.sites) > 1:
        st.segmented_control(
            "Attention", list(trace.sites), required=True, label_visibility="collapsed", **bind("site", to_widget=site)
        )


def kind_choice() -> tuple[str, ...]:
    """In which ways heads are replaced; both unless the visitor leaves one out."""
    with st.container(border=True):
        choice, explained = st.columns([2, 7], vertical_alignment="center")
        with choice:
            bound = bind("kinds", convert=tuple, to_widget=list(current().kinds))
            st.pills("Replace by", KINDS, selection_mode="multi", **bound)
        kinds = current().kinds
        with explained:
            n = len(corpus_sentences())
            lines = [_EXPLAINED[kind].format(n=n) for kind in kinds]
            st.caption("  \n".join(lines) or "Choose at least one way to replace a head's output.")
    return kinds


def draw_effects(shared: Shared, off: Sequence[str], kinds: Sequence[str]) -> dict[str, Trace]:
    """Run and draw what switching `off` off changes. Returns the clean run and one run per kind.

    The first mean on a model needs a few seconds of measuring; what needs no waiting is drawn before that.
    """
    if compares_sentences(shared.model):
        st.text_input("Compare with the sentence", live=True, max_chars=MAX_TEXT, **bind("other"))
    place = st.empty()
    waits = bool(off) and "mean" in kinds and not shared.model.has_means("corpus")
    if waits:
        first = ablated_runs(shared, off, [kind for kind in kinds if kind != "mean"])
        with place.container():
            EffectCards(shared.model, first, off, "first").draw()
        measure_reference(shared.model)
    runs = ablated_runs(shared, off, kinds)
    with place.container():
        EffectCards(shared.model, runs, off, "all").draw()
    return runs


def ablated_runs(shared: Shared, off: Sequence[str], kinds: Sequence[str]) -> dict[str, Trace]:
    """The clean run and one run per kind, of the same tokens.

    An encoder-decoder's ablated run reads the clean run's target, so that the two can be compared.
    """
    clean = shared.trace
    target = clean.tokens if clean.source_tokens is not None else None
    runs = {"clean": clean}
    for kind in kinds if off else ():
        label = f"Running with {len(off)} heads replaced ({kind})"
        runs[kind] = run(shared.model, shared.tokens, plan_for(off, kind), target=target, label=label)
    return runs


def measure_reference(model: Model) -> None:
    """The heads' mean outputs over the reference sentences, once per model, in view."""
    label = f"Measuring each head's mean output over {len(corpus_sentences())} reference sentences (once per model)"
    with Working(label, ("means", model.name)) as working:
        model.mean_outputs("corpus", progress=working.progress)


def proof_line(shared: Shared, runs: Mapping[str, Trace]) -> None:
    """That the numbers can be trusted: our attention against the library's, contributions, and the plan's count."""
    model, clean = shared.model, shared.trace
    key = ("proof", model.name, shared.tokens.text, shared.tokens.text_pair, clean.tokens.ids)
    parts = []
    if len(shared.tokens) <= SLOW_TOKENS:
        difference = store().small(key, lambda: model.library_difference(clean))
        parts.append(f"unablated run = the library's own attention to {difference:.0e}")
    for name, trace in runs.items():
        if name != "clean":
            heads = trace.interventions.heads
            layers = {(head.site, head.layer) for head in heads}
            parts.append(f"{name}: {len(heads)} of {len(heads)} heads, {sum(trace.applied)} of {len(layers)} layers")
    error = store().small((*key, "sum"), lambda: _contribution_error(clean))
    parts.append(f"heads' contributions sum to each layer's output to {error:.0e}")
    st.caption(
        plain(" · ".join(parts)),
        help="Largest absolute differences. The first compares final hidden states with a run of the same model "
        "through the library's kernel; the last compares the sum over heads of z·W_O (plus bias) with what each "
        "attention layer wrote. In between: what was replaced, as counted during the run.",
    )


def _contribution_error(trace: Trace) -> float:
    """Over all layers of a short text; over the first and last of a long one, where each takes its time."""
    slots = [(site, layer) for site, shape in trace.sites.items() for layer in range(shape.n_layers)]
    if len(trace.tokens) > SLOW_TOKENS:
        slots = [slots[0], slots[-1]]
    return max(trace.contribution_error(layer, site) for site, layer in slots)
