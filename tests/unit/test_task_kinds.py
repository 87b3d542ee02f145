"""The tasks that belong to one kind of model: a gap to fill, dates to write, random words that come again."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from mha_core import Interventions, Model, load_model
from mha_core.batched import ask
from mha_core.dates import formats, is_held_out
from mha_core.evaluation import evaluate
from mha_core.questions import questions_for
from mha_core.task_dates import date_normalisation
from mha_core.task_induction import DISTANCES, induction
from mha_core.task_masked import masked_prompts, masked_word
from mha_core.task_sets import built_in, offered
from mha_core.tasks import Prompt, Task
from tests.tiny import tiny_model, tiny_model_dir

MASKS = {"bert": "[MASK]", "roberta": "<mask>"}


def _tokenizer(family: str, words: set[str]) -> PreTrainedTokenizerFast:
    """One token per word; with its space before it for RoBERTa, as its own has most words."""
    if family == "bert":
        specials = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
                            ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), strict=True))  # fmt: skip
        pieces = [*specials.values(), *sorted(words), ".", ",", ":"]
        tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder, marks = decoders.WordPiece(), ("[CLS]", "[SEP]")
    else:
        specials = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"),
                            ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), strict=True))  # fmt: skip
        pieces = [*specials.values(), *pre_tokenizers.ByteLevel.alphabet()]
        merges: list[tuple[str, str]] = []
        for word in sorted(words):
            for end in range(1, len(word) + 1):
                pair = ("Ġ" + word[: end - 1], word[end - 1])
                merges += [pair] if "".join(pair) not in pieces else []
                pieces += ["".join(pair)] if "".join(pair) not in pieces else []
        tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder, marks = decoders.ByteLevel(), ("<s>", "</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{marks[0]} $A {marks[1]}", special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in marks]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **specials)


def _masked_model(family: str, folder: Path) -> Model:
    words = {word for p in masked_prompts("") for word in re.findall(r"[a-z]+", f"{p.text} {p.target}{p.foil}".lower())}
    tokenizer = _tokenizer(family, words)
    tokenizer.save_pretrained(folder)
    network = tiny_model(family, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    network.save_pretrained(folder, safe_serialization=True)
    return load_model(str(folder))


@pytest.fixture(scope="module", params=MASKS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def masked(family: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _masked_model(family, tmp_path_factory.mktemp(f"words-{family}"))


def test_a_gap_holds_the_model_s_own_mask_and_is_where_the_answer_is_read(family: str, masked: Model) -> None:
    task = masked_word(masked)
    questions, refused = questions_for(masked, task)
    assert refused == ()
    mask = MASKS[family]
    for question in questions:
        assert question.prompt.text.count(mask) == 1
        tokens = question.texts[0].tokens
        assert tokens.surfaces[question.positions[0]].strip() == mask
        assert 0 < question.positions[0] < len(tokens) - 2, "words on both sides"


def test_a_masked_model_that_has_the_words_is_offered_the_task_and_can_be_measured(masked: Model) -> None:
    task = next(task for task in offered(masked) if task.name == "masked-word")
    assert len(task.prompts) == len(masked_word(masked).prompts)
    result = evaluate(masked, task, (), n=24)
    assert result.n == 24
    assert "accuracy" in result.metrics


def test_without_the_words_prompts_are_refused_with_the_reason(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = load_model(str(tiny_model_dir(family, tmp_path_factory)))
    _, refused = questions_for(model, masked_word(model))
    assert refused
    assert all("tokens for this model" in item.reason or "unknown to this model" in item.reason for item in refused)
    assert "masked-word" not in [task.name for task in offered(model)]


def test_masked_prompts_have_every_gap_and_knowledge_in_both_frequencies() -> None:
    prompts = masked_prompts("[MASK]")
    assert len(prompts) >= 300
    assert len({p.template for p in prompts}) >= 20
    assert prompts == masked_prompts("[MASK]") != masked_prompts("[MASK]", 1)
    counts = Counter((p.slices["knowledge"], p.slices["gap"], p.slices["word"]) for p in prompts)
    assert len(counts) == 4 * 3 * 2
    assert min(counts.values()) >= 5
    for prompt in prompts:
        words = prompt.text.split()
        third = 3 * next(i for i, word in enumerate(words) if "[MASK]" in word) // len(words)
        assert prompt.slices["gap"] == ("early", "middle", "late")[third]
        assert f"{prompt.target} " not in prompt.text, "the answer does not stand there"


def test_the_right_word_makes_the_sentence_likelier_to_a_model_that_reads_on() -> None:
    """No masked model is packaged; SmolLM2 compares the sentence with the target to the same with the foil."""
    model = load_model("smollm2-135m-instruct")
    prompts = Task("t", "T", "", masked_prompts("[MASK]")).sample(72).prompts
    filled = [Prompt(p.text.replace(" [MASK]", w), " the", " a") for p in prompts for w in (p.target, str(p.foil))]
    questions, refused = questions_for(model, Task("t", "T", "", tuple(filled)))
    assert refused == ()
    losses = [row["loss"] * (len(q.texts[0].tokens) - 1)
              for q, row in zip(questions, ask(model, questions, Interventions()), strict=True)]  # fmt: skip
    right = [target < foil for target, foil in zip(losses[::2], losses[1::2], strict=True)]
    assert sum(right) / len(right) > 0.8


def _dates() -> Task:
    return date_normalisation(load_model("date-translator"), 0)


def test_dates_come_in_every_format_and_the_slices_say_what_they_are() -> None:
    task = _dates()
    assert len(task.templates) >= 20
    assert len(task.prompts) >= 400
    assert task.prompts == _dates().prompts
    written = {
        template: [f for f in formats() if template.startswith(f"{f.template}, ")] for template in task.templates
    }
    for prompt in task.prompts:
        date, slices = datetime.date.fromisoformat(prompt.target), prompt.slices
        ways = [f for f in written[prompt.template] if f.can_write(date) and f.write(date) == prompt.text]
        assert slices["date seen"] == ("new" if is_held_out(date) else "trained on")
        assert slices["format seen"] in {"new" if way.held_out else "trained on" for way in ways}
        assert slices["answer"] == f"{prompt.target[:2]}xx"
        assert slices["answer's month"] == prompt.target[5:7]
        assert (slices["year"] == "four digits") == (prompt.target[:4] in prompt.text)
        assert (slices["month"] == "named") == bool(re.search(r"[a-z]{3}", re.sub(r"(?i)\w*day|mon |tue |wed |thu |"
                r"fri |sat |sun ", "", prompt.text), re.IGNORECASE))  # fmt: skip


def test_new_and_seen_formats_and_dates_all_have_many_prompts() -> None:
    prompts = _dates().prompts
    for name, least in (("format seen", 80), ("date seen", 200), ("year", 150), ("month", 200), ("answer", 200)):
        counts = Counter(prompt.slices[name] for prompt in prompts)
        assert len(counts) == 2, name
        assert min(counts.values()) >= least, name


def test_induction_goes_beyond_a_thousand_tokens_where_the_model_does() -> None:
    model = load_model("smollm2-135m-instruct")
    task = induction(model)
    counts = Counter(int(prompt.slices["distance"]) for prompt in task.prompts)
    assert counts == Counter(DISTANCES)
    assert max(counts) > 1000
    longest = max(task.prompts, key=lambda prompt: len(prompt.text))
    assert 1024 < len(model.tokenize(longest.text)) < model.max_tokens
    for n, long in ((24, 0), (70, 2), (110, 3)):
        assert sum(prompt.slices["distance"] == "1024" for prompt in task.sample(n).prompts) == long
    assert set(task.sample(None).prompts) == set(task.prompts)


def test_a_built_in_task_is_the_same_under_its_name() -> None:
    model = load_model("date-translator")
    assert built_in("dates", model, 0).prompts == _dates().prompts
    assert [task.name for task in offered(model)] == ["dates"]
