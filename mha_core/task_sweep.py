"""Every head of a model switched off, one at a time, exactly, on every prompt of a task: a map that gets better while
it grows.

Each prompt runs with all its variants in one growing batch (`variants.py`); prompts come from template after template,
so that the first few already say something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha_core.head_scores import HeadScores
from mha_core.interventions import HeadRef, InterventionError
from mha_core.jobs import Engine, LocalEngine, heads_jobs
from mha_core.model import Model, ModelDetails
from mha_core.paired import auc_terms
from mha_core.questions import Question, chosen_questions
from mha_core.result_store import Kept, ResultStore, kept_for
from mha_core.scores import METRICS
from mha_core.tasks import Refused, Task
from mha_core.variants import every_head

SWEEP_KINDS = ("zero", "mean")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class TaskSweep:
    """What is measured so far of every head of a site on a task.

    heads: all of them, layer by layer. shape: (layers, heads). kind, reference: how each is switched off.
    questions: all that were asked for. done: numbers of those that are measured. results: theirs, in that order.
    refused: prompts that this model cannot be given. seconds: wall time. n_kept: questions whose result was on disk.
    """

    task: Task
    details: ModelDetails
    model_name: str
    kind: str
    reference: str | tuple[str, ...]
    site: str
    heads: tuple[HeadRef, ...]
    shape: tuple[int, int]
    questions: tuple[Question, ...]
    refused: tuple[Refused, ...]
    done: tuple[int, ...]
    results: tuple[HeadScores, ...]
    seed: int
    seconds: float
    n_kept: int

    @property
    def n(self) -> int:
        """Prompts measured so far."""
        return len(self.done)

    @property
    def total(self) -> int:
        """Prompts that were asked for."""
        return len(self.questions)

    @property
    def finished(self) -> bool:
        """Whether every prompt that was asked for is measured."""
        return self.n == self.total

    @property
    def runs_per_second(self) -> float:
        """Head × prompt runs a second, of what was not on disk; 0 where all was."""
        return (self.n - self.n_kept) * len(self.heads) / self.seconds if self.seconds else 0.0

    @property
    def metrics(self) -> tuple[str, ...]:
        """Which of `METRICS` there are."""
        clean = self.results[0].clean
        return (*(name for name in METRICS if name in clean), *(("auc",) if "foil_cosine" in clean else ()))

    @property
    def measured(self) -> tuple[Question, ...]:
        """The measured questions, in the order of `results`."""
        return tuple(self.questions[number] for number in self.done)

    @property
    def clusters(self) -> list[str]:
        """The template of each measured prompt."""
        return [question.prompt.template for question in self.measured]

    def slices(self) -> dict[str, dict[str, list[int]]]:
        """Slice name -> value -> places of the measured prompts in it."""
        found: dict[str, dict[str, list[int]]] = {}
        for place, question in enumerate(self.measured):
            for name, value in question.prompt.slices.items():
                found.setdefault(name, {}).setdefault(value, []).append(place)
        return found

    def clean(self, metric: str, places: Sequence[int] | None = None) -> NDArray[np.float64]:
        """The unchanged model's scores, [prompt]."""
        rows = self._at(places)
        if metric == "auc":
            return auc_terms([r.clean["cosine"] for r in rows], [r.clean["foil_cosine"] for r in rows])
        return np.array([result.clean[metric] for result in rows])

    def effects(self, metric: str, places: Sequence[int] | None = None) -> NDArray[np.float64]:
        """Score with a head off minus clean score, [prompt, head]."""
        rows = self._at(places)
        if metric == "auc":
            near, far = (np.stack([r.heads[name] for r in rows]) for name in ("cosine", "foil_cosine"))
            changed = np.stack([auc_terms(near[:, head], far[:, head]) for head in range(near.shape[1])], axis=1)
        else:
            changed = np.stack([result.heads[metric] for result in rows])
        return np.asarray(changed - self.clean(metric, places)[:, None], dtype=np.float64)

    def _at(self, places: Sequence[int] | None) -> list[HeadScores]:
        return [self.results[place] for place in (range(self.n) if places is None else places)]


