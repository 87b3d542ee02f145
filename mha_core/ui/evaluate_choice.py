"""The Evaluate page's choices: a task or a file of one's own, how many prompts, and which plans."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from mha_core.interventions import Interventions
from mha_core.known_scores import known_score
from mha_core.model import Model
from mha_core.scores import METRICS
from mha_core.task_files import LIMITS, OwnTask, example_file, question_for, read_task
from mha_core.task_sets import built_in, offered
from mha_core.tasks import CHANCE, Refused, Task, TaskError
from mha_core.ui.evaluate_plans import plans_to_measure
from mha_core.ui.evaluate_state import MAX_MEASURED, OWN
from mha_core.ui.session import bind, current
from mha_core.ui.state import DEFAULT_KINDS, MAX_NAME
from mha_core.ui.stores import store
from mha_core.ui.text import counted, plain

MAX_PROMPTS = 9999
_UPLOADED = "_own_task"


@dataclass(frozen=True, eq=False)
class Asked:
    """What the page measures.

    task_name: everything the prompts depend on: a built-in task's name and seed, or a file's hash. n: prompts that are
    asked for. site: the attention whose heads are swept. plans: by the name that the page calls them.
    """

    model: Model
    task: Task
    task_name: Hashable
    n: int
    seed: int
    site: str
    plans: dict[str, Interventions]

    def key(self, what: str, *more: Hashable) -> tuple[Hashable, ...]:
        """What a result is kept by: all that it depends on."""
        return (what, self.model.name, self.task_name, self.n, self.seed, *more)


def choice_card(model: Model, site: str) -> Asked | None:
    """Draw the choices. None where there is no task yet: the card then says what to do."""
    with st.container(border=True, key="evaluate_choice"):
        st.caption(
            "A task asks the model the same question in many prompts, each with a right answer (its target) and mostly "
            "a wrong one (its foil). Heads are then switched off, to see on how many prompts that matters."
        )
        which, many, seed, score = st.columns([5, 2, 2, 3], vertical_alignment="bottom")
        with which:
            name = _task_choice(model)
        many.number_input("Prompts", 1, MAX_PROMPTS, step=12, help="More than there are: all.", **bind("prompts"))
        seed.number_input("Seed", 0, 999_999, help="Of the prompts, their order, random heads and resampling. The same "
                          "seed gives the same numbers.", **bind("seed"))  # fmt: skip
        with score:
            measure_choice()
        found = _own_task(model) if name == OWN else _built_in_task(model, name)
        if found is None:
            return None
        task, task_name = found
        _what_it_measures(model, task)
        plans = _plan_choice(model)
    state = current()
    return Asked(model, task, task_name, state.prompts, state.seed, site, plans)


def _task_choice(model: Model) -> str:
    """The name of the chosen task; one that this model is not offered gives way to the first."""
    titles = {**_offered(model), OWN: "A file of your own …"}
    chosen = current().task if current().task in titles else next(iter(titles))
    name = st.selectbox("Task", list(titles), format_func=lambda key: titles.get(str(key), str(key)),
                        **bind("task", to_widget=chosen))  # fmt: skip
    return str(name or chosen)


def measure_choice() -> None:
    """Which score is drawn, on the whole page."""
    st.selectbox(
        "Score",
        ("", *METRICS),
        format_func=lambda name: name or "as suits each part",
        help="; ".join(f"{name}: {says}" for name, says in METRICS.items()),
        **bind("measure"),
    )


def _offered(model: Model) -> dict[str, str]:
    """Name and title of the tasks for a model."""
    key = ("tasks offered", model.name)
    kept: dict[str, str] | None = store().peek(key)
    if kept is None:
        with st.spinner("Looking which tasks suit this model …"):
            kept = {task.name: task.title for task in offered(model)}
        store().keep(key, kept)
    return kept


def _built_in_task(model: Model, name: str) -> tuple[Task, Hashable] | None:
    seed = current().seed
    try:
        task: Task = store().small(("task", model.name, name, seed), lambda: built_in(name, model, seed))
    except TaskError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return None
    return task, (name, seed)


def _own_task(model: Model) -> tuple[Task, Hashable] | None:
    """The visitor's own file: kept in their session only, and in no address."""
    upload = st.file_uploader("CSV or JSON lines", type=["csv", "tsv", "txt", "jsonl", "ndjson", "json"],
                              max_upload_size=2, key="own_task")  # fmt: skip
    with st.container(horizontal=True):
        for ending, mime in (("csv", "text/csv"), ("jsonl", "application/x-ndjson")):
            st.download_button(
                f"Template, {ending.upper()}", example_file(question_for(model), ending), f"headscope-task.{ending}",
                mime, on_click="ignore", icon=":material/download:", key=f"template_{ending}",
                help="Two rows of the kind that this model is asked.",
            )  # fmt: skip
    st.caption(plain(LIMITS))
    if upload is not None:
        try:
            _take_over(upload.name, upload.getvalue())
        except TaskError as error:
            st.error(plain(str(error)), icon=":material/error:")
            return None
    held: tuple[str, OwnTask] | None = st.session_state.get(_UPLOADED)
    if held is None:
        st.info("Choose a file. The page's address will not hold it: who opens the link has to choose it too.",
                icon=":material/info:")  # fmt: skip
        return None
    digest, own = held[0], held[1].asked_of(model)
    st.caption(plain(f"{own.task.title}: {counted(len(own.task.prompts), 'prompt')}. The page's address does not hold "
                     "this file."))  # fmt: skip
    for note in own.notes:
        st.caption(plain(note))
    if own.refused:
        with st.expander(f"{counted(len(own.refused), 'row')} cannot be used", expanded=True):
            refused_table(own.refused)
    return own.task, (OWN, digest)


