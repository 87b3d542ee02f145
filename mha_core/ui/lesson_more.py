"""The Lesson page's experiments on averages and on heads that can go, and its questions."""

from __future__ import annotations

import streamlit as st
import torch

from mha_core.lesson import TOY_HEADS, Worked, toy, words_of, work
from mha_core.lesson_edits import Matrices, edits_of, matrices_of
from mha_core.lesson_more import average_trap, opposite_heads, removals
from mha_core.lesson_panels import Group, Line, Panel, matrix, panel
from mha_core.lesson_questions import QUESTIONS
from mha_core.ui.lesson_state import MASK_SENTENCE
from mha_core.ui.matrices import matrices
from mha_core.ui.session import bind, current, update
from mha_core.ui.stores import store
from mha_core.ui.text import plain

ROUNDING = 1e-9  # an error below this is rounding, in double precision
_TRAP_CODE = """layer = torch.nn.MultiheadAttention(512, 8, batch_first=True)
output, weights = layer(x, x, x)                                # the default: averaged over heads
_, weights = layer(x, x, x, average_attn_weights=False)         # every head's own map"""


# ---------------------------------------------------------------- not an average


def average_section() -> None:
    """torch's default averages its heads away; what an average of two decided heads looks like."""
    with st.container(border=True, key="step_trap"):
        _trap_card()
    with st.container(border=True, key="step_opposite"):
        _opposite_card()


def _trap_card() -> None:
    st.subheader("The trap: a map that no head has", anchor=False)
    st.markdown("torch’s own layer gives the **average** of its heads’ maps unless it is told not to. Run just now:")
    trap = store().small("lesson-average-trap", average_trap)
    st.code(_TRAP_CODE, language="python")
    rows = (
        ("x", "(2, 128, 512)", "batch, position, d_model"),
        ("output", str(trap.output), "batch, position, d_model"),
        ("weights, by default", str(trap.default_weights), "batch, query, key: the head axis is gone"),
        ("weights, average_attn_weights=False", str(trap.head_weights), "batch, head, query, key"),
    )
    st.dataframe(
        {"what": [row[0] for row in rows], "shape": [row[1] for row in rows], "axes": [row[2] for row in rows]},
        hide_index=True, alt="Shapes of torch's output and weights",
    )  # fmt: skip
    st.markdown(
        f"Our `MultiHeadAttention.from_torch(layer)` on the same x: the weights differ by {_error(trap.weight_error)}, "
        f"the output by {_error(trap.output_error)}; the mean of our maps differs from torch’s default by "
        f"{_error(trap.average_error)}. A single head’s weight is up to {trap.hidden:.3f} away from the average "
        "it disappears in."
    )


def _error(error: float) -> str:
    return "exactly 0" if error == 0 else f"{error:.1e}"


def _opposite_card() -> None:
    st.subheader("Two opposite heads, and their average", anchor=False)
    st.markdown("Head 0 looks at the word before, head 1 at the word after. Make them as decided as you like:")
    st.slider("Score of the word that is looked at", 0.0, 8.0, step=0.5, **bind("sharp", to_widget=_sharp()))
    words = tuple(words_of(MASK_SENTENCE))
    both = opposite_heads(len(words), _sharp())
    maps = (("H0: the word before", both.weights[0]), ("H1: the word after", both.weights[1]))
    groups = [Group(title, (Line((matrix("A", a, words, words, scale="share"),)),)) for title, a in maps]
    average = Group("The average", (Line((matrix("mean", both.average, words, words, scale="share"),)),), quiet=True)
    matrices(Panel((*groups, average)), key="mx_opposite")
    cards = st.columns(4)
    for card, name, value in zip(cards, ("H0", "H1", "the average"), both.entropies, strict=False):
        card.metric(
            f"Entropy of {name}", f"{value:.2f}", help="In nats: 0 looks at one word, ln 5 = 1.61 at all alike."
        )
    cards[3].metric(
        "Between H0 and H1", f"{both.divergence:.2f}", help="Jensen–Shannon divergence, at most ln 2 = 0.69."
    )
    if both.entropies[2] > max(both.entropies[:2]) + 0.05:
        said = "Each head is more decided than their average says: read the heads, not the mean."
    else:
        said = (
            "With scores this small both heads look everywhere alike, and the average hides nothing. Move the slider."
        )
    st.markdown(plain(said))