def task_sweep(
    model: Model, task: Task, *, kind: str = "zero", reference: str | tuple[str, ...] = "corpus",
    site: str | None = None, n: int | None = None, seed: int = 0, store: ResultStore | None = None,
    engine: Engine | None = None, progress: Progress | None = None,
) -> TaskSweep:  # fmt: skip
    """Measure every head on a task. Arguments, errors: `task_sweep_steps`, whose last result this is."""
    last = None
    for step in task_sweep_steps(model, task, kind=kind, reference=reference, site=site, n=n, seed=seed, store=store,
                                 engine=engine, progress=progress):  # fmt: skip
        last = step
    assert last is not None
    return last


def task_sweep_steps(
    model: Model, task: Task, *, kind: str = "zero", reference: str | tuple[str, ...] = "corpus",
    site: str | None = None, n: int | None = None, seed: int = 0, store: ResultStore | None = None,
    engine: Engine | None = None, progress: Progress | None = None,
) -> Generator[TaskSweep]:  # fmt: skip
    """Measure every head on a task, prompt by prompt: what is known after each of them.

    Args:
        kind: "zero", or "mean" over `reference` (see `HeadAblation`).
        site: None: the only one, or the decoder's self-attention.
        n: prompts, None: all. seed: chooses them and their order.
        store: where finished prompts are kept and found again; None: nowhere.
        engine: who runs the jobs; None: this process.
        progress: called with (head × prompt runs done, in all). What it raises ends the work; what was yielded before
            stays good, and is kept.

    Raises:
        TaskError: the model cannot be given this task. InterventionError: a kind or site that it has not.
    """
    started = time.perf_counter()
    if kind not in SWEEP_KINDS:
        raise InterventionError(f"kind is {kind!r}; a sweep over a task takes {', '.join(SWEEP_KINDS)}.")
    site = model.main_site if site is None else site
    if site not in model.sites:
        raise InterventionError(f"site is {site!r}; this model has {', '.join(model.sites)}.")
    questions, refused = chosen_questions(model, task, n, seed)
    heads = tuple(every_head(model, site))
    work = _Work(questions, heads, kind, reference, kept_for(model, store))
    shape = (model.sites[site].n_layers, model.sites[site].n_heads)
    for done, results in work.steps(engine or LocalEngine(model), progress or (lambda done, total: None)):
        yield TaskSweep(
            task, model.details, model.name, kind, reference, site, heads, shape, questions, refused, done, results,
            seed, time.perf_counter() - started, work.n_kept,
        )  # fmt: skip


class _Work:
    """Questions cut into jobs, and their results put together again."""

    def __init__(
        self, questions: Sequence[Question], heads: Sequence[HeadRef], kind: str, reference: str | tuple[str, ...],
        kept: Kept,
    ) -> None:  # fmt: skip
        self.kept = kept
        self.parts = [heads_jobs(question, heads, kind, reference) for question in questions]
        self.found: list[list[HeadScores | None]] = [[kept.heads(job) for job in jobs] for jobs in self.parts]
        self.n_kept = sum(None not in found for found in self.found)
        self.total = len(questions) * len(heads)

    def steps(
        self, engine: Engine, progress: Progress
    ) -> Generator[tuple[tuple[int, ...], tuple[HeadScores, ...]]]:  # fmt: skip
        """Numbers and results of the finished questions, whenever another one is."""
        todo = [(q, p, job) for q, jobs in enumerate(self.parts) for p, job in enumerate(jobs) if not self.found[q][p]]
        runs = self.total - sum(job.size for _, _, job in todo)

        def tell(n: int) -> None:
            nonlocal runs
            runs += n
            progress(runs, self.total)

        if self.n_kept:
            yield self._finished()
        for number, result in engine.run([job for _, _, job in todo], tell):
            question, part, job = todo[number]
            assert isinstance(result, HeadScores)
            self.kept.put(job, result)
            self.found[question][part] = result
            if None not in self.found[question]:
                yield self._finished()

    def _finished(self) -> tuple[tuple[int, ...], tuple[HeadScores, ...]]:
        done = [number for number, parts in enumerate(self.found) if None not in parts]
        return tuple(done), tuple(_joined([p for p in self.found[number] if p is not None]) for number in done)


def _joined(parts: Sequence[HeadScores]) -> HeadScores:
    if len(parts) == 1:
        return parts[0]
    return HeadScores(
        parts[0].clean, {name: np.concatenate([part.heads[name] for part in parts]) for name in parts[0].heads}
    )
