"""Pruning curves: heads switched off together, more and more, in order of importance, in reverse, and at random.

How many heads can go before a task breaks, and for which slice does it break first? The order is found on one half of
the templates and the curve is measured on the other, so that it is not flattered by its own choice (Michel et al. 2019
prune in steps of a tenth, from the least important on).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mha_core.batched import Row
from mha_core.interventions import HeadAblation, HeadRef, InterventionError, Interventions
from mha_core.jobs import Engine
from mha_core.measuring import Counter, Measuring
from mha_core.model import Model, ModelDetails
from mha_core.paired import Interval, auc_terms, cluster_interval, halves
from mha_core.questions import Question, chosen_questions
from mha_core.result_store import ResultStore
from mha_core.task_gradient import importance_of, question_estimates
from mha_core.task_sweep import SWEEP_KINDS, TaskSweep
from mha_core.tasks import Refused, Task, TaskError
from mha_core.variants import every_head

N_STEPS, N_RANDOM = 10, 3
GRADIENT_PROMPTS = 24  # per order that is found: the score settles quickly, and recomputing takes it ten times
ORDERS = {
    "ascending": "least important first",
    "recomputed": "least important first, importance computed again after every tenth of the heads",
    "reverse": "most important first",
    "random": "at random",
}
Progress = Callable[[int, int], None]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """One order of removal. removed: all heads, first to go first. rows: [point][prompt], as far as measured; point p
    has `counts[p]` heads off. draw: which of the random orders.
    """

    order: str
    draw: int
    removed: tuple[HeadRef, ...]
    rows: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True, eq=False)
class Pruning:
    """Pruning curves so far.

    counts: heads off at each point, the first 0. kind: how they are switched off. importance: where the order is from,
    in words. questions: those that the curves are measured on, of other templates than the order. total: points in all.
    """

    task: Task
    details: ModelDetails
    model_name: str
    kind: str
    site: str
    importance: str
    counts: tuple[int, ...]
    curves: tuple[Curve, ...]
    questions: tuple[Question, ...]
    refused: tuple[Refused, ...]
    total: int
    seed: int
    seconds: float

    @property
    def n_points(self) -> int:
        """Points measured so far, the clean one of each curve included."""
        return sum(len(curve.rows) for curve in self.curves)

    @property
    def finished(self) -> bool:
        """Whether all curves are whole."""
        return self.n_points == self.total

    @property
    def metrics(self) -> tuple[str, ...]:
        """Which scores there are."""
        row = self.curves[0].rows[0][0]
        return (*(name for name in row if name != "foil_cosine"), *(("auc",) if "foil_cosine" in row else ()))

    def slices(self) -> dict[str, dict[str, list[int]]]:
        """Slice name -> value -> the prompts in it."""
        found: dict[str, dict[str, list[int]]] = {}
        for place, question in enumerate(self.questions):
            for name, value in question.prompt.slices.items():
                found.setdefault(name, {}).setdefault(value, []).append(place)
        return found

    def plan(self, curve: Curve, point: int) -> Interventions:
        """What is switched off at a point."""
        return plan_without(curve.removed[: self.counts[point]], self.kind)

    def score(self, curve: Curve, point: int, metric: str, places: Sequence[int] | None = None) -> Interval:
        """Mean score at a point, with its interval over templates."""
        places = range(len(self.questions)) if places is None else places
        rows = [curve.rows[point][place] for place in places]
        if metric == "auc":
            values = auc_terms([row["cosine"] for row in rows], [row["foil_cosine"] for row in rows])
        else:
            values = np.array([row[metric] for row in rows])
        return cluster_interval(
            values, [self.questions[place].prompt.template for place in places], n_resamples=500, seed=self.seed
        )

    def breaks_at(self, curve: Curve, metric: str, places: Sequence[int] | None = None) -> int | None:
        """The first number of heads off at which less than half of the clean score above chance is left; None: it
        never does, as far as measured, or the clean score is not above chance.
        """
        chance = self.chance(metric)
        means = [self._mean(curve, point, metric, places) - chance for point in range(len(curve.rows))]
        if means[0] <= 0:
            return None
        return next((self.counts[point] for point, mean in enumerate(means) if mean < means[0] / 2), None)

    def chance(self, metric: str) -> float:
        """The score of guessing."""
        return 0.5 if metric == "auc" or (metric == "accuracy" and self.task.has_foils) else 0.0

    def _mean(self, curve: Curve, point: int, metric: str, places: Sequence[int] | None) -> float:
        rows = curve.rows[point]
        chosen = rows if places is None else [rows[place] for place in places]
        if metric == "auc":
            return float(auc_terms([r["cosine"] for r in chosen], [r["foil_cosine"] for r in chosen]).mean())
        return float(np.mean([row[metric] for row in chosen]))


def plan_without(heads: Sequence[HeadRef], kind: str) -> Interventions:
    """Heads off, or the empty plan."""
    return Interventions(HeadAblation(heads, kind)) if heads else Interventions()


def pruning_steps(
    model: Model, task: Task, *, orders: Sequence[str] = ("ascending", "reverse", "random"),
    importance: TaskSweep | None = None, kind: str = "zero", site: str | None = None, n: int | None = None,
    seed: int = 0, n_steps: int = N_STEPS, n_random: int = N_RANDOM, store: ResultStore | None = None,
    engine: Engine | None = None, progress: Progress | None = None,
) -> Generator[Pruning]:  # fmt: skip
    """Pruning curves, point by point.

    Args:
        orders: of `ORDERS`, in which they are measured.
        importance: an exact sweep over the same task: a head's importance is then how much the answer's log-probability
            (of sentences, the cosine difference) falls without it, on the first half of the templates; one that harms
            goes first. None: Michel's gradient score, an estimate. "recomputed" always takes the gradient.
        kind: "zero" or "mean". site: None: the only one, or the decoder's self-attention.
        n: prompts, over both halves; None: all. seed: chooses prompts, halves and random orders.
        n_steps: points of a curve besides the clean one. n_random: random orders.
        store, engine: as for `evaluation_steps`. progress: called with (runs done, in all); what it raises ends the
            work.

    Raises:
        TaskError: the model cannot be given this task, or it has fewer than two templates. InterventionError: an order,
            kind or site there is not.
    """
    started = time.perf_counter()
    site = model.main_site if site is None else site
    _check(model, orders, kind, site, importance)
    questions, refused = chosen_questions(model, task, n, seed)
    first, second = halves([question.prompt.template for question in questions], seed)
    if not first:
        raise TaskError("A pruning curve needs prompts of two templates: one to find the order, one to measure it.")
    work = _Work(model, [questions[p] for p in first], kind, site, n_steps, seed, importance)
    asked = tuple(questions[p] for p in second)
    plans = [(order, draw) for order in orders for draw in range(n_random if order == "random" else 1)]
    counter = Counter(progress, len(plans) * len(work.counts) * len(asked) + work.n_gradients(orders))
    measuring = Measuring.of(model, store, engine)
    curves: list[Curve] = []
    for order, draw in plans:
        curves.append(Curve(order, draw, (), ()))
        for point, count in enumerate(work.counts):
            removed = work.removed(order, draw, curves[-1].removed, point, counter.add)
            plan = plan_without(removed[:count], kind)
            rows = measuring.rows([plan], asked, counter.add)[plan]
            curves[-1] = replace(curves[-1], removed=removed, rows=(*curves[-1].rows, tuple(rows)))
            yield Pruning(
                task, model.details, model.name, kind, site, work.says, work.counts, tuple(curves), asked, refused,
                len(plans) * len(work.counts), seed, time.perf_counter() - started,
            )  # fmt: skip


def _check(model: Model, orders: Sequence[str], kind: str, site: str, sweep: TaskSweep | None) -> None:
    wrong = [order for order in orders if order not in ORDERS]
    if wrong or not orders:
        raise InterventionError(f"order is {', '.join(wrong) or 'empty'}; it must be of {', '.join(ORDERS)}.")
    if kind not in SWEEP_KINDS:
        raise InterventionError(f"kind is {kind!r}; a pruning curve takes {', '.join(SWEEP_KINDS)}.")
    if site not in model.sites:
        raise InterventionError(f"site is {site!r}; this model has {', '.join(model.sites)}.")
    if sweep is not None and (sweep.site, sweep.kind) != (site, kind):
        raise InterventionError(
            f"The sweep is of {sweep.site!r} by {sweep.kind}, and the curve of {site!r} by {kind}; both must be alike."
        )


class _Work:
    """Orders of removal, found on the first half."""

    def __init__(
        self, model: Model, questions: Sequence[Question], kind: str, site: str, n_steps: int, seed: int,
        sweep: TaskSweep | None,
    ) -> None:  # fmt: skip
        self.model, self.kind, self.site, self.seed = model, kind, site, seed
        self.questions = questions[:GRADIENT_PROMPTS]
        self.heads = tuple(every_head(model, site))
        steps = min(n_steps, len(self.heads))
        self.counts = tuple(round(len(self.heads) * step / steps) for step in range(steps + 1))
        self.of_sweep = None if sweep is None else _sweep_importance(sweep, questions)
        self.says = (
            f"gradient score (Michel et al. 2019) on {len(self.questions)} prompts of other templates, an estimate"
            if sweep is None
            else "exact effects on the prompts of other templates"
        )
        self._score: Numbers | None = None

    def n_gradients(self, orders: Sequence[str]) -> int:
        """Passes that finding the orders takes."""
        fixed = self.of_sweep is None and any(order in ("ascending", "reverse") for order in orders)
        again = (len(self.counts) - 1) * ("recomputed" in orders)
        return len(self.questions) * (fixed + again)

    def removed(
        self, order: str, draw: int, so_far: tuple[HeadRef, ...], point: int, tell: Callable[[int], None]
    ) -> tuple[HeadRef, ...]:
        """The heads in the order in which they go, as far as known at a point."""
        if order == "random":
            places = np.random.default_rng([self.seed, draw]).permutation(len(self.heads))
            return tuple(self.heads[place] for place in places.tolist())
        if order != "recomputed":
            score = self._fixed(tell)
            return tuple(self.heads[place] for place in np.argsort(score if order == "ascending" else -score,
                                                                   kind="stable").tolist())  # fmt: skip
        if point == 0:
            return ()
        gone = so_far[: self.counts[point - 1]]
        score = self._gradient(plan_without(gone, self.kind), tell)
        left = [place for place in np.argsort(score, kind="stable").tolist() if self.heads[place] not in set(gone)]
        return (*gone, *(self.heads[place] for place in left[: self.counts[point] - len(gone)]))

    def _fixed(self, tell: Callable[[int], None]) -> Numbers:
        if self.of_sweep is not None:
            return self.of_sweep
        if self._score is None:
            self._score = self._gradient(Interventions(), tell)
        return self._score

    def _gradient(self, plan: Interventions, tell: Callable[[int], None]) -> Numbers:
        rows = []
        for question in self.questions:
            rows.append(question_estimates(self.model, question, self.kind, self.site, plan))
            tell(1)
        return importance_of({name: np.stack([row[name] for row in rows]) for name in rows[0]}).ravel()


def _sweep_importance(sweep: TaskSweep, questions: Sequence[Question]) -> Numbers:
    """How much the score falls without each head, [head], on those of the questions that the sweep has measured."""
    texts = {(question.prompt.text, question.prompt.target) for question in questions}
    places = [p for p, q in enumerate(sweep.measured) if (q.prompt.text, q.prompt.target) in texts]
    if not places:
        raise TaskError("The sweep has measured none of the prompts that the order is found on; measure more of them.")
    metric = "log_prob" if "log_prob" in sweep.metrics else "cosine_diff"
    return np.asarray(-sweep.effects(metric, places).mean(axis=0))
