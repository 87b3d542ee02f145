"""The Ablate page's parts: how heads are replaced, the ablated runs, and what they changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from mha_core.effects import (
    PredictionEffect,
    loss_change,
    movement,
    plan_for,
    prediction_effect,
    prediction_position,
    reading,
)
from mha_core.metrics import cosine_similarity, sentence_embedding
from mha_core.model import Model
from mha_core.tokens import InputError, Tokens
from mha_core.trace import Trace
from mha_core.ui import effects
from mha_core.ui.session import SLOW_TOKENS, Working, bind, current, run
from mha_core.ui.sidebar import Shared
from mha_core.ui.state import KINDS, MAX_TEXT
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_EXPLAINED = {
    "zero": "zero: the head's output becomes 0, which the rest of the network has never seen and which can exaggerate",
    "mean": "mean: it becomes the head's average output over 64 reference sentences, so only what it does for this "
    "sentence is gone",
}


def site_choice(trace: Trace, site: str) -> None:
    """Which attention the grid shows, where there are several."""
    if len(trace.sites) > 1:
        st.segmented_control(
            "Attention", list(trace.sites), required=True, **bind("site", to_widget=site), label_visibility="collapsed"
        )


def kind_choice() -> tuple[str, ...]:
    """In which ways heads are replaced; both unless the visitor leaves one out."""
    with st.container(border=True):
        st.pills(
            "Replace by", KINDS, selection_mode="multi", **bind("kinds", convert=tuple, to_widget=list(current().kinds))
        )
        kinds = current().kinds
        for kind in kinds:
            st.caption(_EXPLAINED[kind])
        if not kinds:
            st.caption("Choose at least one way to replace a head's output.")
    return kinds


def ablated_runs(shared: Shared, off: Sequence[str], kinds: Sequence[str]) -> dict[str, Trace]:
    """The clean run and one run per kind, of the same tokens."""
    model, clean = shared.model, shared.trace
    runs = {"clean": clean}
    if not off:
        return runs
    for kind in kinds:
        if kind == "mean":
            measure_reference(model)
        label = f"Running with {len(off)} heads replaced ({kind})"
        runs[kind] = run(model, shared.tokens, plan_for(off, kind), target=_target(clean), label=label)
    return runs


def measure_reference(model: Model) -> None:
    """The heads' mean outputs over the reference sentences, once per model, in view."""
    if not model.has_means("corpus"):
        with Working("Measuring each head's mean output over 64 reference sentences (once per model)",
                     ("means", model.name)) as working:  # fmt: skip
            model.mean_outputs("corpus", progress=working.progress)


def _target(trace: Trace) -> Tokens | None:
    """An encoder-decoder's ablated run reads the clean run's target, so that the two can be compared."""
    return trace.tokens if trace.source_tokens is not None else None


def draw_effect(shared: Shared, runs: Mapping[str, Trace], off: Sequence[str]) -> None:
    """What the ablation changed, for what this kind of model is for."""
    position = prediction_position(shared.model, shared.trace)
    if position is not None:
        _draw_prediction(shared.model, runs, off, position)
    elif shared.model.kind in ("encoder", "masked-lm") and not shared.model.name.startswith("own-layer"):
        _draw_similarity(shared.model, runs, off)
    else:
        _draw_movement(runs, off, "How the layer's output moved")


def _draw_prediction(model: Model, runs: Mapping[str, Trace], off: Sequence[str], position: int) -> None:
    effect = prediction_effect(model, runs, position)
    _cards(effect)
    table, says = st.columns([3, 2], gap="medium")
    with table, st.container(border=True):
        what = "Masked word" if model.kind == "masked-lm" else "Next word"
        st.subheader(what, anchor=False)
        rows = [
            effects.WordRow(word.word, word.probabilities, _change_note(word.probabilities)) for word in effect.words
        ]
        effects.next_words(key="words", columns=effect.runs, rows=rows, alt=f"{what}: probability per run",
                           view_id=_view_id(runs))  # fmt: skip
    with says, st.container(border=True):
        st.subheader("What this says", anchor=False)
        for sentence in reading(effect, len(off)):
            st.write(plain(sentence))
    if model.kind != "masked-lm":
        _draw_losses(runs)


def _change_note(probabilities: Sequence[float]) -> str:
    return "  ".join(f"{p - probabilities[0]:+.3f}" for p in probabilities[1:])


