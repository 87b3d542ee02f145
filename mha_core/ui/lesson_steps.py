"""The Lesson page's step by step: what goes in, the steps, and numbers that are changed in place."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from mha_core import lesson_edits
from mha_core.catalogue import MINILM, is_allowed
from mha_core.lesson import MAX_D_HEAD, MAX_D_MODEL, MAX_HEADS, LessonError, Sizes, Worked, sentence_example, toy, work
from mha_core.lesson_panels import panel
from mha_core.lesson_real import worked_head
from mha_core.lesson_steps import Step, notice, shapes, steps_of
from mha_core.ui.lesson_state import ALL_STEPS, INPUTS, sizes_of, sizes_text
from mha_core.ui.matrices import Typed, matrices
from mha_core.ui.session import bind, current, update
from mha_core.ui.sidebar import chosen_site, load, shared
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_INPUT_NAMES = {"toy": "“I learn.”", "sentence": "your sentence", "head": "a real head"}
_MASK_NAMES = {"none": "none", "causal": "causal"}
_ACK, _SAID, _SIZES_SAID = "_lesson_ack", "_lesson_said", "_lesson_sizes_said"
_OF_ALL_HEADS = ("concat", "output", "residual")  # what is said there is about the whole layer
_EDITABLE = {
    "embed": ("X",), "project": ("X", "Q0", "K0", "V0", "Q1", "K1", "V1"), "output": ("O",), "residual": ("X",),
}  # fmt: skip


def steps_section() -> None:
    """Draw the whole section."""
    given = current().given
    controls = st.container(horizontal=True, vertical_alignment="bottom", key="no_print_given")
    with controls:
        st.segmented_control(
            "What goes in", INPUTS, format_func=_INPUT_NAMES.__getitem__, required=True, **bind("given")
        )
        if given != "head":
            _mask_choice()
    worked = {"toy": _toy, "sentence": _sentence, "head": _real_head}[given](controls)
    if worked is None:
        return
    steps = steps_of(worked)
    names = [step.name for step in steps]
    chosen = current().step if current().step in (*names, ALL_STEPS) else names[0]
    _stepper(steps, chosen)
    heads = _shown_heads(worked)
    if chosen == ALL_STEPS:
        for step in steps:
            _step_card(worked, step, heads, names)
        return
    _step_card(worked, steps[names.index(chosen)], heads, names)
    if given == "toy":
        _whole_matrix(chosen)


# ---------------------------------------------------------------- what goes in


def _toy(controls: DeltaGenerator) -> Worked:
    """The worked example with the visitor's numbers."""
    changed, problems = lesson_edits.matrices_of(current().edits)
    said = st.session_state.get(_SAID)
    problems += said[1] if said is not None and said[0] == current().edits else []
    with controls:
        n_changed = len(lesson_edits.edits_of(changed).split(",")) if lesson_edits.edits_of(changed) else 0
        st.button(
            "Back to the original numbers", key="lesson_reset", icon=":material/restart_alt:", on_click=_reset,
            disabled=not current().edits and not problems,
        )  # fmt: skip
        if n_changed:
            st.caption(f"{n_changed} of 72 numbers changed; the address holds them.")
    for problem in dict.fromkeys(problems[:6]):
        st.warning(plain(problem), icon=":material/edit_off:")
    if len(problems) > 6:
        st.warning(f"And {len(problems) - 6} more of this kind.")
    return work(toy(changed), causal=current().mask == "causal")


def _reset() -> None:
    st.session_state.pop(_SAID, None)
    update(edits="")


def _mask_choice() -> None:
    st.segmented_control(
        "Mask", list(_MASK_NAMES), format_func=_MASK_NAMES.__getitem__, required=True,
        help="causal: each word sees itself and what is before it, as when the next word is to be guessed.",
        **bind("mask"),
    )  # fmt: skip


def _take(typed: Typed) -> None:
    """What was typed into cells, or pasted: what can be used is taken, the rest gets a sentence."""
    changed, _ = lesson_edits.matrices_of(current().edits)
    changed, problems = lesson_edits.with_cells(changed, typed.cells)
    if typed.paste is not None and typed.paste[0] in changed:
        changed, more = lesson_edits.with_matrix(changed, *typed.paste)
        problems += more
    st.session_state[_ACK] = typed.seq
    _keep(lesson_edits.edits_of(changed), problems)


