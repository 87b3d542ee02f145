"""Plans measured on a task: scores of every prompt, clean and changed, beside heads taken at random.

Results grow: a first subsample over many templates, then more, until all prompts that were asked for are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha_core.batched import Row
from mha_core.interventions import AttentionKnockout, HeadAblation, HeadRef, InterventionError, Interventions
from mha_core.jobs import Engine
from mha_core.measuring import Counter, Measuring
from mha_core.model import Model, ModelDetails
from mha_core.paired import Interval, auc_terms, cluster_interval, holm, sign_flip_p
from mha_core.questions import Question, chosen_questions
from mha_core.result_store import ResultStore
from mha_core.scores import METRICS
from mha_core.tasks import Refused, Task
from mha_core.variants import every_head

GRADED = ("logit_diff", "cosine_diff")  # scores that say by how much an answer is right
FIRST, N_CONTROLS = 24, 5
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Comparison:
    """One plan against the clean run, on all prompts or on a slice.

    clean, changed: means. difference: changed minus clean, paired per prompt, with its interval over templates.
    p: sign flips over templates, overall only (None in slices). p_holm: corrected for the number of plans.
    """

    plan: int
    metric: str
    slice: str
    value: str
    clean: float
    changed: float
    difference: Interval
    p: float | None = None
    p_holm: float | None = None


@dataclass(frozen=True, eq=False)
class Flip:
    """A prompt whose answer turned. before, after: how far the target is above the foil. right_now: whether it is right
    under the plan.
    """

    question: Question
    before: float
    after: float
    right_now: bool


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What is measured so far. Rows of prompts are in the order in which they are asked.

    clean: a row of scores per prompt. changed: [plan][prompt]. controls: [plan][draw][prompt]: as many other heads,
    taken at random from the same sites and switched off in the same way; empty for a plan without ablations.
    control_plans: what was drawn. total: prompts that were asked for. refused: those that this model cannot be given.
    controls_due: the random heads are still to come.
    """

    task: Task
    details: ModelDetails
    model_name: str
    plans: tuple[Interventions, ...]
    questions: tuple[Question, ...]
    refused: tuple[Refused, ...]
    clean: tuple[Row, ...]
    changed: tuple[tuple[Row, ...], ...]
    control_plans: tuple[tuple[Interventions, ...], ...]
    controls: tuple[tuple[tuple[Row, ...], ...], ...]
    total: int
    seed: int
    seconds: float
    controls_due: bool = False

    @property
    def n(self) -> int:
        """Prompts measured so far."""
        return len(self.clean)

    @property
    def finished(self) -> bool:
        """Whether every prompt that was asked for is measured, and the random heads on it."""
        return self.n == self.total and not self.controls_due

    @property
    def metrics(self) -> tuple[str, ...]:
        """Which of `METRICS` there are."""
        found = [name for name in METRICS if name in self.clean[0]]
        return (*found, "auc") if "foil_cosine" in self.clean[0] else tuple(found)

    @property
    def clusters(self) -> list[str]:
        """The template of each measured prompt."""
        return [question.prompt.template for question in self.questions[: self.n]]

    def slices(self) -> dict[str, dict[str, list[int]]]:
        """Slice name -> value -> the measured prompts in it."""
        found: dict[str, dict[str, list[int]]] = {}
        for place, question in enumerate(self.questions[: self.n]):
            for name, value in question.prompt.slices.items():
                found.setdefault(name, {}).setdefault(value, []).append(place)
        return found

    def clean_score(self, metric: str = "accuracy") -> Interval:
        """The unchanged model's mean, with its interval."""
        return cluster_interval(_column(self.clean, metric, range(self.n)), self.clusters, seed=self.seed)

    def compared(self, metric: str) -> list[Comparison]:
        """Every plan on all prompts measured so far, p-values corrected for the number of plans."""
        places = range(self.n)
        found = [self._comparison(number, metric, "", "", places) for number in range(len(self.plans))]
        p = [
            sign_flip_p(self.differences(number, metric), self.clusters, seed=self.seed) for number in range(len(found))
        ]
        return [
            Comparison(**{**vars(item), "p": one, "p_holm": corrected})
            for item, one, corrected in zip(found, p, holm(p), strict=True)
        ]

    def by_slice(self, metric: str) -> list[Comparison]:
        """Every plan on every slice."""
        return [
            self._comparison(number, metric, name, value, places)
            for number in range(len(self.plans))
            for name, values in self.slices().items()
            for value, places in sorted(values.items())
        ]

    def differences(self, plan: int, metric: str, places: Sequence[int] | None = None) -> NDArray[np.float64]:
        """Changed minus clean, [prompt]."""
        where = range(self.n) if places is None else places
        return _column(self.changed[plan], metric, where) - _column(self.clean, metric, where)

    def control_effects(self, plan: int, metric: str) -> list[float]:
        """Mean change under each set of random heads."""
        where = range(self.n)
        clean = _column(self.clean, metric, where).mean()
        return [float(_column(rows, metric, where).mean() - clean) for rows in self.controls[plan]]

    def flipped(self, plan: int) -> list[Flip]:
        """Prompts whose answer turned under a plan, in the order in which they were asked."""
        graded = next(name for name in GRADED if name in self.clean[0])
        return [
            Flip(question, clean[graded], changed[graded], changed["accuracy"] > 0)
            for question, clean, changed in zip(self.questions, self.clean, self.changed[plan], strict=False)
            if clean["accuracy"] != changed["accuracy"]
        ]

    def _comparison(self, plan: int, metric: str, name: str, value: str, places: Sequence[int]) -> Comparison:
        clusters = self.clusters
        interval = cluster_interval(
            self.differences(plan, metric, places), [clusters[place] for place in places], seed=self.seed
        )
        clean = float(_column(self.clean, metric, places).mean())
        return Comparison(plan, metric, name, value, clean, clean + interval.mean, interval)


