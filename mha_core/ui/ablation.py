"""The Ablate page's controls and runs: what is replaced, how and where, the ablated runs, and the proof line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from mha_core.interventions import InterventionError, Interventions
from mha_core.model import Model
from mha_core.tokens import InputError, Tokens
from mha_core.trace import Trace
from mha_core.ui import components
from mha_core.ui.effect_cards import EffectCards, compares_sentences
from mha_core.ui.look import maps_of
from mha_core.ui.overview import clean_run
from mha_core.ui.plan_building import reference_lines, working_plans
from mha_core.ui.session import SLOW_TOKENS, Working, bind, current, run, update
from mha_core.ui.sidebar import Shared
from mha_core.ui.state import KINDS, MAX_CELLS, MAX_TEXT, SCOPES
from mha_core.ui.stores import store
from mha_core.ui.text import counted, plain
from mha_core.views import whole_words

_EXPLAINED = {
    "zero": "**zero**: the head's output becomes 0. The rest of the network has never seen that, so it can exaggerate.",
    "mean": "**mean**: it becomes the head's average output over {n} reference sentences, so that only what it does "
    "for this sentence is gone.",
    "sentence": "**sentence mean**: its average over this sentence's own positions. Later words then reach earlier "
    "ones, so that the loss per token is not a language model's loss.",
    "resample": "**resample**: its output for another sentence, position by position (activation patching).",
    "scale": "**scale**: its output times a factor.",
    "uniform": "**uniform**: it looks at all tokens it may see evenly; its values stay.",
}
_NAMES = {"sentence": "sentence mean", "scale": "× s"}
_SCOPES = {"all": "all heads", "layer": "this layer's heads", "heads": "the heads switched off"}


def base_run(shared: Shared) -> Shared:
    """The run that is ablated: of the sentence; or, to denoise, of the other one, which is then patched from it."""
    state = current()
    if not (state.denoise and "resample" in state.kinds and state.source.strip()):
        return shared
    try:
        tokens = shared.model.tokenize(state.source)
    except InputError:
        return shared
    return Shared(shared.model, tokens, clean_run(shared.model, tokens, None))


def kind_controls(shared: Shared, site: str) -> None:
    """In which ways heads of a site are replaced, with what each way needs, and at which of its queries."""
    n_packaged = len(shared.model.corpus)
    with st.container(border=True):
        ways, places = st.columns([5, 4], gap="medium")
        with ways:
            bound = bind("kinds", convert=tuple, to_widget=list(current().kinds))
            st.pills(
                "Replace by", KINDS, selection_mode="multi", wrap=True, format_func=lambda k: _NAMES.get(k, k), **bound
            )
        with places:
            _where_choice(shared.trace.site_tokens(site)[0])
        kinds = current().kinds
        n = len(reference_lines(current())) or n_packaged
        lines = [_EXPLAINED[kind].format(n=n) for kind in kinds]
        st.caption("  \n".join(lines) or "Choose at least one way to replace a head's output.")
        _kind_details(kinds, n_packaged)
        _answer_choice()


def _answer_choice() -> None:
    """Two words to follow, such as " Mary" and " John"."""
    answers = (*current().answers, "", "")[:2]
    with st.expander("Follow two answers", expanded=any(answers)):
        for number, column in enumerate(st.columns(2)):
            key = f"w_answer_{number}"
            if st.session_state.get(key) != answers[number] and not st.session_state.get("_answers_partial"):
                st.session_state[key] = answers[number]
            with column:
                st.text_input(("First", "Second")[number], key=key, on_change=_answers_changed, max_chars=60,
                              placeholder=("␣Mary", "␣John")[number])  # fmt: skip
        st.caption("Words with their leading space, one token each: the difference of their logits is shown.")


def _answers_changed() -> None:
    words = tuple(st.session_state[f"w_answer_{number}"] for number in (0, 1))
    given = tuple(word for word in words if word.strip())
    # One word alone is kept in its field until the other is there.
    st.session_state["_answers_partial"] = len(given) == 1
    update(answers=given if len(given) == 2 else ())


def _where_choice(tokens: Tokens) -> None:
    state = current()
    choice = state.where if state.where in ("", "last") else "chosen"
    names = {"": "all tokens", "last": "the last", "chosen": "chosen …"}

    def changed(value: str) -> str:
        return value if value != "chosen" else str(len(tokens) - 1)

    st.segmented_control(
        "Where", list(names), format_func=names.__getitem__, required=True,
        **bind("where", convert=changed, to_widget=choice),
    )  # fmt: skip
    if choice == "chosen":
        _chosen_tokens(tokens)


def _chosen_tokens(tokens: Tokens) -> None:
    """Click the tokens where heads are replaced."""
    state = current()
    on = [int(part) for part in state.where.split(",") if int(part) < len(tokens)]
    key = "w_where_tokens"
    if st.session_state.get(key) != on:
        st.session_state[key] = on

    def changed() -> None:
        chosen = sorted(st.session_state[key])
        update(where=",".join(map(str, chosen[:64])) or "last")

    positions: Sequence[int] = range(len(tokens))
    common: Any = {"key": key, "on_change": changed}
    if len(tokens) <= 40:  # buttons to click while they can be seen together; a list to search beyond that
        st.pills("Tokens", positions, format_func=lambda position: plain(whole_words(tokens, position)),
                 selection_mode="multi", **common)  # fmt: skip
    else:  # whose entries are text, not Markdown
        st.multiselect("Tokens", positions, format_func=lambda position: whole_words(tokens, position), **common)


def _kind_details(kinds: Sequence[str], n_packaged: int) -> None:
    """What a way of replacing needs to know. n_packaged: the model's own reference sentences."""
    if "mean" in kinds:
        with st.expander("Reference sentences of the mean"):
            st.text_area(
                "Your own, one a line", max_chars=MAX_TEXT, height=110, **bind("lines"),
                placeholder=f"empty: the {n_packaged} sentences packaged with Headscope",
            )  # fmt: skip
    if "resample" in kinds:
        st.text_input("Other sentence, as long in tokens", live=True, max_chars=MAX_TEXT, **bind("source"))
        st.toggle(
            "Denoise: run the other sentence, and put in these heads' output for the sidebar's", **bind("denoise"),
            help="Off (noising): does taking these heads away from the sentence break it? On (denoising): do they "
            "suffice to restore it in the other sentence?",
        )  # fmt: skip
    if "scale" in kinds:
        st.slider("Factor s", -2.0, 3.0, step=0.1, **bind("factor", convert=float))