def _keep(edits: str, problems: list[str]) -> None:
    st.session_state[_SAID] = (edits, problems)
    update(edits=edits)


def _whole_matrix(step: str) -> None:
    """The same by text: to paste from a spreadsheet or a notebook, and for who would rather type lines."""
    if step not in _EDITABLE:
        return
    with st.expander("Type or paste a whole matrix"), st.form("lesson_matrix", border=False):
        current_matrices, _ = lesson_edits.matrices_of(current().edits)
        name = st.selectbox("Matrix", _EDITABLE[step], format_func=lesson_edits.matrix_name, key=f"lesson_which_{step}")
        text = st.text_area(
            "Rows, one a line", key=f"lesson_text_{step}", max_chars=lesson_edits.MAX_EDITS,
            placeholder=lesson_edits.matrix_text(current_matrices, name),
        )  # fmt: skip
        if st.form_submit_button("Take these numbers", key="lesson_take"):
            changed, problems = lesson_edits.with_matrix(current_matrices, name, text)
            _keep(lesson_edits.edits_of(changed), problems)
            st.rerun()


def _sentence(controls: DeltaGenerator) -> Worked | None:
    """The sidebar's sentence, word by word, through a layer with seeded projections."""
    with controls:
        _size_fields()
    said = st.session_state.get(_SIZES_SAID)
    if said is not None and said[0] == current().sizes:
        st.warning(plain(said[1]), icon=":material/edit_off:")
    st.caption(
        "The sentence is the sidebar’s. Each word gets seeded random numbers and its position; the projections are "
        "seeded random numbers too. Nothing is trained: this shows the arithmetic, not language."
    )
    try:
        example = sentence_example(current().text, sizes_of(current().sizes))
    except LessonError as error:
        st.warning(plain(str(error)), icon=":material/edit_off:")
        if not current().text.strip():
            return None
        try:
            example = sentence_example(current().text, Sizes())
        except LessonError:
            return None
        st.caption("Shown with d_model 8, h 2.")
    if example.left_out:
        words = "word is" if example.left_out == 1 else "words are"
        st.caption(f"The first {len(example.tokens)} words are taken; {example.left_out} more {words} left out.")
    return work(example, causal=current().mask == "causal")


def _size_fields() -> None:
    sizes = sizes_of(current().sizes)
    fields = (
        ("d_model", "d_model", sizes.d_model, MAX_D_MODEL, "Numbers per word."),
        ("h", "n_heads", sizes.n_heads, MAX_HEADS, "Heads."),
        ("d_k", "d_head", sizes.d_head, MAX_D_HEAD, "Numbers per query and key; empty: d_model / h."),
        ("seed", "seed", sizes.seed, 999_999, "Other random numbers."),
    )
    for label, field, value, most, about in fields:
        key = f"lesson_{field}"
        least = 0 if field == "seed" else 1
        if st.session_state.get(key) != value:
            st.session_state[key] = None if value is None else min(max(value, least), most)
        st.number_input(
            label, least, most, None if value is None else "min", key=key, help=about, width=112,
            on_change=_sizes_changed,
            placeholder="d_model / h" if field == "d_head" else None,
        )  # fmt: skip


def _sizes_changed() -> None:
    """Take sizes that fit; others get a sentence, and those that were there are kept."""
    old = sizes_of(current().sizes)
    values = {name: st.session_state.get(f"lesson_{name}") for name in ("d_model", "n_heads", "d_head", "seed")}
    sizes = Sizes(
        values["d_model"] or old.d_model, values["n_heads"] or old.n_heads, values["d_head"], values["seed"] or 0
    )
    try:
        sizes.layer()
    except LessonError as error:
        kept = f"d_model {old.d_model}, h {old.n_heads}" + (f", d_k {old.d_head}" if old.d_head else "")
        st.session_state[_SIZES_SAID] = (current().sizes, f"{error} Kept: {kept}.")
        update()
        return
    st.session_state.pop(_SIZES_SAID, None)
    update(sizes=sizes_text(sizes))