def _column(rows: Sequence[Row], metric: str, places: Sequence[int]) -> NDArray[np.float64]:
    if metric == "auc":
        return auc_terms([rows[i]["cosine"] for i in places], [rows[i]["foil_cosine"] for i in places])
    return np.array([rows[i][metric] for i in places])


def evaluate(
    model: Model, task: Task, plans: Sequence[Interventions], *, n: int | None = None, seed: int = 0,
    n_controls: int = N_CONTROLS, store: ResultStore | None = None, engine: Engine | None = None,
    progress: Progress | None = None,
) -> Evaluation:  # fmt: skip
    """Measure plans on a task. Arguments, errors: `evaluation_steps`, whose last result this is."""
    last = None
    for step in evaluation_steps(model, task, plans, n=n, seed=seed, n_controls=n_controls, store=store,
                                 engine=engine, progress=progress):  # fmt: skip
        last = step
    assert last is not None
    return last


def evaluation_steps(
    model: Model, task: Task, plans: Sequence[Interventions], *, n: int | None = None, seed: int = 0,
    n_controls: int = N_CONTROLS, first: int = FIRST, store: ResultStore | None = None, engine: Engine | None = None,
    progress: Progress | None = None,
) -> Generator[Evaluation]:  # fmt: skip
    """Measure plans on a task, result by result: on `first` prompts, then with the random heads beside them, then on
    twice as many, and so on to n.

    Args:
        plans: what is changed; () measures the clean model alone.
        n: prompts, None: all. seed: chooses them, their order, the random heads, and the resampling.
        n_controls: sets of random heads per plan. first: prompts of the first result.
        store: where finished batches are kept and found again; None: nowhere. engine: who runs them; None: here.
        progress: called with (prompts run, in all, over all plans and controls). What it raises ends the work; what
            was yielded before stays good.

    Raises:
        TaskError: the model cannot be given this task. InterventionError: a plan that it cannot carry out.
    """
    started = time.perf_counter()
    plans = tuple(plans)
    for plan in plans:
        plan.validated_for(model.sites)  # before texts are made into tokens: a wrong head is told at once
    questions, refused = chosen_questions(model, task, n, seed)
    drawn = tuple(random_plans(model, plan, n_controls, seed) for plan in plans)
    asked = list(dict.fromkeys([Interventions(), *plans]))
    others = list(dict.fromkeys(plan for group in drawn for plan in group if plan not in asked))
    scores: dict[Interventions, list[Row]] = {plan: [] for plan in (*asked, *others)}
    counter = Counter(progress, len(scores) * len(questions))
    measuring = Measuring.of(model, store, engine)

    def result(controls: tuple[tuple[Interventions, ...], ...], due: bool = False) -> Evaluation:
        return Evaluation(
            task, model.details, model.name, plans, questions, refused, tuple(scores[Interventions()]),
            tuple(tuple(scores[plan]) for plan in plans), controls,
            tuple(tuple(tuple(scores[plan]) for plan in group) for group in controls), len(questions), seed,
            time.perf_counter() - started, due,
        )  # fmt: skip

    done = 0
    while done < len(questions):
        part = questions[done : max(first, 2 * done)]
        for plans_of_part in (asked, others):
            for plan, rows in measuring.rows(plans_of_part, part, counter.add).items():
                scores[plan] += rows
            if not done and others and plans_of_part is asked:  # random heads take the most of the time: not yet
                yield result(((),) * len(plans), due=True)
        done += len(part)
        yield result(drawn)


def random_plans(model: Model, plan: Interventions, n: int, seed: int) -> tuple[Interventions, ...]:
    """n plans that do to other heads of the same sites, drawn at random, what `plan` does to its own. Draw i of plans
    that name the same heads is the same. Empty where the plan ablates nothing, or a site has too few other heads.
    """
    named = set(plan.heads)
    if not named:
        return ()
    pools = {site: [h for h in every_head(model, site) if h not in named] for site in {h.site for h in named}}
    if any(len(pool) < sum(h.site == site for h in named) for site, pool in pools.items()):
        return ()
    return tuple(_redrawn(plan, pools, np.random.default_rng([seed, draw])) for draw in range(n))


def _redrawn(plan: Interventions, pools: dict[str, list[HeadRef]], rng: np.random.Generator) -> Interventions:
    """The plan with its heads exchanged: a head that two items name stays one head."""
    others: dict[HeadRef, HeadRef] = {}
    for site in sorted(pools):
        own = [head for head in plan.heads if head.site == site]
        places = rng.choice(len(pools[site]), len(own), replace=False).tolist()
        others |= dict(zip(own, [pools[site][place] for place in places], strict=True))
    items: list[HeadAblation | AttentionKnockout] = []
    for item in plan:
        if isinstance(item, HeadAblation):
            items.append(
                HeadAblation([others[h] for h in item.heads], item.kind, item.positions, reference=item.reference,
                             source=item.source, factor=item.factor)
            )  # fmt: skip
        else:
            items.append(item)
    return Interventions(items)


def plans_of(heads: str, kinds: str) -> tuple[Interventions, ...]:
    """One plan per kind from "L1H3,L1H5" and "zero,mean".

    Raises:
        InterventionError: no heads, or a kind that needs more than a name.
    """
    known = ("zero", "mean", "uniform")
    names = [name.strip() for name in kinds.split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise InterventionError(f"kind is {', '.join(wrong) or 'empty'}; it must be of {', '.join(known)}.")
    refs = [HeadRef.parse(part) for part in heads.split(",") if part.strip()]
    return tuple(Interventions(HeadAblation(refs, kind)) for kind in dict.fromkeys(names))
