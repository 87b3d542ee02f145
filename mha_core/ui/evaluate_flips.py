"""The Evaluate page's drill-down: the prompts whose answer turned under a plan, and their maps a click away."""

from __future__ import annotations

from typing import Any

import streamlit as st

from mha_core.evaluation import Evaluation, Flip
from mha_core.interventions import Interventions
from mha_core.questions import Question
from mha_core.ui.evaluate_plans import onto_ablate_page
from mha_core.ui.session import update
from mha_core.ui.text import counted

_PLAN, _PROMPT, _TABLE = "w_flips_plan", "w_flips_prompt", "flips_table"


def flips_card(result: Evaluation, names: list[str]) -> None:
    """A table of them that sorts; one of them opens on the Heads or the Ablate page."""
    if not result.plans:
        return
    with st.container(border=True, key="evaluate_flips"):
        st.subheader("Prompts that turned", anchor=False)
        st.caption(
            "Single prompts that were right and are wrong under a plan, or the other way. before and after: how far "
            "the target is above the foil (below 0: wrong). Choose one to see its maps."
        )
        if st.session_state.get(_PLAN) not in names:
            st.session_state[_PLAN] = names[0]
        name = st.selectbox("Plan", names, key=_PLAN)
        number = names.index(name) if name in names else 0
        found = result.flipped(number)
        if not found:
            st.write(f"No answer of the {result.n} prompts turned.")
            return
        now_wrong = sum(not flip.right_now for flip in found)
        st.write(f"{counted(len(found), 'prompt')} of {result.n} turned: {now_wrong} to wrong, "
                 f"{len(found) - now_wrong} to right.")  # fmt: skip
        _table(found, f"{number}_{result.n}")
        _one(found, result.plans[number], names[number])


def _table(found: list[Flip], part: str) -> None:
    rows: list[dict[str, Any]] = [
        {
            "prompt": flip.question.prompt.text, "target": flip.question.prompt.target,
            "foil": flip.question.prompt.foil or "", "now": "right" if flip.right_now else "wrong",
            "before": flip.before, "after": flip.after, "template": flip.question.prompt.template,
            **flip.question.prompt.slices,
        }
        for flip in found
    ]  # fmt: skip
    key = f"{_TABLE}_{part}"

    def chosen() -> None:
        picked = st.session_state.get(key, {}).get("selection", {}).get("rows", [])
        if picked and 0 <= picked[0] < len(found):
            st.session_state[_PROMPT] = picked[0]

    numbers = {name: st.column_config.NumberColumn(format="%.3f") for name in ("before", "after")}
    st.dataframe(
        rows, hide_index=True, key=key, on_select=chosen, selection_mode="single-row",
        height=min(280, 40 + 35 * len(rows)),
        column_config={**numbers, "prompt": st.column_config.TextColumn(width="large")}, alt="Prompts that turned",
    )  # fmt: skip


def _one(found: list[Flip], plan: Interventions, name: str) -> None:
    places = range(len(found))
    if st.session_state.get(_PROMPT) not in places:
        st.session_state[_PROMPT] = 0
    place = st.selectbox("Prompt", places, key=_PROMPT,
                         format_func=lambda number: found[number].question.prompt.text[:120])  # fmt: skip
    question = found[place or 0].question
    with st.container(horizontal=True):
        if st.button("Its maps, on the Heads page", key="flip_heads", icon=":material/grid_view:"):
            _look_at(question, plan)
            st.switch_page("pages/heads.py")
        if st.button("Before and after, on the Ablate page", key="flip_ablate", icon=":material/compare_arrows:"):
            _look_at(question, plan)
            onto_ablate_page(plan, name)
            st.switch_page("pages/ablate.py")


def _look_at(question: Question, plan: Interventions) -> None:
    """The prompt becomes the sentence of every page, and the plan's first head the chosen one."""
    inputs, prompt = question.texts[0], question.prompt
    text = (inputs.source or inputs.tokens).text
    changes: dict[str, Any] = {"text": text, "pair": "", "query": -1, "key": -1, "where": "", "answers": ()}
    if question.compares_sentences:
        changes["other"] = prompt.target
    elif prompt.foil is not None and len(question.targets) == 1:
        changes["answers"] = (prompt.target[:60], prompt.foil[:60])
    if plan.heads:
        head = plan.heads[0]
        changes |= {"layer": head.layer, "head": head.head, "site": "" if head.site == "self" else head.site}
    update(**changes)
