"""Tasks: templates and slices as promised, and rows that cannot be used are named with the reason."""

from __future__ import annotations

import pytest

from mha_core import Model, load_model
from mha_core.questions import questions_for
from mha_core.task_files import EXAMPLE_CSV, MAX_ROWS, read_task
from mha_core.task_sets import built_in, offered, task_names
from mha_core.task_similarity import similarity
from mha_core.task_words import agreement, indirect_object, pronoun
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
    plural = sum(p.slices["subject"] == "plural" for p in prompts)
    assert abs(2 * plural - len(prompts)) < 0.05 * len(prompts)
    assert {p.slices["attractors"] for p in prompts} == {"none", "one", "two"}


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
    assert len(task_names()) == 5


def test_tasks_are_offered_where_their_answers_are_single_tokens(model: Model, encoder: Model) -> None:
    assert [task.name for task in offered(encoder)] == ["similarity"]
    assert offered(model) == (), "its 320 tokens hold neither verbs nor names"


def test_a_file_gives_prompts_slices_and_the_rows_that_cannot_be_used() -> None:
    text = (
        "prompt,target,foil,kind\n"
        "The cat,is,are,one\n"
        ",is,are,one\n"
        "The cats,,is,many\n"
        "The dogs,are,,many\n"
        "The dog,is,are,one,extra\n"
        f"{'x' * 10_001},is,are,one\n"
    )
    own = read_task(text.encode(), "mine.csv")
    assert [(p.text, p.target, p.foil, dict(p.slices)) for p in own.task.prompts] == [
        ("The cat", " is", " are", {"kind": "one"})
    ]
    assert [r.row for r in own.refused] == [2, 3, 4, 5, 6]
    words = ("prompt is empty", "target is empty", "foil is missing", "5 cells", "10,001 characters")
    assert all(word in refused.reason for word, refused in zip(words, own.refused, strict=True))


def test_json_lines_give_the_same_and_a_foil_is_optional() -> None:
    lines = '{"prompt": "The cat", "target": "is", "n": 3}\nnot json\n{"prompt": "A", "target": ["x"]}\n'
    own = read_task(lines.encode(), "mine.jsonl")
    assert not own.task.has_foils
    assert own.task.prompts[0].slices == {"n": "3"}
    assert [r.row for r in own.refused] == [2, 3]


def test_the_example_file_is_a_task() -> None:
    own = read_task(EXAMPLE_CSV.encode("utf-8-sig"), "example.csv")
    assert own.refused == ()
    assert own.task.templates == ("cabinet",)
    assert own.task.slice_names == ("subject",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"text,answer\na,b\n", "prompt and target must be among them"),
        (b"", "names the columns nothing"),
        (b"prompt,target\n,\n", "no row that can be used"),
        (b"prompt,target\n" + b"a,b\n" * (MAX_ROWS + 1), "more than 5,000 rows"),
        (b"a" * 2_000_001, "Split it"),
        (("prompt,target," + ",".join(f"s{i}" for i in range(21)) + "\na,b" + ",1" * 21).encode(), "21 slice columns"),
    ],
)
def test_a_file_that_is_no_task_is_refused_in_a_sentence(data: bytes, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        read_task(data, "mine.csv")
