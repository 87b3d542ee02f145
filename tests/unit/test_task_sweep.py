"""A sweep over a task: equal to one plan per head, grows, is kept and goes on; its maps, halves, gradients, curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from mha_core import HeadAblation, InterventionError, Interventions, Model, jobs, load_model
from mha_core.batched import ask
from mha_core.evaluation import evaluate
from mha_core.jobs import Job, LocalEngine, PlanJob, Result, Tell
from mha_core.paired import cluster_interval, halves
from mha_core.pruning import Pruning, pruning_steps
from mha_core.questions import chosen_questions, questions_for
from mha_core.result_store import ResultStore
from mha_core.task_gradient import question_estimates, task_gradient_steps
from mha_core.task_maps import head_map, held_out, slice_effects
from mha_core.task_sweep import TaskSweep, task_sweep, task_sweep_steps
from mha_core.tasks import Prompt, Task, TaskError
from tests.tiny import SENTENCES, tiny_model_dir

FAMILIES = ("llama", "gpt2", "bert", "bert-encoder", "t5")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return {name: load_model(str(tiny_model_dir(name, tmp_path_factory))) for name in FAMILIES}


def word_task(n: int = 18) -> Task:
    prompts = [
        Prompt(" ".join(text.split()[: 3 + number % 5]), ",", ".", f"t{number % 6}", {"half": str(number % 2)})
        for number, text in enumerate(SENTENCES[:n])
    ]
    return Task("words", "Words", "", tuple(prompts))


def task_for(model: Model) -> Task:
    if model.kind == "seq2seq":
        prompts = tuple(Prompt(s, " ".join(s.split()[:2]), template=f"t{i}") for i, s in enumerate(SENTENCES[:4]))
        return Task("texts", "Texts", "", prompts, "sequence")
    if model.has_logits:
        return word_task()
    prompts = tuple(Prompt(SENTENCES[i], SENTENCES[i - 1], SENTENCES[i - 2], f"t{i % 5}") for i in range(8))
    return Task("sentences", "Sentences", "", prompts, "similarity")


@dataclass
class Counting:
    """Runs jobs here, and counts them. stop_after: raises before one more."""

    model: Model
    stop_after: int = 10**9
    done: list[Job] = field(default_factory=list)

    def run(self, todo: Sequence[Job], tell: Tell) -> Iterator[tuple[int, Result]]:
        for number, result in LocalEngine(self.model).run(todo, tell):
            self.done.append(todo[number])
            yield number, result
            if len(self.done) == self.stop_after:
                raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["zero", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_equals_a_plan_of_its_own(models: dict[str, Model], family: str, kind: str) -> None:
    model = models[family]
    for site in model.sites:
        found = task_sweep(model, task_for(model), kind=kind, site=site, n=3)
        assert found.finished
        assert found.shape == (model.sites[site].n_layers, model.sites[site].n_heads)
        clean = ask(model, found.questions, Interventions())
        for place, head in enumerate(found.heads):
            rows = ask(model, found.questions, Interventions(HeadAblation([head], kind)))
            for metric in found.metrics:
                if metric in ("auc", "accuracy"):
                    continue
                expected = [row[metric] - before[metric] for row, before in zip(rows, clean, strict=True)]
                np.testing.assert_allclose(found.effects(metric)[:, place], expected, atol=2e-5)


def test_heads_of_a_long_text_are_several_jobs_with_the_same_numbers(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = models["llama"], word_task()
    whole = task_sweep(model, task, n=2)
    monkeypatch.setattr(jobs, "_ROWS_TOKENS", 16)
    monkeypatch.setattr(jobs, "_LEAST_HEADS", 3)
    engine = Counting(model)
    parts = task_sweep(model, task, n=2, engine=engine)
    assert len(engine.done) > 2
    np.testing.assert_allclose(parts.effects("logit_diff"), whole.effects("logit_diff"), atol=1e-6)


def test_it_grows_prompt_by_prompt_and_tells_how_far_it_is(models: dict[str, Model]) -> None:
    told: list[tuple[int, int]] = []
    steps = list(task_sweep_steps(models["gpt2"], word_task(), n=5, progress=lambda *at: told.append(at)))
    assert [step.n for step in steps] == [1, 2, 3, 4, 5]
    assert [step.finished for step in steps] == [False] * 4 + [True]
    assert told[-1] == (5 * len(steps[0].heads),) * 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    np.testing.assert_array_equal(steps[1].effects("log_prob"), steps[4].effects("log_prob")[:2])
    assert len({q.prompt.template for q in steps[4].measured}) == 5


def test_a_stopped_sweep_goes_on_and_a_second_look_runs_nothing(models: dict[str, Model], tmp_path: Path) -> None:
    model, task, store = models["llama"], word_task(), ResultStore(tmp_path / "a" / "results.sqlite")
    plain = task_sweep(model, task, n=6)
    stopped = Counting(model, stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        task_sweep(model, task, n=6, store=store, engine=stopped)
    rest = Counting(model)
    steps = list(task_sweep_steps(model, task, n=6, store=store, engine=rest))
    assert steps[0].n == steps[0].n_kept == 3
    assert len(rest.done) == 3
    np.testing.assert_array_equal(steps[-1].effects("logit_diff"), plain.effects("logit_diff"))
    again = Counting(model)
    instant = task_sweep(model, task, n=6, store=store, engine=again)
    assert not again.done
    assert instant.finished
    assert instant.runs_per_second == 0
    np.testing.assert_array_equal(instant.effects("logit_diff"), plain.effects("logit_diff"))


def test_kept_results_are_of_this_kind_and_this_model_alone(models: dict[str, Model], tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results.sqlite")
    task_sweep(models["llama"], word_task(), n=2, store=store)
    for model, kind in ((models["llama"], "mean"), (models["gpt2"], "zero")):
        engine = Counting(model)
        found = task_sweep(model, word_task(), n=2, kind=kind, store=store, engine=engine)
        assert len(engine.done) == 2
        np.testing.assert_array_equal(
            found.effects("logit_diff"), task_sweep(model, word_task(), n=2, kind=kind).effects("logit_diff")
        )


def test_an_evaluation_goes_on_and_its_second_look_runs_nothing(models: dict[str, Model], tmp_path: Path) -> None:
    model, task, store = models["llama"], word_task(), ResultStore(tmp_path / "results.sqlite")
    plans = [Interventions(HeadAblation(["L0H1"])), Interventions(HeadAblation(["L1H2"], "mean"))]
    stopped = Counting(model, stop_after=4)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, task, plans, n_controls=2, store=store, engine=stopped)
    rest, again = Counting(model), Counting(model)
    found = evaluate(model, task, plans, n_controls=2, store=store, engine=rest)
    before = sum(len(job.questions) for job in stopped.done if isinstance(job, PlanJob))
    after = sum(len(job.questions) for job in rest.done if isinstance(job, PlanJob))
    assert before + after == len(task.prompts) * (1 + 2 + 2 * 2)
    evaluate(model, task, plans, n_controls=2, store=store, engine=again)
    assert not again.done
    plain = evaluate(model, task, plans, n_controls=2)
    for kept, measured in zip((*found.changed, *found.controls[1]), (*plain.changed, *plain.controls[1]), strict=True):
        for a, b in zip(kept, measured, strict=True):
            assert a == pytest.approx(b, abs=1e-5)


def test_maps_are_means_with_the_intervals_of_single_heads(models: dict[str, Model]) -> None:
    sweep = task_sweep(models["llama"], word_task())
    effects = sweep.effects("logit_diff")
    found = head_map(sweep, "logit_diff")
    assert found.n == 18
    assert found.n_clusters == 6
    np.testing.assert_allclose(found.mean.ravel(), effects.mean(axis=0))
    for place in (0, 5):
        one = cluster_interval(effects[:, place], sweep.clusters, n_resamples=4000)
        spread = one.high - one.low
        assert found.low.ravel()[place] == pytest.approx(one.low, abs=0.1 * spread)
        assert found.high.ravel()[place] == pytest.approx(one.high, abs=0.1 * spread)
    assert (found.p_adjusted >= found.p - 1e-12).all()
    strongest, place = found.ranking(sweep.heads)[0]
    assert abs(found.mean.ravel()[place]) == np.abs(found.mean).max()
    assert sweep.heads[place] == strongest
    parts = slice_effects(sweep, "logit_diff")
    assert [(part.slice, part.value, part.n) for part in parts] == [("half", "0", 9), ("half", "1", 9)]
    np.testing.assert_allclose(parts[1].mean, effects[[place for place, q in enumerate(sweep.measured)
                                                       if q.prompt.slices["half"] == "1"]].mean(axis=0))  # fmt: skip


def test_heads_found_on_one_half_are_measured_on_the_other(models: dict[str, Model]) -> None:
    sweep = task_sweep(models["llama"], word_task())
    first, second = halves(sweep.clusters, sweep.seed)
    names = sweep.clusters
    assert not {names[place] for place in first} & {names[place] for place in second}
    assert sorted(first + second) == list(range(18))
    found = held_out(sweep, "logit_diff", top=3)
    effects = sweep.effects("logit_diff")
    chosen = effects[first].mean(axis=0)
    assert [item.head for item in found] == [sweep.heads[p] for p in np.argsort(-np.abs(chosen))[:3]]
    for item in found:
        place = sweep.heads.index(item.head)
        assert item.found == pytest.approx(chosen[place])
        assert item.again.mean == pytest.approx(effects[second, place].mean())


def test_the_auc_of_each_head_is_that_of_its_own_scores(models: dict[str, Model]) -> None:
    model = models["bert-encoder"]
    sweep = task_sweep(model, task_for(model))
    head = 4
    near, far = (np.array([r.heads[name][head] for r in sweep.results]) for name in ("cosine", "foil_cosine"))
    auc = np.mean(near[:, None] > far[None, :])
    clean = sweep.clean("auc").mean()
    assert sweep.effects("auc")[:, head].mean() == pytest.approx(auc - clean)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gradient_is_the_slope_of_scaling_a_head_down(models: dict[str, Model], family: str) -> None:
    model = models[family]
    base = Interventions(HeadAblation([f"{next(iter(model.sites))}.L0H0"])) if family in ("t5", "llama") else None
    question = questions_for(model, task_for(model))[0][0]
    for site in model.sites:
        estimates = question_estimates(model, question, "zero", site, base)
        for metric, found in estimates.items():
            for layer, head in ((0, 1), (1, 2)):
                scores = []
                for factor in (0.998, 1.002):
                    scale = HeadAblation([f"{site}.L{layer}H{head}"], "scale", factor=factor)
                    scores.append(ask(model, [question], Interventions([*(base or ()), scale]))[0][metric])
                slope = (scores[0] - scores[1]) / 0.004
                assert found[layer, head] == pytest.approx(slope, abs=4e-3, rel=3e-2)


def test_michels_score_is_the_mean_size_of_the_estimated_loss(models: dict[str, Model]) -> None:
    *_, last = task_gradient_steps(models["gpt2"], word_task(), n=4)
    assert (last.n, last.total) == (4, 4)
    np.testing.assert_allclose(last.importance, np.abs(last.estimates["log_prob"]).mean(axis=0))
    assert (last.importance >= np.abs(last.estimates["log_prob"].mean(axis=0)) - 1e-12).all()


def curves(model: Model, **options: object) -> Pruning:
    *_, last = pruning_steps(model, word_task(), n_steps=4, n_random=2, **options)  # type: ignore[arg-type]
    return last


def test_a_pruning_curve_is_a_row_of_plans(models: dict[str, Model]) -> None:
    model = models["llama"]
    found = curves(model, orders=("ascending", "recomputed", "reverse", "random"))
    heads = model.n_layers * model.n_heads
    assert found.counts == (0, 2, 4, 6, 8)
    assert found.finished
    assert [(curve.order, curve.draw) for curve in found.curves] == [
        ("ascending", 0), ("recomputed", 0), ("reverse", 0), ("random", 0), ("random", 1)
    ]  # fmt: skip
    for curve in found.curves:
        assert len(curve.removed) == len(set(curve.removed)) == heads
        plan = found.plan(curve, 2)
        assert set(plan.heads) == set(curve.removed[:4])
        rows = ask(model, found.questions, plan)
        assert [row["logit_diff"] for row in curve.rows[2]] == pytest.approx([r["logit_diff"] for r in rows], abs=1e-5)
        assert not found.plan(curve, 0)
    ascending, _, reverse, one, two = (curve.removed for curve in found.curves)
    assert ascending == reverse[::-1]
    assert one != two
    assert [c.removed for c in curves(model, orders=("random",)).curves] == [one, two]


def test_the_order_is_found_on_other_templates_than_the_curve(models: dict[str, Model]) -> None:
    model = models["llama"]
    sweep = task_sweep(model, word_task())
    found = curves(model, orders=("ascending",), importance=sweep)
    asked = {question.prompt.template for question in found.questions}
    places = [place for place, name in enumerate(sweep.clusters) if name not in asked]
    falls = -sweep.effects("log_prob", places).mean(axis=0)
    assert found.curves[0].removed == tuple(sweep.heads[place] for place in np.argsort(falls, kind="stable"))
    assert "exact" in found.importance
    with pytest.raises(InterventionError, match="both must be alike"):
        curves(model, orders=("ascending",), importance=sweep, kind="mean")


def test_where_a_curve_breaks_is_told_by_slice(models: dict[str, Model]) -> None:
    found = curves(models["llama"], orders=("ascending",))
    curve = found.curves[0]
    scores = [1.0, 1.0, 0.74, 0.9, 0.5]  # half of what is above chance is 0.75
    planted = replace(curve, rows=tuple(tuple({"accuracy": score} for _ in found.questions) for score in scores))
    assert found.breaks_at(planted, "accuracy") == found.counts[2]
    places = found.slices()["half"]["0"]
    rows = [list(point) for point in planted.rows]
    for place in places:
        rows[1][place] = {"accuracy": 0.0}
    assert found.breaks_at(replace(planted, rows=tuple(map(tuple, rows))), "accuracy", places) == found.counts[1]
    never = replace(curve, rows=tuple(tuple({"accuracy": 1.0} for _ in found.questions) for _ in scores))
    assert found.breaks_at(never, "accuracy") is None
    assert found.score(never, 1, "accuracy").mean == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [({"kind": "uniform"}, "kind is 'uniform'"), ({"site": "cross"}, "site is 'cross'"),
     ({"orders": ("sideways",)}, "order is sideways")],
)  # fmt: skip
def test_what_cannot_be_done_is_said(models: dict[str, Model], options: dict[str, object], says: str) -> None:
    with pytest.raises(InterventionError, match=says):
        curves(models["llama"], **options)
    if "orders" not in options:
        with pytest.raises(InterventionError, match=says):
            task_sweep(models["llama"], word_task(), **options)  # type: ignore[arg-type]


def test_a_curve_needs_two_templates(models: dict[str, Model]) -> None:
    task = replace(word_task(), prompts=tuple(replace(p, template="one") for p in word_task().prompts))
    with pytest.raises(TaskError, match="two templates"):
        next(pruning_steps(models["llama"], task))


def test_questions_are_chosen_by_the_seed(models: dict[str, Model]) -> None:
    texts = [[q.prompt.text for q in chosen_questions(models["llama"], word_task(), 5, seed)[0]] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_map_of_smollm2_names_the_heads_that_matter_for_the_indirect_object() -> None:
    from mha_core.task_sets import built_in

    model = load_model("smollm2-135m-instruct")
    steps: list[TaskSweep] = list(task_sweep_steps(model, built_in("indirect-object", model), n=2))
    found = head_map(steps[-1], "logit_diff")
    plans = [Interventions(HeadAblation([head])) for head, _ in found.ranking(steps[-1].heads, 3)]
    for plan, (_, place) in zip(plans, found.ranking(steps[-1].heads, 3), strict=True):
        rows, clean = (ask(model, steps[-1].questions, item) for item in (plan, Interventions()))
        expected = np.mean([a["logit_diff"] - b["logit_diff"] for a, b in zip(rows, clean, strict=True)])
        assert found.mean.ravel()[place] == pytest.approx(expected, abs=2e-4)
        assert abs(expected) > 0.5
