"""The built-in tasks, and which of them a model can be given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from mha_core.model import Model
from mha_core.questions import questions_for, unfit
from mha_core.tasks import Task, TaskError

Builder = Callable[[Model, int], Task]


@lru_cache(maxsize=1)
def _builders() -> Mapping[str, Builder]:
    from mha_core import task_induction, task_similarity, task_words

    return {
        "agreement": lambda model, seed: task_words.agreement(seed),
        "indirect-object": lambda model, seed: task_words.indirect_object(seed),
        "pronoun": lambda model, seed: task_words.pronoun(seed),
        "induction": task_induction.induction,
        "similarity": lambda model, seed: task_similarity.similarity(seed),
    }


def task_names() -> tuple[str, ...]:
    """Names of the built-in tasks."""
    return tuple(_builders())


def built_in(name: str, model: Model, seed: int = 0) -> Task:
    """A built-in task for a model. seed: of its prompts; the same seed gives the same prompts.

    Raises:
        TaskError: no such task, or one that this model cannot be given.
    """
    if name not in _builders():
        raise TaskError(f"{name!r} is not a task; there are {', '.join(_builders())}.")
    task = _builders()[name](model, seed)
    reason = unfit(model, task)
    if reason:
        raise TaskError(reason)
    return task


def offered(model: Model, seed: int = 0) -> tuple[Task, ...]:
    """The built-in tasks that a model can be given: their answers are single tokens there, and their texts fit.

    Prompts that cannot be used are left out; a task of which less than half or fewer than 20 templates remain is not
    offered.
    """
    tasks = []
    for name in task_names():
        try:
            task = built_in(name, model, seed)
            questions, _ = questions_for(model, task)
        except TaskError:
            continue
        kept = replace(task, prompts=tuple(question.prompt for question in questions))
        if 2 * len(kept.prompts) >= len(task.prompts) and len(kept.templates) >= 20:
            tasks.append(kept)
    return tuple(tasks)