def _real_head(controls: DeltaGenerator) -> Worked | None:
    """One head of the sidebar's model on the sidebar's sentence. Only here a model is loaded."""
    if is_allowed(MINILM.info.name):
        controls.button(
            "Open L3H7 of MiniLM", key="lesson_open", on_click=update,
            kwargs={"model": MINILM.info.name, "layer": 3, "head": 7, "site": "", "given": "head"},
        )  # fmt: skip
    if not store().has_model(current().model):
        load(current().model)
        st.rerun()  # the sidebar was drawn before there was a model to tell about
    run = shared()
    site = chosen_site(run.trace)
    shape = run.trace.sites[site]
    with controls:
        st.selectbox("Layer", range(shape.n_layers), width=118, **bind("layer"))
        st.selectbox("Head", range(shape.n_heads), width=118, **bind("head"))
    worked = worked_head(run.trace, current().layer, current().head, site)
    st.caption(plain(f"{run.model.details.title}, {worked.heads[0]}: Q, K and V as this run multiplied them."))
    for note in worked.notes:
        st.caption(plain(note))
    return worked


def _shown_heads(worked: Worked) -> list[int]:
    """Two heads side by side, or one that is picked from more."""
    n_heads = len(worked.heads)
    if n_heads <= 2:
        return list(range(n_heads))
    head = min(max(current().head, 0), n_heads - 1)
    with st.container(key="no_print_which"):
        st.pills(
            "Head", range(n_heads),
            format_func=worked.heads.__getitem__, required=True, **bind("head", to_widget=head),
            help="Each head has its own numbers. All are shown at the softmax, side by side, and at W_O.",
        )  # fmt: skip
    return [head]


# ---------------------------------------------------------------- the steps


def _stepper(steps: tuple[Step, ...], chosen: str) -> None:
    names = [step.name for step in steps]
    labels = {step.name: f"{number} {step.short}" for number, step in enumerate(steps, 1)} | {ALL_STEPS: "all"}
    with st.container(key="no_print_steps"):
        st.pills(
            "Step", [*names, ALL_STEPS], format_func=labels.__getitem__, required=True, label_visibility="collapsed",
            **bind("step", to_widget=chosen),
        )  # fmt: skip


def _step_card(worked: Worked, step: Step, heads: list[int], names: list[str]) -> None:
    """One step: what it does, its formula and sizes, its numbers, what they show, and the way on."""
    place = names.index(step.name)
    with st.container(border=True, key=f"step_{step.name}"):
        title, way = st.columns([5, 2], vertical_alignment="center")
        title.subheader(f"{place + 1} · {step.title}", anchor=False)
        if current().step != ALL_STEPS:
            with way, st.container(horizontal=True, horizontal_alignment="right", key=f"no_print_way_{step.name}"):
                _go("Back", names, place - 1, ":material/arrow_back:")
                _go("Next", names, place + 1, ":material/arrow_forward:")
        words, formula = st.columns([6, 5], gap="medium", vertical_alignment="center")
        words.markdown(plain(step.about))
        with formula:
            st.latex(step.formula)
            st.caption(plain(shapes(worked, step.name)), text_alignment="center")
        editable = current().given == "toy"
        if editable and step.name in _EDITABLE:
            with st.container(key=f"no_print_hint_{step.name}"):
                st.caption("Numbers in a dashed frame can be changed: type, or use the up and down keys.")
        ack = st.session_state.get(_ACK, 0)
        matrices(panel(worked, step.name, heads, editable), key=f"mx_{step.name}", ack=ack, on_edit=_take)
        for text in _notices(worked, step.name, heads):
            st.markdown(f":material/visibility: {plain(text)}")
        with st.expander("In code", key=f"code_{step.name}"):
            st.code(step.code, language="python")


def _notices(worked: Worked, step: str, heads: list[int]) -> list[str]:
    """What the numbers show, for two heads where they differ."""
    said: dict[str, str] = {}
    for head in heads[:1] if step in _OF_ALL_HEADS else heads[:2]:
        text = notice(worked, step, head)
        said.setdefault(text.replace(worked.heads[head], "H"), text)
    return [text for text in said.values() if text]


def _go(label: str, names: list[str], to: int, icon: str) -> None:
    there = 0 <= to < len(names)
    st.button(
        label, key=f"lesson_{label.lower()}", icon=icon, disabled=not there, on_click=update,
        kwargs={"step": names[to]} if there else {}, type="primary" if label == "Next" and there else "secondary",
        icon_position="right" if label == "Next" else "left",
    )  # fmt: skip
