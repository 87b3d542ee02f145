"""The Lesson page's experiments on masks, and on one wide head against several narrow ones."""

from __future__ import annotations

import numpy as np
import streamlit as st
import torch

from mha_core.lesson import LessonError, Sizes, Worked, sentence_example, work
from mha_core.lesson_more import (
    N_PADDING,
    SHE,
    SHE_KEYS,
    SHE_ROWS,
    Leak,
    best_shares,
    causal_leak,
    counted_differently,
    mixture,
    n_parameters,
    padding_leak,
    single_row,
    wide_and_narrow,
)
from mha_core.lesson_panels import Group, Line, Panel, matrix
from mha_core.ui.lesson_state import MASK_SENTENCE, MASKS, NARROW_HEADS, WIDE_D_MODEL
from mha_core.ui.matrices import matrices
from mha_core.ui.session import bind, current, update
from mha_core.ui.state import MAX_NAME
from mha_core.ui.text import plain

_SIZES = Sizes(WIDE_D_MODEL, 2)
_ROUNDING = 1e-12  # below this a change is rounding, in double precision
_EXAMPLE_ROW = "45,5,45,5"


# ---------------------------------------------------------------- masks


def masks_section() -> None:
    """Which positions may be seen, step by step, and what leaks when the mask is forgotten."""
    st.markdown(
        "A mask says **who may look at whom**. Without one, every word sees every word. A model that guesses the next "
        "word must not see it: its mask is **causal**. Sentences of a batch are filled up to one length: a **padding** "
        "mask keeps the filler out."
    )
    with st.container(horizontal=True, vertical_alignment="bottom", key="no_print_masks"):
        st.segmented_control("Mask", MASKS, required=True, **bind("closing"))
        st.text_input("Words", live=True, max_chars=MAX_NAME, width=280, **bind("sample"))
    try:
        example = sentence_example(current().sample, _SIZES)
    except LessonError as error:
        st.warning(plain(f"{error} “{MASK_SENTENCE}” is shown."), icon=":material/edit_off:")
        example = sentence_example(MASK_SENTENCE, _SIZES)
    if example.left_out:
        st.caption(f"The first {len(example.tokens)} words are taken.")
    n = len(example.tokens)
    at = n - 1 if current().at < 0 else min(current().at, n - 1)
    if n > 1:
        st.slider(
            "Step through the positions", 0, n - 1, help="The position that looks. 0 is the first word.",
            **bind("at", to_widget=at),
        )  # fmt: skip
    text = " ".join(example.tokens)
    kind = current().closing
    leak = padding_leak(text, at, _SIZES) if kind == "padding" else causal_leak(text, current().later, at, _SIZES)
    worked = _open(leak) if kind == "none" else leak.worked
    with st.container(border=True, key="step_mask_map"):
        _seen(worked, at)
        matrices(_mask_panel(worked, at), key="mx_masks")
    with st.container(border=True, key="step_leak"):
        _leak_card(leak, at, kind)


def _open(leak: Leak) -> Worked:
    """The same sentence with no mask."""
    return work(sentence_example(" ".join(leak.before), _SIZES))


def _seen(worked: Worked, at: int) -> None:
    labels = list(zip(worked.keys, worked.closed[0, at].tolist(), strict=True))
    open_, closed = ([label for label, shut in labels if shut is wanted] for wanted in (False, True))
    st.subheader(plain(f"“{worked.queries[at]}” (position {at}) looks"), anchor=False)
    st.markdown(
        f":material/visibility: open: {plain(' · '.join(open_))}"
        + (f"  \n:material/visibility_off: closed: {plain(' · '.join(closed))}" if closed else "")
    )


def _mask_panel(worked: Worked, at: int) -> Panel:
    labels = (worked.queries, worked.keys)
    closed = worked.closed[0]
    mask = torch.zeros(closed.shape).masked_fill(closed, float("-inf"))
    maps = [Group("The mask, for all heads", (Line((matrix("M", mask, *labels, scale="plain", marked_row=at),)),))]
    for name, weights in zip(worked.heads, worked.weights, strict=True):
        drawn = matrix("A", weights, *labels, scale="share", marked_row=at)
        maps.append(Group(f"{name}, after the softmax", (Line((drawn,)),)))
    return Panel(tuple(maps))


