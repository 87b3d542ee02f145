"""Tasks: many prompts with a right and a wrong answer, and which of them a model can be given.

One sentence is an anecdote. A task asks the same question of hundreds of prompts made from templates; each prompt says
which template it is from (prompts of one template are alike, so intervals resample templates) and which slices it
belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from mha_core.model import Model
from mha_core.outcomes import predicted_position
from mha_core.run_inputs import RunInputs
from mha_core.tokens import InputError

CHANCE = 0.5  # of a task whose prompts have a foil


class TaskError(ValueError):
    """A task that cannot be had, or data that is none, as a sentence for the person who asked."""


@dataclass(frozen=True)
class Prompt:
    """One question.

    text: what the model reads. target, foil: the right and the wrong answer: one token each, read after the text (at a
        mask, in a masked LM), foil None where any other word is wrong; for "similarity" two sentences, of which the
        target is nearer in meaning to `text`.
    template: what it was made from. slices: slice name -> value, such as {"attractors": "one"}. row: in its file, from
        1 after the header; 0: not from a file.
    """

    text: str
    target: str
    foil: str | None = None
    template: str = ""
    slices: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    row: int = 0

    def __hash__(self) -> int:
        return hash((self.text, self.target, self.foil, self.template))


@dataclass(frozen=True)
class Task:
    """A set of prompts that measures one thing.

    name: what commands take. title: for people. says: what it measures, in sentences. prompts: in order.
    question: "word": is the target the next (or masked) word; "similarity": is the target the nearer sentence.
    seed: what the prompts were drawn with; None for a file.
    """

    name: str
    title: str
    says: str
    prompts: tuple[Prompt, ...]
    question: str = "word"
    seed: int | None = None

    @property
    def has_foils(self) -> bool:
        """Whether each prompt names a wrong answer; otherwise the target has to be the most likely of all words."""
        return bool(self.prompts) and all(prompt.foil is not None for prompt in self.prompts)

    @property
    def slice_names(self) -> tuple[str, ...]:
        """Names of all slices, in order of appearance."""
        return tuple(dict.fromkeys(name for prompt in self.prompts for name in prompt.slices))

    @property
    def templates(self) -> tuple[str, ...]:
        """All templates, in order of appearance."""
        return tuple(dict.fromkeys(prompt.template for prompt in self.prompts))

    def sample(self, n: int | None, seed: int = 0) -> Task:
        """n prompts (None, or more than there are: all) in an order drawn from `seed`, template after template in turn,
        so that the first few already come from many templates.
        """
        rng = np.random.default_rng(seed)
        by_template: dict[str, list[Prompt]] = {}
        for place in rng.permutation(len(self.prompts)).tolist():
            by_template.setdefault(self.prompts[place].template, []).append(self.prompts[place])
        rounds = max(map(len, by_template.values()), default=0)
        order = [group[i] for i in range(rounds) for group in by_template.values() if i < len(group)]
        return replace(self, prompts=tuple(order[:n]))


@dataclass(frozen=True)
class Refused:
    """A row or prompt that cannot be used. row: its number, from 1 without a file's header. reason: a sentence."""

    row: int
    text: str
    reason: str


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt as a model reads it.

    texts: one tokenized text for "word"; the text, the target and the foil for "similarity".
    target, foil: vocabulary ids for "word". position: where the answer is read.
    """

    prompt: Prompt
    texts: tuple[RunInputs, ...]
    target: int = -1
    foil: int | None = None
    position: int = 0


def questions_for(model: Model, task: Task) -> tuple[tuple[Question, ...], tuple[Refused, ...]]:
    """A task's prompts as a model reads them, and those that it cannot be given with the reason.

    Raises:
        TaskError: the task asks for what this model does not do at all.
    """
    reason = unfit(model, task)
    if reason:
        raise TaskError(reason)
    questions, refused = [], []
    make = _similarity_question if task.question == "similarity" else _word_question
    for number, prompt in enumerate(task.prompts, start=1):
        try:
            questions.append(make(model, prompt))
        except (InputError, TaskError) as error:
            refused.append(Refused(prompt.row or number, prompt.text, str(error)))
    return tuple(questions), tuple(refused)


def unfit(model: Model, task: Task) -> str:
    """Why a task asks for something that a model does not do; empty where it does."""
    title = model.details.title
    if model.kind == "seq2seq":
        return f"{title} is an encoder-decoder; tasks are for models that predict words or compare sentences."
    if task.question == "similarity" and model.has_logits:
        return f"{title} predicts words; “{task.title}” compares sentences and is for sentence encoders."
    if task.question == "word" and not model.has_logits:
        return f"{title} has no words to predict; “{task.title}” asks for words. Take a task for sentence encoders."
    return ""


def _word_question(model: Model, prompt: Prompt) -> Question:
    text, mask = prompt.text, getattr(getattr(model, "tokenizer", None), "mask_token", None)
    if model.kind == "masked-lm" and mask and mask not in text:
        text = f"{text.rstrip()} {mask}."
    tokens = model.tokenize(text)
    _require_whole(tokens.n_total, len(tokens))
    if len(tokens) < 2:
        raise TaskError("The prompt is one token; at least two are needed.")
    target = _one_token(model, prompt.target, "target")
    foil = None if prompt.foil is None else _one_token(model, prompt.foil, "foil")
    if target == foil:
        raise TaskError(f"Target and foil are the same token, {prompt.target!r}.")
    return Question(prompt, (RunInputs(tokens),), target, foil, predicted_position(model, tokens))


def _similarity_question(model: Model, prompt: Prompt) -> Question:
    if prompt.foil is None:
        raise TaskError("The foil is missing: a sentence that is further from the prompt than the target.")
    texts = []
    for text in (prompt.text, prompt.target, prompt.foil):
        tokens = model.tokenize(text)
        _require_whole(tokens.n_total, len(tokens))
        texts.append(RunInputs(tokens))
    return Question(prompt, tuple(texts))


def _one_token(model: Model, surface: str, what: str) -> int:
    try:
        number = model.token_id(surface)
    except InputError as error:
        raise TaskError(f"The {what}: {error}") from None
    if number == getattr(getattr(model, "tokenizer", None), "unk_token_id", None):
        raise TaskError(f"The {what} {surface!r} is unknown to this model.")
    return number


def _require_whole(n_total: int, n_kept: int) -> None:
    if n_total > n_kept:
        raise TaskError(f"The text is {n_total:,} tokens long and this model takes {n_kept:,}.")


Builder = Callable[[Model, int], Task]


@lru_cache(maxsize=1)
def _builders() -> Mapping[str, Builder]:
    from mha_core import task_induction, task_similarity, task_words

    return {
        "agreement": lambda model, seed: task_words.agreement(seed),
        "indirect-object": lambda model, seed: task_words.indirect_object(seed),
        "pronoun": lambda model, seed: task_words.pronoun(seed),
        "induction": task_induction.induction,
        "similarity": lambda model, seed: task_similarity.similarity(seed),
    }


def task_names() -> tuple[str, ...]:
    """Names of the built-in tasks."""
    return tuple(_builders())


def built_in(name: str, model: Model, seed: int = 0) -> Task:
    """A built-in task for a model. seed: of its prompts; the same seed gives the same prompts.

    Raises:
        TaskError: no such task, or one that this model cannot be given.
    """
    if name not in _builders():
        raise TaskError(f"{name!r} is not a task; there are {', '.join(_builders())}.")
    task = _builders()[name](model, seed)
    reason = unfit(model, task)
    if reason:
        raise TaskError(reason)
    return task


def offered(model: Model, seed: int = 0) -> tuple[Task, ...]:
    """The built-in tasks that a model can be given: their answers are single tokens there, and their texts fit.

    Prompts that cannot be used are left out; a task of which less than half or fewer than 20 templates remain is not
    offered.
    """
    tasks = []
    for name in task_names():
        try:
            task = built_in(name, model, seed)
            questions, _ = questions_for(model, task)
        except TaskError:
            continue
        kept = replace(task, prompts=tuple(question.prompt for question in questions))
        if 2 * len(kept.prompts) >= len(task.prompts) and len(kept.templates) >= 20:
            tasks.append(kept)
    return tuple(tasks)


def chosen(rng: np.random.Generator, options: Sequence[str], n: int = 1) -> list[str]:
    """n different options."""
    return [options[place] for place in rng.choice(len(options), n, replace=False).tolist()]


def without_repeats(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Prompts with different texts or answers, in order."""
    return tuple({(p.text, p.target, p.foil): p for p in prompts}.values())
