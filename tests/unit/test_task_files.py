"""Tasks of one's own: files as programs write them, and rows that cannot be used, each with its reason."""

from __future__ import annotations

import json

import pytest

from mha_core import load_model
from mha_core.questions import questions_for
from mha_core.task_files import EXAMPLE_CSV, OwnTask, example_file, question_for, read_task
from mha_core.task_rows import MAX_ROWS
from mha_core.tasks import TaskError
from tests.tiny import tiny_model_dir

CSV = "prompt,target,foil,kind\nThe cat,is,are,one\nThe cats,are,is,many\n"


def test_a_file_gives_prompts_slices_and_the_rows_that_cannot_be_used() -> None:
    text = (
        "prompt,target,foil,kind\n"
        "The cat,is,are,one\n"
        ",is,are,one\n"
        "The cats,,is,many\n"
        "The dogs,are,,many\n"
        "The dog,is,are,one,extra\n"
        f"{'x' * 10_001},is,are,one\n"
        f"The cow,{'x' * 10_001},are,one\n"
    )
    own = read_task(text.encode(), "mine.csv")
    assert [(p.text, p.target, p.foil, dict(p.slices)) for p in own.task.prompts] == [
        ("The cat", " is", " are", {"kind": "one"})
    ]
    assert [r.row for r in own.refused] == [2, 3, 4, 5, 6, 7]
    words = ("prompt is empty", "target is empty", "foil is missing", "5 cells", "prompt has 10,001 characters",
             "target has 10,001 characters")  # fmt: skip
    assert all(word in refused.reason for word, refused in zip(words, own.refused, strict=True))


def test_json_lines_give_the_same_and_a_foil_is_optional() -> None:
    lines = '{"prompt": "The cat", "target": "is", "n": 3}\nnot json\n{"prompt": "A", "target": ["x"]}\n[]\n'
    own = read_task(lines.encode(), "mine.jsonl")
    assert not own.task.has_foils
    assert own.task.prompts[0].slices == {"n": "3"}
    assert [r.row for r in own.refused] == [2, 3, 4]


def test_a_json_list_is_read_like_json_lines() -> None:
    records = [{"prompt": "The cat", "target": "is"}, {"prompt": "The dog", "target": "was"}]
    own = read_task(json.dumps(records).encode(), "mine.json")
    assert own.task.prompts == read_task("\n".join(map(json.dumps, records)).encode(), "mine.jsonl").task.prompts


@pytest.mark.parametrize(
    "data",
    [
        CSV.encode("utf-8-sig"),
        CSV.encode("utf-16"),
        ("\ufeff" + CSV).encode("utf-16-be"),
        CSV.replace(",", ";").encode(),
        CSV.replace(",", "\t").encode("utf-16"),
        CSV.replace("\n", "\r\n").encode(),
        CSV.replace("prompt,target", "Prompt, Target").encode(),
        ("\n" + CSV).encode(),
    ],
)
def test_a_file_is_read_as_spreadsheets_write_it(data: bytes) -> None:
    assert read_task(data, "mine.csv").task == read_task(CSV.encode(), "mine.csv").task


def test_rows_that_stand_there_twice_are_said_and_stay() -> None:
    own = read_task((CSV + "The cat,is,are,other\n" + "The cat,is,are,one\n").encode(), "mine.csv")
    assert len(own.task.prompts) == 4
    assert len(own.notes) == 1
    assert "row 3 (as row 1), row 4 (as row 1)" in own.notes[0]
    assert read_task(CSV.encode(), "mine.csv").notes == ()


def test_a_column_without_a_name_is_said_and_is_no_slice() -> None:
    own = read_task(b",prompt,target\n0,The cat,is\n1,The dog,was\n", "mine.csv")
    assert own.task.slice_names == ()
    assert "no name" in own.notes[0]


def test_half_a_character_is_refused_before_a_tokenizer_sees_it() -> None:
    own = read_task(b'{"prompt": "A \\ud83d", "target": "is"}\n{"prompt": "B", "target": "is"}\n', "mine.jsonl")
    assert [r.row for r in own.refused] == [1]
    assert "half a character" in own.refused[0].reason


@pytest.mark.parametrize("question", ["word", "similarity", "sequence"])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_the_example_files_are_tasks(question: str, ending: str) -> None:
    own = read_task(example_file(question, ending), f"example.{ending}", question=question)
    assert own.refused == ()
    assert own.notes == ()
    assert own.task.question == question
    assert len(own.task.slice_names) == 1
    assert len(own.task.prompts) == 2


def test_the_example_says_which_rows_are_alike() -> None:
    assert read_task(EXAMPLE_CSV.encode("utf-8-sig"), "example.csv").task.templates == ("cabinet",)


def _asked(family: str, own: OwnTask, factory: pytest.TempPathFactory) -> OwnTask:
    return own.asked_of(load_model(str(tiny_model_dir(family, factory))))


def test_what_a_file_asks_follows_from_the_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = read_task(CSV.encode(), "mine.csv")
    encoder = _asked("bert-encoder", own, tmp_path_factory).task
    assert (encoder.question, encoder.prompts[0].target, encoder.prompts[0].foil) == ("similarity", "is", "are")
    translator = load_model("date-translator")
    assert question_for(translator) == "sequence"
    sequence = own.asked_of(translator).task
    assert (sequence.prompts[0].target, sequence.prompts[0].foil) == ("is", None)
    assert "foils are not used" in sequence.says
    words = _asked("bert", own, tmp_path_factory)
    assert words == own, "and what was asked of another model is forgotten"


def test_a_file_for_a_sentence_encoder_needs_foils(tmp_path_factory: pytest.TempPathFactory) -> None:
    encoder = load_model(str(tiny_model_dir("bert-encoder", tmp_path_factory)))
    own = read_task(b"prompt,target\nThe cat sat.,A cat sat.\n", "mine.csv").asked_of(encoder)
    questions, refused = questions_for(encoder, own.task)
    assert questions == ()
    assert "foil is missing" in refused[0].reason


def test_a_sequence_that_is_too_long_is_refused_with_the_limit() -> None:
    model = load_model("date-translator")
    own = read_task(f"prompt,target\n3.4.2021,{'1' * 300}\n3.4.2021,2021-04-03\n".encode(), "m.csv").asked_of(model)
    questions, refused = questions_for(model, own.task)
    assert [q.prompt.row for q in questions] == [2]
    assert "too long" in refused[0].reason


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe\x00", "neither UTF-8 nor UTF-16"),
        (b"caf\xe9,a\n", "neither UTF-8 nor UTF-16"),
        (b"text,answer\na,b\n", "prompt and target must be among them"),
        (b"prompt,target,x,x\na,b,1,2\n", "names x more than once"),
        (b"", "names the columns nothing"),
        (b"prompt,target\n,\n", "no row that can be used"),
        (b"prompt,target\n", "no row that can be used"),
        (b"prompt,target\n" + b"a,b\n" * (MAX_ROWS + 1), "more than 5,000 rows"),
        (b"a" * 2_000_001, "Split it"),
        (("prompt,target," + ",".join(f"s{i}" for i in range(21)) + "\na,b" + ",1" * 21).encode(), "21 slice columns"),
    ],
)
def test_a_file_that_is_no_task_is_refused_in_a_sentence(data: bytes, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        read_task(data, "mine.csv")


def test_a_json_list_that_is_broken_is_refused_in_a_sentence() -> None:
    with pytest.raises(TaskError, match="no JSON"):
        read_task(b'[{"prompt": "a", "target": ', "mine.json")
