"""Evaluation: batches equal single runs, results grow, repeat and can be stopped; controls are what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cosine_similarity

from mha_core import AttentionKnockout, HeadAblation, HeadRef, InterventionError, Interventions, Model, load_model
from mha_core.batched import ask, buckets
from mha_core.evaluation import Evaluation, evaluate, evaluation_steps, plans_of, random_plans
from mha_core.evaluation_report import as_text
from mha_core.questions import questions_for
from mha_core.task_sets import built_in
from mha_core.tasks import Prompt, Task, TaskError
from tests.tiny import SENTENCES, tiny_model_dir

PLANS = {
    "nothing": Interventions(),
    "zero": Interventions(HeadAblation(["L0H1", "L1H2"])),
    "mean": Interventions(HeadAblation(["L0H1", "L1H2"], "mean")),
    "own mean": Interventions(HeadAblation(["L0H1"], "mean", reference="sentence")),
    "half": Interventions(HeadAblation(["L1H0"], "scale", factor=0.5)),
    "uniform": Interventions(HeadAblation(["L0H0", "L0H3"], "uniform")),
    "last position": Interventions(HeadAblation(["L1H0", "L0H2"], positions=[-1])),
    "knockout": Interventions(AttentionKnockout([0], [2, -1])),
}
FAMILIES = ("llama", "gpt2", "opt", "mistral", "gemma2", "bert", "roberta", "modernbert")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    names = (*FAMILIES, "bert-encoder")
    return {name: load_model(str(tiny_model_dir(name, tmp_path_factory))) for name in names}


def word_task() -> Task:
    """Prompts of many lengths, one letter against another: a token in every family."""
    prompts = [
        Prompt(" ".join(text.split()[: 3 + number % 9]), ",", ".", f"t{number % 6}", {"length": str(number % 2)})
        for number, text in enumerate(SENTENCES)
    ]
    return Task("words", "Words", "", tuple(prompts))


def sentence_task() -> Task:
    prompts = [
        Prompt(SENTENCES[i], SENTENCES[i - 1], SENTENCES[i - 2], f"t{i % 5}", {"half": str(i % 2)}) for i in range(12)
    ]
    return Task("sentences", "Sentences", "", tuple(prompts), "similarity")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_equals_one_run_per_prompt(models: dict[str, Model], family: str, plan: str) -> None:
    model = models[family]
    questions, refused = questions_for(model, word_task())
    assert not refused
    rows = ask(model, questions[:18], PLANS[plan])
    for question, row in zip(questions[:18], rows, strict=True):
        logits = model.run_prepared(question.texts[0], PLANS[plan]).logits
        assert logits is not None
        line, target, foil = logits[question.positions[0]], question.targets[0], question.foils[0]
        assert row["logit_diff"] == pytest.approx(float(line[target] - line[foil]), abs=1e-5)
        assert row["log_prob"] == pytest.approx(float(line.log_softmax(-1)[target]), abs=1e-5)
        if model.kind == "causal-lm":
            ids = torch.tensor(question.texts[0].tokens.ids)
            loss = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
            assert row["loss"] == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.parametrize("plan", PLANS)
def test_sentences_in_a_batch_equal_single_runs(models: dict[str, Model], plan: str) -> None:
    model = models["bert-encoder"]
    questions, _ = questions_for(model, sentence_task())
    for question, row in zip(questions, ask(model, questions, PLANS[plan]), strict=True):
        text, target, foil = (model.run_prepared(item, PLANS[plan]).hidden.mean(dim=0) for item in question.texts)
        assert row["cosine"] == pytest.approx(float(cosine_similarity(text, target, dim=0)), abs=1e-5)
        assert row["foil_cosine"] == pytest.approx(float(cosine_similarity(text, foil, dim=0)), abs=1e-5)


def test_batches_are_padded_and_every_prompt_is_in_one(models: dict[str, Model]) -> None:
    lengths = [5, 9, 5, 7, 6, 30, 5]
    assert sorted(n for batch in buckets(lengths, "padded") for n in batch) == list(range(7))
    assert any(len({lengths[n] for n in batch}) > 1 for batch in buckets(lengths, "padded"))
    assert all(len({lengths[n] for n in batch}) == 1 for batch in buckets(lengths, "equal"))
    assert [len(batch) for batch in buckets(lengths, "single")] == [1] * 7


def test_results_grow_and_repeat_with_the_seed(models: dict[str, Model]) -> None:
    plans = [PLANS["zero"], PLANS["mean"]]
    seen: list[tuple[int, int]] = []
    steps = list(evaluation_steps(models["llama"], word_task(), plans, first=6, n_controls=2, seed=3,
                                  progress=lambda done, total: seen.append((done, total))))  # fmt: skip
    assert [step.n for step in steps] == [6, 6, 12, 24, 30]
    assert not any(steps[0].control_plans), "what was asked for comes before the random heads"
    assert steps[0].changed == steps[1].changed
    assert all(len(group) == 2 for group in steps[1].controls)
    assert [step.finished for step in steps] == [False, False, False, False, True]
    assert steps[0].clean == steps[-1].clean[:6]
    assert seen[-1] == (7 * 30, 7 * 30)  # clean, two plans, two controls of each
    again = evaluate(models["llama"], word_task(), plans, n_controls=2, seed=3)
    for metric in again.metrics:
        for one, other in zip(steps[-1].compared(metric), again.compared(metric), strict=True):
            assert one.difference.mean == pytest.approx(other.difference.mean, abs=1e-6)
            assert one.p == pytest.approx(other.p, abs=0.01)
    twice = evaluate(models["llama"], word_task(), plans, n_controls=2, seed=3)
    assert twice.compared("log_prob") == again.compared("log_prob")


def test_few_prompts_are_finished_with_their_random_heads(models: dict[str, Model]) -> None:
    steps = list(evaluation_steps(models["llama"], word_task(), [PLANS["zero"]], n=4, n_controls=1))
    assert [(step.n, step.finished) for step in steps] == [(4, False), (4, True)]
    assert [step.finished for step in evaluation_steps(models["llama"], word_task(), [], n=4)] == [True]


def drain(running: Iterator[Evaluation], into: list[Evaluation]) -> None:
    for step in running:
        into.append(step)  # one by one: what came before the stop has to stay


def test_it_can_be_stopped_and_what_it_yielded_stays(models: dict[str, Model]) -> None:
    class StopError(Exception):
        pass

    def progress(done: int, total: int) -> None:
        if done > total / 2:
            raise StopError

    steps: list[Evaluation] = []
    running = evaluation_steps(models["llama"], word_task(), [PLANS["zero"]], first=4, progress=progress)
    with pytest.raises(StopError):
        drain(running, steps)
    assert 0 < steps[-1].n < steps[-1].total
    assert steps[-1].compared("accuracy")[0].difference.n == steps[-1].n


def test_differences_are_the_changed_run_minus_the_clean_one(models: dict[str, Model]) -> None:
    found = evaluate(models["llama"], word_task(), [PLANS["zero"]], n_controls=0)
    (item,) = found.compared("logit_diff")
    assert item.changed - item.clean == pytest.approx(item.difference.mean)
    by_hand = [b["logit_diff"] - a["logit_diff"] for a, b in zip(found.clean, found.changed[0], strict=True)]
    assert item.difference.mean == pytest.approx(sum(by_hand) / 30)
    slices = found.by_slice("logit_diff")
    assert {(s.slice, s.value) for s in slices} == {("length", "0"), ("length", "1")}
    assert sum(s.difference.mean * s.difference.n for s in slices) == pytest.approx(sum(by_hand))


def test_prompts_that_turned_are_those_whose_accuracy_changed(models: dict[str, Model]) -> None:
    found = evaluate(models["llama"], word_task(), [PLANS["zero"]], n=4, n_controls=0)
    rows = [{**row, "accuracy": a} for row, a in zip(found.clean, (1.0, 1.0, 0.0, 0.0), strict=True)]
    after = [{**row, "accuracy": a} for row, a in zip(found.changed[0], (1.0, 0.0, 1.0, 0.0), strict=True)]
    flips = replace(found, clean=tuple(rows), changed=(tuple(after),)).flipped(0)
    assert [(flip.question, flip.right_now) for flip in flips] == [
        (found.questions[1], False), (found.questions[2], True)
    ]  # fmt: skip
    assert [(flip.before, flip.after) for flip in flips] == [
        (found.clean[place]["logit_diff"], found.changed[0][place]["logit_diff"]) for place in (1, 2)
    ]


def test_controls_are_as_many_other_heads_switched_off_alike(models: dict[str, Model]) -> None:
    model, plan = models["llama"], PLANS["mean"]
    drawn = random_plans(model, plan, 5, seed=1)
    assert drawn == random_plans(model, plan, 5, seed=1)
    assert len(set(drawn)) > 1
    for other in drawn:
        assert len(other.heads) == 2
        assert not set(other.heads) & set(plan.heads)
        assert other.ablations[0].kind == "mean"
    zero = random_plans(model, PLANS["zero"], 5, seed=1)
    assert [p.heads for p in zero] == [p.heads for p in drawn]
    assert random_plans(model, PLANS["knockout"], 5, seed=1) == ()
    everything = Interventions(HeadAblation([HeadRef(0, h) for h in range(4)] + [HeadRef(1, h) for h in range(4)]))
    assert random_plans(model, everything, 5, seed=1) == ()


def test_encoders_have_an_auc(models: dict[str, Model]) -> None:
    found = evaluate(models["bert-encoder"], sentence_task(), [PLANS["zero"]], n_controls=1)
    assert "auc" in found.metrics
    assert 0 <= found.clean_score("auc").mean <= 1


def test_without_foils_the_target_must_be_the_most_likely_word(models: dict[str, Model]) -> None:
    model = models["llama"]
    task = word_task()
    top = []
    for prompt in task.prompts[:5]:
        logits = model.run(prompt.text).logits
        assert logits is not None
        top.append(int(logits[-1].argmax()))
    questions, _ = questions_for(model, replace(task, prompts=task.prompts[:5]))
    right = [replace(q, targets=(t,), foils=()) for q, t in zip(questions, top, strict=True)]
    assert [row["accuracy"] for row in ask(model, right, Interventions())] == [1.0] * 5
    wrong = [replace(q, targets=((t + 1) % 300,), foils=()) for q, t in zip(questions, top, strict=True)]
    assert [row["accuracy"] for row in ask(model, wrong, Interventions())] == [0.0] * 5


def test_what_cannot_be_done_is_said(models: dict[str, Model]) -> None:
    with pytest.raises(InterventionError, match="L7H0"):
        evaluate(models["llama"], word_task(), plans_of("L7H0", "zero"))
    with pytest.raises(InterventionError, match="it must be of zero, mean, uniform"):
        plans_of("L0H0", "none")
    none = Task("t", "T", "", (Prompt("the cat", " Constantinople", " the"),))
    with pytest.raises(TaskError, match="No prompt of"):
        evaluate(models["llama"], none, [])


def test_two_heads_of_smollm2_matter_for_the_indirect_object_at_zero_and_not_at_their_mean() -> None:
    model = load_model("smollm2-135m-instruct")
    task = built_in("indirect-object", model)
    plans = plans_of("L1H3,L1H5", "zero,mean")
    found = evaluate(model, task, plans, n=12, n_controls=0)
    zero, mean = found.compared("logit_diff")
    assert found.clean_score().mean >= 0.8
    assert zero.difference.high < -2
    assert zero.p_holm is not None
    assert zero.p_holm < 0.01
    assert abs(mean.difference.mean) < 0.5
    question = found.questions[3]
    logits = model.run(question.prompt.text).logits
    assert logits is not None
    target, foil = (float(logits[-1, number]) for number in (*question.targets, *question.foils))
    assert found.clean[3]["logit_diff"] == pytest.approx(target - foil, abs=1e-4)


def date_task() -> Task:
    texts = ("the 3rd of March, 2021", "December 31, 2007", "3.3.2021", "Wednesday, July 25th 1979", "no date at all")
    targets = ("2021-03-03", "2007-12-31", "2021-04-03", "1979-07-25", "2000-01-01")
    prompts = [Prompt(text, target, template=text) for text, target in zip(texts, targets, strict=True)]
    return Task("dates", "Dates", "", tuple(prompts), "sequence")


@pytest.mark.parametrize("plan", [Interventions(), Interventions(HeadAblation(["cross.L0H2", "enc.L1H0"])),
                                  Interventions(HeadAblation(["dec.L0H1"], positions=[-1]))], ids=str)  # fmt: skip
def test_what_an_encoder_decoder_writes_is_right_where_every_token_is(plan: Interventions) -> None:
    model = load_model("date-translator")
    questions, refused = questions_for(model, date_task())
    assert not refused
    rows = ask(model, questions, plan)
    for question, row in zip(questions, rows, strict=True):
        logits = model.run_prepared(question.texts[0], plan).logits
        assert logits is not None
        steps = logits.log_softmax(-1)[range(len(logits)), list(question.targets)]
        assert row["log_prob"] == pytest.approx(float(steps.sum()), abs=1e-4)
        assert row["loss"] == pytest.approx(-float(steps.mean()), abs=1e-5)
    if not plan:
        written = [model.run(question.prompt.text).tokens.text for question in questions]
        assert [row["accuracy"] == 1 for row in rows] == [
            text == question.prompt.target for text, question in zip(written, questions, strict=True)
        ]
        assert [row["accuracy"] for row in rows] == [1, 1, 0, 1, 0]


def test_a_task_is_refused_by_a_model_of_another_kind(models: dict[str, Model]) -> None:
    with pytest.raises(TaskError, match="writes no text from a text"):
        questions_for(models["llama"], date_task())
    with pytest.raises(TaskError, match="is an encoder-decoder"):
        questions_for(load_model("date-translator"), word_task())


def test_a_terminal_shows_the_ends_of_a_slice_with_many_values(models: dict[str, Model]) -> None:
    prompts = tuple(
        Prompt(f"{text[:20]} {text[25:40]}", ",", ".", f"t{i % 6}", {"many": f"v{i % 13}", "few": str(i % 2)})
        for i, text in enumerate(SENTENCES[:26])
    )
    result = evaluate(models["llama"], Task("t", "T", "", prompts), plans_of("L0H1", "zero"), n_controls=0)
    lines = as_text(result).splitlines()
    assert sum("many: v" in line for line in lines) == 6
    assert any("… 7 values of many between" in line for line in lines)
    assert sum("few: " in line for line in lines) == 2
    ordered = sorted((i for i in result.by_slice("logit_diff") if i.slice == "many"), key=lambda i: i.difference.mean)
    assert f"many: {ordered[0].value} " in next(line for line in lines if "many: v" in line)