def refused_table(refused: Sequence[Refused]) -> None:
    """Rows or prompts that cannot be used, with the reason."""
    st.dataframe([{"row": row.row, "text": row.text, "reason": row.reason} for row in refused], hide_index=True,
                 alt="What cannot be used, and why")  # fmt: skip


def _take_over(name: str, data: bytes) -> None:
    digest = hashlib.sha256(f"{name}\n".encode() + data).hexdigest()
    held = st.session_state.get(_UPLOADED)
    if held is None or held[0] != digest:
        st.session_state[_UPLOADED] = (digest, read_task(data, name))


def _what_it_measures(model: Model, task: Task) -> None:
    chance = f" Guessing is right in {CHANCE:.0%}." if task.has_foils else ""
    slices = ", ".join(task.slice_names)
    known = None
    if task.seed is not None:  # a file's prompts are nobody else's
        known = store().small(("known score", model.name, task.name, task.seed), lambda: (known_score(model, task),))[0]
    said = f" Unchanged, this model is right in {known.accuracy:.1%} of all {known.n:,}." if known else ""
    st.caption(plain(
        f"{task.says}{chance} {counted(len(task.prompts), 'prompt')} from {counted(len(task.templates), 'template')}"
        f"{f'; slices: {slices}' if slices else ''}.{said}"
    ))  # fmt: skip


def _plan_choice(model: Model) -> dict[str, Interventions]:
    """The plans that are measured: heads typed here, those switched off on the Ablate page, and plans kept there."""
    heads, ways = st.columns([5, 4], vertical_alignment="bottom")
    heads.text_input("Heads to switch off", max_chars=MAX_NAME, placeholder="L1H3, L1H5; L2H0", **bind("typed"),
                     help="Layer and head, counted from 0. Heads with commas go together; a semicolon begins another "
                     "plan.")  # fmt: skip
    with ways:
        st.pills("Switched off by", DEFAULT_KINDS, selection_mode="multi",
                 help="zero: the head's output becomes 0, which can exaggerate. mean: it becomes the head's average "
                 "output over reference sentences. At every token.",
                 **bind("ways", convert=tuple, to_widget=list(current().ways)))  # fmt: skip
    plans, problems = plans_to_measure(current(), model)
    for problem in problems:
        st.warning(plain(problem))
    if not plans and (current().typed or current().off) and not current().ways:
        st.caption("Choose zero, mean or both: heads are switched off in one of these ways.")
    elif not plans:
        st.caption("No plan yet: type heads, or switch some off on the Ablate page. The unchanged model can be "
                   "measured, and every head swept, without one.")  # fmt: skip
        return {}
    chosen = [name for name in plans if name not in current().without]

    def left_out(names: Any) -> tuple[str, ...]:
        return tuple(name for name in plans if name not in names)[:MAX_MEASURED]

    st.multiselect("Plans", list(plans), **bind("without", convert=left_out, to_widget=chosen))
    return {name: plans[name] for name in chosen}
