"""The built-in tasks, and which of them a model can be given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mha_core.model import Model
from mha_core.questions import questions_for, unfit
from mha_core.tasks import Task, TaskError

Builder = Callable[[Model, int], Task]


@dataclass(frozen=True)
class Entry:
    """A built-in task before there is a model. asks: its question. needs: the models that it is for."""

    name: str
    asks: str
    needs: str
    build: Builder


@lru_cache(maxsize=1)
def _entries() -> Mapping[str, Entry]:
    from mha_core import task_dates, task_induction, task_masked, task_similarity, task_words

    words, next_word = "models that predict words", "next-word models"
    entries = (
        Entry("agreement", "is the verb that agrees with its subject above the other one?", words,
              lambda model, seed: task_words.agreement(seed)),
        Entry("indirect-object", "is the name mentioned once above the name mentioned twice?", words,
              lambda model, seed: task_words.indirect_object(seed)),
        Entry("pronoun", "is the pronoun that agrees above the one that does not?", words,
              lambda model, seed: task_words.pronoun(seed)),
        Entry("induction", "after random words come again: is what followed last time preferred?", next_word,
              task_induction.induction),
        Entry("masked-word", "is the word that belongs in a gap above one that does not?", "masked language models",
              task_masked.masked_word),
        Entry("similarity", "is a paraphrase nearer than a negated or an unrelated sentence?", "sentence encoders",
              lambda model, seed: task_similarity.similarity(seed)),
        Entry("dates", "is a written date written as year-month-day, to the last character?", "the date translator",
              task_dates.date_normalisation),
    )  # fmt: skip
    return {entry.name: entry for entry in entries}


def task_entries() -> tuple[Entry, ...]:
    """The built-in tasks as a list to choose from, without a model."""
    return tuple(_entries().values())


def task_names() -> tuple[str, ...]:
    """Names of the built-in tasks."""
    return tuple(_entries())


def built_in(name: str, model: Model, seed: int = 0) -> Task:
    """A built-in task for a model. seed: of its prompts; the same seed gives the same prompts.

    Raises:
        TaskError: no such task, or one that this model cannot be given.
    """
    if name not in _entries():
        raise TaskError(f"{name!r} is not a task; there are {', '.join(_entries())}.")
    task = _entries()[name].build(model, seed)
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