def _sharp() -> float:
    """The slider's value: halves from 0 to 8."""
    return min(max(round(2 * current().sharp) / 2, 0.0), 8.0)


# ---------------------------------------------------------------- heads that can go


def redundant_section() -> None:
    """A head taken out of the worked example, and a copy that makes its original needless."""
    changed, _ = matrices_of(current().edits)
    if edits_of(changed):
        st.caption("The worked example is taken with the numbers that you changed.")
    with st.container(border=True, key="step_gone"):
        _gone_card(changed)
    with st.container(border=True, key="step_copy"):
        _copy_card(changed)


def _gone_card(changed: Matrices) -> None:
    st.subheader("Take a head out", anchor=False)
    st.markdown(
        "The worked example “I learn.” again. A head that is off writes zeros: its block of the joined row is empty, "
        "and W_O has nothing to take from there."
    )
    gone = current().gone if current().gone < TOY_HEADS else -1
    st.segmented_control(
        "Switched off", [-1, *range(TOY_HEADS)], format_func=lambda head: "none" if head < 0 else f"H{head}",
        required=True, **bind("gone", to_widget=gone),
    )  # fmt: skip
    clean = work(toy(changed))
    worked = work(toy(changed), off=(gone,) if gone >= 0 else ())
    groups = panel(worked, "output", range(TOY_HEADS)).groups
    matrices(Panel(groups), key="mx_gone")
    st.markdown(plain(_gone_sentence(clean, worked, gone)))


def _gone_sentence(clean: Worked, worked: Worked, gone: int) -> str:
    if gone < 0:
        return "Both heads are on. Switch one off and watch its columns of Z."
    d = worked.d_head
    change = float(torch.linalg.vector_norm(worked.output - clean.output))
    size = float(torch.linalg.vector_norm(clean.output))
    return (
        f"Columns {gone * d} to {gone * d + d - 1} of Z are zero, so rows {gone * d} to {gone * d + d - 1} of W_O "
        f"count for nothing, and what H{gone} added is zero. The output has moved by {change:.2f}; it was "
        f"{size:.2f} long."
    )


def _copy_card(changed: Matrices) -> None:
    st.subheader("Copy a head, then take one out", anchor=False)
    st.markdown(
        "Are both heads needed? On 192 random rows each head is taken out in turn, and then W_O may adapt: it is "
        "**refitted** by least squares, so that the head that is left comes as near as it can to what both wrote."
    )
    st.toggle("Make H1 a copy of H0 (its W_Q, W_K and W_V)", **bind("copied"))
    found = removals(changed, current().copied)
    st.dataframe(
        {
            "taken out": [f"H{one.head}" for one in found],
            "error, W_O as it was": [f"{one.before:.3f}" for one in found],
            "error, W_O refitted": [_after_text(one.after) for one in found],
        },
        hide_index=True, alt="Error of the output when a head is taken out, in parts of its length",
    )  # fmt: skip
    st.caption("The error is the length of what is wrong, in parts of the output’s own length.")
    if all(one.after < ROUNDING for one in found):
        said = (
            "Either head can go and nothing is lost: the other one says the same, and W_O takes it from there. Taking "
            "a head out as it is does hurt, so that alone does not prove it was needed."
        )
    else:
        worst = max(one.after for one in found)
        said = f"Refitting does not bring it back ({worst:.3f} remains): each head knows what the other does not."
    st.markdown(plain(said))


def _after_text(error: float) -> str:
    return f"{error:.3f}" if error > ROUNDING else f"0 (rounding: {error:.0e})"


# ---------------------------------------------------------------- questions


def questions_section() -> None:
    """Common misconceptions; each answer leads to the control that shows it."""
    st.markdown("Short answers, and a place to see each for yourself.")
    for number, question in enumerate(QUESTIONS):
        with st.container(border=True, key=f"step_question_{number}"):
            words, way = st.columns([5, 2], vertical_alignment="center")
            words.markdown(f"**{plain(question.question)}**  \n{plain(question.answer())}")
            changes = question.changes()
            if "edits" in changes:
                changes = {**changes, "edits": edits_of(changes["edits"])}
            way.button(question.button, key=f"question_{number}", on_click=update, kwargs=changes, width="stretch")
