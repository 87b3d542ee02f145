"""Tasks: templates and slices as promised, and rows that cannot be used are named with the reason."""

from __future__ import annotations

from collections import Counter

import pytest

from mha_core import Model, load_model
from mha_core.questions import questions_for
from mha_core.task_sets import built_in, offered, task_names
from mha_core.task_similarity import similarity
from mha_core.task_words import agreement, indirect_object, pronoun
from mha_core.task_words_by_frequency import KINDS, NAMES, NOUNS, OPPOSITES, PEOPLE, PLACES, SUBJECTS
from mha_core.tasks import Prompt, Task, TaskError
from tests.tiny import tiny_model_dir

MAKERS = (agreement, indirect_object, pronoun, similarity)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir("llama", tmp_path_factory)))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(str(tiny_model_dir("bert-encoder", tmp_path_factory)))


@pytest.mark.parametrize("make", MAKERS)
def test_a_task_has_twenty_templates_hundreds_of_prompts_and_repeats_with_its_seed(make: object) -> None:
    assert callable(make)
    task = make(3)
    assert len(task.templates) >= 20
    assert len(task.prompts) >= 300
    assert len({(p.text, p.target, p.foil) for p in task.prompts}) == len(task.prompts)
    assert task.prompts == make(3).prompts
    assert task.prompts != make(4).prompts


def test_the_right_verb_agrees_with_the_subject() -> None:
    for prompt in agreement(0).prompts:
        assert (prompt.target in (" are", " were", " have")) == (prompt.slices["subject"] == "plural")
        assert {prompt.target, prompt.foil} in ({" is", " are"}, {" was", " were"}, {" has", " have"})


def test_slices_of_agreement_are_balanced() -> None:
    prompts = agreement(0).prompts
    for name in ("subject", "word"):
        first = sum(p.slices[name] == prompts[0].slices[name] for p in prompts)
        assert abs(2 * first - len(prompts)) < 0.05 * len(prompts)
    assert {p.slices["attractors"] for p in prompts} == {"none", "one", "two"}
    assert {p.slices["between"] for p in prompts} == {"nothing", "phrase", "relative clause"}


def test_attractors_are_of_the_number_that_is_said() -> None:
    found = {(p.slices["subject"], p.slices["attractor number"]): p.slices["attractor against subject"]
             for p in agreement(0).prompts}  # fmt: skip
    assert found == {
        ("singular", "none"): "none", ("singular", "singular"): "same", ("singular", "plural"): "other",
        ("singular", "mixed"): "mixed", ("plural", "none"): "none", ("plural", "singular"): "other",
        ("plural", "plural"): "same", ("plural", "mixed"): "mixed",
    }  # fmt: skip
    for prompt in agreement(0).prompts:
        words = prompt.text.split()
        nouns = [word.removesuffix("s") in NOUNS.frequent + NOUNS.rare for word in words]
        plurals = [word.endswith("s") for word, noun in zip(words, nouns, strict=True) if noun]
        assert plurals[0] == (prompt.slices["subject"] == "plural")
        kind = {(): "none", (True,): "plural", (False,): "singular"}.get(tuple(sorted(set(plurals[1:]))), "mixed")
        assert (len(plurals) - 1, kind) == (
            ("none", "one", "two").index(prompt.slices["attractors"]), prompt.slices["attractor number"]
        )  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_frequent_and_rare_words_are_a_slice_with_many_prompts_each(make: object) -> None:
    assert callable(make)
    prompts = make(0).prompts
    counts = Counter(prompt.slices["word"] for prompt in prompts)
    assert set(counts) == {"frequent", "rare"}
    assert min(counts.values()) > 0.45 * len(prompts)


@pytest.mark.parametrize("make", [agreement, indirect_object, pronoun])
def test_the_right_word_is_a_slice_and_none_is_nearly_always_right(make: object) -> None:
    assert callable(make)
    prompts = make(0).prompts
    assert all(prompt.slices["answer"] == prompt.target.strip() for prompt in prompts)
    counts = Counter(prompt.slices["answer"] for prompt in prompts)
    assert max(counts.values()) < 0.35 * len(prompts)


def test_no_word_is_both_frequent_and_rare() -> None:
    pools = (NOUNS, NAMES, PEOPLE, PLACES, *SUBJECTS.values(), *KINDS.values(), *OPPOSITES.values())
    frequent, rare = ({word for pool in pools for word in pool.of(which)} for which in ("frequent", "rare"))
    assert not frequent & rare


def test_the_indirect_object_is_mentioned_once_and_in_the_order_that_is_said() -> None:
    for prompt in indirect_object(0).prompts:
        once, twice = prompt.target.strip(), (prompt.foil or "").strip()
        assert (prompt.text.count(once), prompt.text.count(twice)) == (1, 2)
        assert (prompt.text.index(once) < prompt.text.index(twice)) == (prompt.slices["order"] == "ABBA")


def test_a_small_sample_already_comes_from_many_templates() -> None:
    task = agreement(0)
    assert len({p.template for p in task.sample(24, seed=5).prompts}) == 24
    assert task.sample(24, seed=5) == task.sample(24, seed=5)
    assert sorted(p.text for p in task.sample(None).prompts) == sorted(p.text for p in task.prompts)


def test_a_balanced_sample_has_each_value_in_proportion() -> None:
    prompts = tuple(Prompt(f"{i}", " a", " b", f"{i}", {"d": "long" if i < 10 else "short"}) for i in range(100))
    task = Task("t", "T", "", prompts, balanced="d")
    for n in (10, 20, 50):
        assert sum(p.slices["d"] == "long" for p in task.sample(n, seed=3).prompts) == n // 10
    assert set(task.sample(None).prompts) == set(prompts)


def test_every_prompt_is_usable_or_refused_with_a_reason(model: Model) -> None:
    task = Task("t", "T", "", (Prompt("the cat", " the", " a"), Prompt("the cat", " Constantinople", " a"),
                               Prompt("the cat", " a", " a"), Prompt("word " * 300, " the", " a")))  # fmt: skip
    questions, refused = questions_for(model, task)
    assert [q.prompt.text for q in questions] == ["the cat"]
    assert [r.row for r in refused] == [2, 3, 4]
    assert "tokens for this model" in refused[0].reason
    assert "same token" in refused[1].reason
    assert "this model takes" in refused[2].reason


def test_a_model_is_not_given_what_it_cannot_do(model: Model, encoder: Model) -> None:
    with pytest.raises(TaskError, match="sentence encoders"):
        built_in("similarity", model)
    with pytest.raises(TaskError, match="no words to predict"):
        built_in("agreement", encoder)
    with pytest.raises(TaskError, match="is not a task; there are agreement"):
        built_in("syntax", model)
    with pytest.raises(TaskError, match="fills no gaps"):
        built_in("masked-word", model)
    with pytest.raises(TaskError, match="date translator"):
        built_in("dates", model)
    assert len(task_names()) == 7


def test_tasks_are_offered_where_their_answers_are_single_tokens(model: Model, encoder: Model) -> None:
    assert [task.name for task in offered(encoder)] == ["similarity"]
    assert offered(model) == (), "its 320 tokens hold neither verbs nor names"
