"""Maps of heads on the Evaluate page: effects as a picture to walk through, and the attention of a chosen head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st

from mha_core.interventions import HeadRef
from mha_core.model import Model
from mha_core.questions import Question
from mha_core.ui import components
from mha_core.ui.evaluate_plans import said_plan, toggled
from mha_core.ui.look import maps_of
from mha_core.ui.session import current, run, update
from mha_core.ui.text import plain
from mha_core.view import View

SWITCHES, OPENS = "switches it off or on", "shows its attention"
CLICK_KEY = "w_task_click"
_MOST_PROMPTS = 50


def effects_view(
    values: Any, rows: Sequence[str], columns: Sequence[str], *, title: str, unit: str, made: Mapping[str, Any],
    axes: tuple[str, str] = ("layer", "head"),
) -> View:  # fmt: skip
    """Effects [row, column] on two colours around 0. axes: what a row and a column are."""
    array = np.asarray(values, dtype=np.float32)
    top = float(np.nanmax(np.abs(array), initial=0.0)) or 1e-6
    meta = {
        "id": f"{title}|{unit}|{hash(array.tobytes()) & 0xFFFFFFFF:x}", "title": title, "unit": unit,
        "alt": f"{title}: {len(rows)} {axes[0]}s (rows) by {len(columns)} {axes[1]}s (columns), {unit}",
        "query_labels": list(rows), "key_labels": list(columns), "range": [-top, top], "scale": "linear",
        "diverging": True, "causal": False, "query_axis": axes[0], "key_axis": axes[1],
        "caption": f"{axes[0]}s (rows) by {axes[1]}s (columns)",
    }  # fmt: skip
    return View("matrix", {"map": array}, meta, dict(made))


def layer_labels(shape: tuple[int, int]) -> tuple[list[str], list[str]]:
    """Names of the rows and columns of a map of layers by heads."""
    return [f"L{layer}" for layer in range(shape[0])], [f"H{head}" for head in range(shape[1])]


def click_choice() -> None:
    """What a click on a head of a map does."""
    st.segmented_control(
        "A click on a head", (SWITCHES, OPENS), wrap=True, default=SWITCHES, required=True, key=CLICK_KEY
    )


def on_head(site: str) -> Callable[[int, int], None]:
    """What happens when a head of a map is clicked."""

    def clicked(layer: int, head: int) -> None:
        update(layer=layer, head=head)
        if st.session_state.get(CLICK_KEY) != OPENS:
            toggled(str(HeadRef(layer, head, site)))

    return clicked


def chosen_head(model: Model, site: str, questions: Sequence[Question]) -> None:
    """The working plan; and, where clicks ask for it, where the clicked head looks in one of the prompts."""
    if st.session_state.get(CLICK_KEY) != OPENS:
        st.write(plain(said_plan(current().off)))
        return
    shape = model.sites[site]
    head = HeadRef(min(current().layer, shape.n_layers - 1), min(current().head, shape.n_heads - 1), site)
    shown = list(questions[:_MOST_PROMPTS])
    number = st.selectbox("In the prompt", range(len(shown)), key="w_task_prompt",
                          format_func=lambda place: shown[place].prompt.text[:90])  # fmt: skip
    question = shown[number or 0]
    inputs = question.texts[0]
    tokens, target = (inputs.source, inputs.tokens) if inputs.source is not None else (inputs.tokens, None)
    trace = run(model, tokens, target=target)
    st.write(plain(f"{head}, where it looks in the unchanged run"))
    maps = maps_of(model, trace, site, head.layer)
    components.matrix(maps.matrix_view(head.head), key="task_head")
    if st.button("Open on the Heads page", key="task_head_page", icon=":material/open_in_new:"):
        main = site == model.main_site
        update(text=tokens.text, pair="", layer=head.layer, head=head.head, site="" if main else site)
        st.switch_page("pages/heads.py")


def found_columns() -> dict[str, Any]:
    """How numbers of tables of heads are written."""
    names = ("mean", "low", "high", "p", "p (max-T)", "found", "again", "estimate", "exact", "Michel's score")
    return dict.fromkeys(names, st.column_config.NumberColumn(format="%.4f"))