def _cards(effect: PredictionEffect) -> None:
    """Before and after, one card a run: the clean run's top word, and KL."""
    changed = effect.runs[1:]
    columns = st.columns(max(2, 2 * len(changed)))
    if not changed:
        columns[0].metric(plain(f"P(“{effect.top.word}”)"), f"{effect.top.probabilities[0]:.3f}", border=True)
        columns[1].metric("entropy, nats", f"{effect.entropy[0]:.2f}", border=True)
    for number, run_name in enumerate(changed, start=1):
        before, after = effect.top.probabilities[0], effect.top.probabilities[number]
        columns[2 * number - 2].metric(
            plain(f"P(“{effect.top.word}”), {run_name}"), f"{before:.3f} → {after:.3f}",
            delta=f"{after - before:+.3f}", border=True,
        )  # fmt: skip
        columns[2 * number - 1].metric(
            plain(f"KL(clean‖{run_name}), nats"), _short(effect.kl[number]), border=True,
            help="How far the whole distribution over next words moved; 0 means nothing changed.",
        )  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _draw_losses(runs: Mapping[str, Trace]) -> None:
    clean = runs["clean"]
    changed = {name: trace for name, trace in runs.items() if name != "clean"}
    if not changed:
        return
    with st.container(border=True):
        st.subheader("Loss per token", anchor=False)
        st.caption("Change of each token's loss against the clean run, in nats: above 0 (orange) is worse.")
        key = (_view_id(runs), "losses")
        values = {name: _losses(key, name, clean, trace) for name, trace in changed.items()}
        limit = max((abs(v) for row in values.values() for v in row if v is not None), default=1.0)
        for name, row in values.items():
            if len(values) > 1:
                st.caption(name)
            effects.token_strip(
                key=f"loss_{name}", labels=clean.tokens.labels, values=row, unit="nats", limit=max(limit, 1e-3),
                hovers=clean.tokens.hovers, view_id=_view_id(runs),
                alt=f"Change of loss per token under {name}, in nats",
            )  # fmt: skip


def _losses(key: tuple[str, str], name: str, clean: Trace, trace: Trace) -> list[float | None]:
    result: list[float | None] = store().small((*key, name), lambda: loss_change(clean, trace))
    return result


def _view_id(runs: Mapping[str, Trace]) -> str:
    last = list(runs.values())[-1]
    ids = (last.source_tokens or last.tokens).ids, last.tokens.ids
    return f"{'+'.join(runs)}|{hash((ids, str(last.interventions))) & 0xFFFFFFFF:x}|{id(last._projection):x}"


def _draw_similarity(model: Model, runs: Mapping[str, Trace], off: Sequence[str]) -> None:
    with st.container(border=True):
        st.subheader("Similarity of two sentences", anchor=False)
        st.text_input("Compare with", live=True, max_chars=MAX_TEXT, **bind("other"))
        st.caption("Each sentence is read on its own; its vector is the mean of its token vectors, and similarity is "
                   "the cosine of the two, from −1 to 1.")  # fmt: skip
        try:
            other = model.tokenize(current().other)
        except InputError:
            st.info("Type a sentence to compare with.")
        else:
            first = model.tokenize(current().text)
            similarity = {}
            for name, trace in runs.items():
                pair = [sentence_embedding(run(model, t, trace.interventions).hidden) for t in (first, other)]
                similarity[name] = cosine_similarity(*pair)
            columns = st.columns(max(2, len(similarity)))
            for column, (name, value) in zip(columns, similarity.items(), strict=False):
                change = None if name == "clean" else f"{value - similarity['clean']:+.3f}"
                column.metric(f"similarity, {name}", f"{value:.3f}", delta=change, border=True)
    _draw_movement(runs, off, "How far each token moved")


def _draw_movement(runs: Mapping[str, Trace], off: Sequence[str], title: str) -> None:
    clean = runs["clean"]
    with st.container(border=True):
        st.subheader(title, anchor=False)
        changed = {name: movement(clean, trace) for name, trace in runs.items() if name != "clean"}
        if not changed:
            st.caption("All heads are on: nothing is changed. Switch a head off in the grid.")
            return
        st.caption("Length of the change of each token's final vector, divided by the vector's own length.")
        limit = max(max(row) for row in changed.values())
        for name, row in changed.items():
            if len(changed) > 1:
                st.caption(name)
            effects.token_strip(
                key=f"move_{name}", labels=clean.tokens.labels, values=row, unit="‖Δ‖ ÷ ‖clean‖", fmt="plain",
                limit=max(limit, 1e-6), hovers=clean.tokens.hovers, alt=f"Relative movement per token under {name}",
                view_id=_view_id(runs),
            )  # fmt: skip


def proof_line(shared: Shared, runs: Mapping[str, Trace]) -> None:
    """That the numbers can be trusted: our attention against the library's, contributions, and the plan's count."""
    model, clean = shared.model, shared.trace
    key = ("proof", model.name, shared.tokens.text, shared.tokens.text_pair, clean.tokens.ids)
    parts = []
    if len(shared.tokens) <= SLOW_TOKENS:
        difference = store().small(key, lambda: model.library_difference(clean))
        parts.append(f"this run, unablated, differs from the library's own attention by at most {difference:.1e}")
    error = store().small((*key, "sum"), lambda: _contribution_error(clean))
    parts.append(f"heads' contributions sum to each layer's output (error at most {error:.1e})")
    for name, trace in runs.items():
        if name != "clean":
            heads = len(trace.interventions.heads)
            parts.append(f"{name}: {heads} of {heads} heads replaced, in {sum(trace.applied)} attention call(s)")
    st.caption(plain(" · ".join(parts)), help="Largest absolute differences, in units of the model's hidden states.")


def _contribution_error(trace: Trace) -> float:
    """Over all layers of a short text; over the first and last of a long one, where each takes its time."""
    long = len(trace.tokens) > SLOW_TOKENS
    layers = [(s, n) for s, shape in trace.sites.items() for n in range(shape.n_layers)]
    return max(
        trace.contribution_error(n, s) for s, n in (layers[:: len(layers) - 1] if long and len(layers) > 1 else layers)
    )