def _leak_card(leak: Leak, at: int, kind: str) -> None:
    st.subheader("What if the mask is forgotten?", anchor=False)
    if kind == "padding":
        st.markdown(
            f"The same sentence with {N_PADDING} positions of filler behind it, as in a batch with a longer one. "
            "How much does that change what comes out for this word?"
        )
    else:
        st.text_input(
            "Replace everything after this word by", live=True, max_chars=MAX_NAME, width=280, **bind("later")
        )
        st.text(f"{' '.join(leak.before)}   →   {' '.join(leak.after)}")
    name = "padding" if kind == "padding" else "causal"
    left, right = st.columns(2)
    left.metric(f"With the {name} mask", change_text(leak.with_mask), help="Largest change of the word's output.")
    right.metric("Without it", change_text(leak.without), help="Largest change of the word's output.")
    word = leak.before[at]
    st.markdown(plain(leak_sentence(leak, word, kind)))


def change_text(change: float) -> str:
    """A change of an output as a number card shows it."""
    return "0" if change < _ROUNDING else f"{change:.2g}" if change < 0.01 else f"{change:.2f}"


def leak_sentence(leak: Leak, word: str, kind: str) -> str:
    """What the two numbers say."""
    if leak.without == 0:
        return (
            f"Nothing comes after “{word}” that was changed, so there is nothing to leak. Choose an earlier position."
        )
    what = "the filler" if kind == "padding" else "what comes later"
    kept = (
        f"With the mask the output of “{word}” does not move at all"
        if leak.with_mask == 0
        else f"With the mask the output of “{word}” moves by rounding only ({leak.with_mask:.0e})"
        if leak.with_mask < _ROUNDING
        else f"With the mask the output of “{word}” moves by {leak.with_mask:.2g}"
    )
    return f"{kept}. Without it, {what} changes it by {leak.without:.2f}: “{word}” has seen what it must not see."


# ---------------------------------------------------------------- why several heads


def heads_section() -> None:
    """One wide head against several narrow ones, then two mixtures that no single row can give."""
    with st.container(border=True, key="step_wide"):
        _wide_card()
    with st.container(border=True, key="step_she"):
        _she_card()


def _wide_card() -> None:
    st.subheader("The same numbers, cut differently", anchor=False)
    st.markdown(
        "Below, the **same** matrices W_Q, W_K, W_V and W_O are used twice: once as one wide head, once cut into "
        "narrow heads. Not one number more or less. The wide head has one row of shares for each word; each narrow "
        "head has its own."
    )
    example = sentence_example(SHE, Sizes(WIDE_D_MODEL, current().narrow))
    wide, narrow = wide_and_narrow(example)
    queries = range(len(example.tokens))
    at = min(current().query, len(queries) - 1) if current().query >= 0 else example.tokens.index("she")
    with st.container(horizontal=True, vertical_alignment="bottom", key="no_print_wide"):
        st.segmented_control("Narrow heads", NARROW_HEADS, required=True, **bind("narrow"))
        st.selectbox(
            "Where it looks from", queries, format_func=lambda i: f"{example.tokens[i]} ({i})", width=200,
            **bind("query", to_widget=at),
        )  # fmt: skip
    one = matrix("one wide head", wide.weights[:, at], ("H0",), example.tokens, scale="share")
    many = matrix(
        f"{len(narrow.heads)} narrow heads", narrow.weights[:, at], narrow.heads, example.tokens, scale="share"
    )
    assert wide.layer is not None, "made by work"
    assert narrow.layer is not None, "made by work"
    groups = (
        Group(f"1 head, d_k = {wide.d_head}", (Line((one,)),), f"{n_parameters(wide.layer):,} parameters"),
        Group(
            f"{len(narrow.heads)} heads, d_k = {narrow.d_head}", (Line((many,)),),
            f"{n_parameters(narrow.layer):,} parameters",
        ),
    )  # fmt: skip
    matrices(Panel(groups), key="mx_wide")
    error = float((wide.products[0] - narrow.products.sum(dim=0)).abs().max())
    tops = dict.fromkeys(narrow.keys[int(row.argmax())] for row in narrow.weights[:, at])
    st.markdown(
        plain(
            f"From “{example.tokens[at]}” the narrow heads look most at {len(tops)} different words "
            f"({', '.join(tops)}), the wide head at one: {wide.keys[int(wide.weights[0, at].argmax())]}. The wide "
            f"head's score is the sum of the narrow heads' scores (largest difference {error:.0e}): it can only act on "
            "their compromise."
        )
    )
    bare, full = counted_differently(narrow.layer)
    st.caption(
        f"Counted differently: one head without W_O would have {bare:,} parameters, and {len(narrow.heads)} heads that "
        f"each keep the full width {full:,}. Where a text says that several heads cost more, it means one of these."
    )


