"""The pieces that a measurement on a task is cut into, and who runs them.

A job is a pure function of a model: it can be run here, kept, or sent to another process, and gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mha_core.batched import Row, ask, batches
from mha_core.head_scores import HeadScores, head_scores
from mha_core.interventions import HeadRef, Interventions
from mha_core.model import Model
from mha_core.questions import Question

_ROWS_TOKENS = 8000  # heads × tokens of one job: some seconds, so that what is stopped loses little
_LEAST_HEADS = 8  # each job runs the sentence once without a change
Tell = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class PlanJob:
    """Ask questions under a plan. Gives a row of scores per question, in order."""

    plan: Interventions
    questions: tuple[Question, ...]

    @property
    def size(self) -> int:
        """What `tell` adds up to: questions."""
        return len(self.questions)

    def run(self, model: Model, tell: Tell) -> list[Row]:
        """tell: called with the number of questions that each batch did; what it raises ends the job."""
        return ask(model, self.questions, self.plan, tell)


@dataclass(frozen=True, eq=False)
class HeadsJob:
    """Ask one question with each of some heads switched off, one at a time. Gives `HeadScores`.

    kind, reference: of the ablation. heads: of one site, layer by layer.
    """

    question: Question
    heads: tuple[HeadRef, ...]
    kind: str = "zero"
    reference: str | tuple[str, ...] = "corpus"

    @property
    def size(self) -> int:
        """What `tell` adds up to: heads."""
        return len(self.heads)

    def run(self, model: Model, tell: Tell) -> HeadScores:
        """tell: called with the number of heads that each pass did; what it raises ends the job."""
        return head_scores(model, self.question, self.heads, self.kind, self.reference, tell)


Job = PlanJob | HeadsJob
Result = list[Row] | HeadScores


class Engine(Protocol):
    """Who runs jobs."""

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Result]]:
        """Results as they come, each with the number of its job. tell: as of `Job.run`, over all jobs."""
        ...


@dataclass(frozen=True, eq=False)
class LocalEngine:
    """Runs jobs here, one after the other."""

    model: Model

    def run(self, jobs: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Result]]:
        """Results in order."""
        for number, job in enumerate(jobs):
            yield number, job.run(self.model, tell)


def plan_jobs(model: Model, plan: Interventions, questions: Sequence[Question]) -> list[tuple[PlanJob, list[int]]]:
    """A plan on many questions as jobs of a batch each, and which questions are in each."""
    return [
        (PlanJob(plan, tuple(questions[number] for number in numbers)), numbers)
        for numbers in batches(model, questions, plan)
    ]


def heads_jobs(
    question: Question, heads: Sequence[HeadRef], kind: str, reference: str | tuple[str, ...]
) -> list[HeadsJob]:
    """All heads on one question as jobs: one for a short text, for long ones several of neighbouring layers."""
    length = sum(len(item.tokens) + (len(item.source) if item.source else 0) for item in question.texts)
    size = max(_LEAST_HEADS, _ROWS_TOKENS // length)
    size = -(-len(heads) // -(-len(heads) // size))  # jobs of equal size
    return [
        HeadsJob(question, tuple(heads[start : start + size]), kind, reference) for start in range(0, len(heads), size)
    ]