def knockout_controls(model: Model, trace: Trace, site: str) -> None:
    """Cells of a map that are closed: "this query may not look at that key"; the rest of the row renormalises."""
    state = current()
    with st.expander(f"Attention knockout ({len(state.cells)})", key="knockout", on_change="rerun") as opened:
        if not opened.open:
            return
        st.caption(
            "Click a cell of the chosen head's map: that query may then not look at that key. The score becomes −∞ "
            "before the softmax and the other weights of the row renormalise (Geva et al. 2023)."
        )
        maps = maps_of(model, trace, site, state.layer)
        components.matrix(maps.matrix_view(state.head), key="knockout_map", on_cell=_toggle_cell)
        st.segmented_control("For", SCOPES, format_func=_SCOPES.__getitem__, required=True, **bind("scope"))
        queries, keys = trace.site_tokens(site)
        for cell in state.cells:
            query, key = (int(part) for part in cell.split("<"))
            if query < len(queries) and key < len(keys):
                said = f"{whole_words(queries, query)} may not look at {whole_words(keys, key)}"
                st.button(plain(said), key=f"cell_{cell}", icon=":material/close:", type="tertiary",
                          on_click=_toggle_cell, args=(query, key), help="Open it again")  # fmt: skip


def _toggle_cell(query: int, key: int) -> None:
    cell, cells = f"{query}<{key}", current().cells
    update(cells=tuple(c for c in cells if c != cell) if cell in cells else (*cells, cell)[:MAX_CELLS])