def _she_card() -> None:
    st.subheader("Two things to find at once", anchor=False)
    st.markdown(
        plain(f"“{SHE}” ")
        + "Who is “she”, and what was approved? Two heads can answer both. "
        + "The rows are an illustration, not measured. **Move the sliders: can one row do the work of both?**"
    )
    shares = [int(part) for part in current().row.split(",")]
    sliders = st.columns(4)
    for place, (column, key) in enumerate(zip(sliders, SHE_KEYS, strict=True)):
        name = f"lesson_row_{place}"
        if st.session_state.get(name) != shares[place]:
            st.session_state[name] = shares[place]
        column.slider(f"share of “{key}”", 0, 100, key=name, on_change=_row_changed)
    with st.container(horizontal=True, key="no_print_row"):
        st.button("One wide head, for example", key="row_example", on_click=update, kwargs={"row": _EXAMPLE_ROW})
        best = ",".join(str(round(100 * share)) for share in best_shares())
        st.button("Half of each", key="row_best", on_click=update, kwargs={"row": best})
        for head, row in enumerate(SHE_ROWS):
            text = ",".join(str(round(100 * share)) for share in row)
            st.button(f"All for head {head}", key=f"row_{head}", on_click=update, kwargs={"row": text})
    if not any(shares):
        st.warning(
            "All four shares are 0: a row that looks at nothing. Move one slider up.", icon=":material/edit_off:"
        )
        return
    found = single_row(shares)
    two = matrix("two heads", torch.stack([mixture(row) for row in SHE_ROWS]), ("H0", "H1"), SHE_KEYS, scale="share")
    yours = matrix("your single row", found.row[None], ("one",), SHE_KEYS, scale="share")
    matrices(
        Panel((Group("Two heads: both mixtures", (Line((two,)),)), Group("One head", (Line((yours,)),)))), key="mx_she"
    )
    metrics = st.columns(3)
    metrics[0].metric("Distance to H0's row", f"{found.to_both[0]:.2f}", help=_DISTANCE)
    metrics[1].metric("Distance to H1's row", f"{found.to_both[1]:.2f}", help=_DISTANCE)
    metrics[2].metric("No single row is nearer to both than", f"{found.least:.2f}", help=_LEAST)
    worst = max(found.to_both)
    st.markdown(
        f"Your row misses one of the two by {worst:.2f}. "
        + (
            "That is as good as any single row can be, and still far from either."
            if worst < found.least + 0.005
            else f"The best single row misses both by {found.least:.2f}."
        )
        + " Two heads miss nothing: their two rows stand side by side."
    )


_DISTANCE = "The share of attention that would have to be moved to get there: 0 is equal, 1 has nothing in common."
_LEAST = "Half the distance between the two rows: going from one to the other by way of yours cannot be shorter."


def _row_changed() -> None:
    update(row=",".join(str(int(np.clip(st.session_state[f"lesson_row_{place}"], 0, 100))) for place in range(4)))
