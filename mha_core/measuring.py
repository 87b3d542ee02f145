"""Plans on questions: what is on disk is read, the rest is cut into jobs, run, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mha_core.batched import Row
from mha_core.interventions import Interventions
from mha_core.jobs import Engine, LocalEngine, Tell, plan_jobs
from mha_core.model import Model
from mha_core.questions import Question
from mha_core.result_store import Kept, ResultStore, kept_for

Progress = Callable[[int, int], None]


class Counter:
    """Runs so far, told to whoever watches."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, n: int) -> None:
        """n more are done."""
        self.done += n
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(frozen=True, eq=False)
class Measuring:
    """Who measures a model, and where results are kept."""

    model: Model
    engine: Engine
    kept: Kept

    @classmethod
    def of(cls, model: Model, store: ResultStore | None = None, engine: Engine | None = None) -> Measuring:
        """store: None: results are not kept. engine: None: this process."""
        return cls(model, engine or LocalEngine(model), kept_for(model, store))

    def rows(
        self, plans: Sequence[Interventions], questions: Sequence[Question], tell: Tell
    ) -> dict[Interventions, list[Row]]:  # fmt: skip
        """Rows of scores of every question under every plan. tell: called with numbers of (plan, question) pairs done;
        what it raises ends the work, and what was finished is kept.
        """
        found: dict[Interventions, dict[int, Row]] = {}
        todo = []
        for plan in dict.fromkeys(plans):
            found[plan] = self.kept.rows(plan, questions)
            if found[plan]:
                tell(len(found[plan]))
            missing = [number for number in range(len(questions)) if number not in found[plan]]
            for job, places in plan_jobs(self.model, plan, [questions[number] for number in missing]):
                todo.append((job, [missing[place] for place in places]))
        for number, result in self.engine.run([job for job, _ in todo], tell):
            job, numbers = todo[number]
            assert isinstance(result, list)
            self.kept.put(job, result)
            found[job.plan] |= dict(zip(numbers, result, strict=True))
        return {plan: [rows[number] for number in range(len(questions))] for plan, rows in found.items()}