def draw_effects(shared: Shared, off: Sequence[str], site: str) -> dict[str, Trace]:
    """Run and draw what the plans change. Returns the clean run and one run per plan.

    The first mean on a model needs a few seconds of measuring; what needs no waiting is drawn before that.
    """
    if compares_sentences(shared.model):
        st.text_input("Compare with the sentence", live=True, max_chars=MAX_TEXT, **bind("other"))
    plans, problems = working_plans(current(), off, site)
    for problem in problems:
        st.warning(plain(problem))
    place = st.empty()
    reference = reference_lines(current()) or "corpus"
    if "mean" in plans and not shared.model.has_means(reference):
        first = ablated_runs(shared, {name: plan for name, plan in plans.items() if name != "mean"}, quiet=True)
        with place.container():
            EffectCards(shared.model, first, off, "first").draw()
        measure_reference(shared.model, reference)
    runs = ablated_runs(shared, plans)
    with place.container():
        EffectCards(shared.model, runs, off, "all").draw()
    return runs


def plans_on_page(off: Sequence[str], site: str) -> dict[str, Interventions]:
    """The plans that can be made of the page's choices, by name."""
    return working_plans(current(), off, site)[0]


def ablated_runs(shared: Shared, plans: Mapping[str, Interventions], quiet: bool = False) -> dict[str, Trace]:
    """The clean run and one run per plan, of the same tokens; a plan that cannot be run is said and left out.

    An encoder-decoder's ablated run reads the clean run's target, so that the two can be compared.
    """
    clean = shared.trace
    target = clean.tokens if clean.source_tokens is not None else None
    runs = {"clean": clean}
    for name, plan in plans.items():
        label = f"Running with {len(plan.heads)} heads replaced ({plain(name)})"
        try:
            runs[_NAMES.get(name, name)] = run(shared.model, shared.tokens, plan, target=target, label=label)
        except (InterventionError, InputError) as error:
            if not quiet:
                st.warning(plain(f"{name}: {error}"))
    return runs


def measure_reference(model: Model, reference: str | tuple[str, ...] = "corpus") -> None:
    """The heads' mean outputs over the reference sentences, once per model, in view."""
    n = len(model.corpus) if reference == "corpus" else len(reference)
    label = f"Measuring each head's mean output over {n} reference sentences (once per model)"
    with Working(label, ("means", model.name, reference)) as working:
        model.mean_outputs(reference, progress=working.progress)


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
            parts.append(
                f"{name}: applied in {counted(sum(trace.applied), 'attention call')}, "
                f"{counted(len(trace.interventions.heads), 'head')}"
            )
    error = store().small((*key, "sum"), lambda: _contribution_error(clean))
    parts.append(f"heads' contributions sum to each layer's output to {error:.0e}")
    st.caption(
        plain(" · ".join(parts)),
        help="Largest absolute differences. The first compares final hidden states with a run of the same model "
        "through the library's kernel; the last compares the sum over heads of z·W_O (plus bias) with what each "
        "attention layer wrote. In between: how often each plan was applied, as counted during the run.",
    )


def _contribution_error(trace: Trace) -> float:
    """Over all layers of a short text; over the first and last of a long one, where each takes its time."""
    slots = [(site, layer) for site, shape in trace.sites.items() for layer in range(shape.n_layers)]
    if len(trace.tokens) > SLOW_TOKENS:
        slots = [slots[0], slots[-1]]
    return max(trace.contribution_error(layer, site) for site, layer in slots)


def site_choice(trace: Trace, site: str) -> None:
    """Which attention the grid shows, where there are several."""
    if len(trace.sites) > 1:
        st.segmented_control(
            "Attention", list(trace.sites), required=True, label_visibility="collapsed", **bind("site", to_widget=site)
        )
