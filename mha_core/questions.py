"""Prompts as a model reads them, and those that it cannot be given, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mha_core.model import Model
from mha_core.outcomes import predicted_position
from mha_core.pretrained import PretrainedModel
from mha_core.run_inputs import RunInputs
from mha_core.tasks import Prompt, Refused, Task, TaskError
from mha_core.tokens import InputError


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt as a model reads it.

    texts: what is run: one text, or for "similarity" the text, the target and the foil.
    targets: vocabulary ids of the answer: one for "word", all that is to be written for "sequence".
    foils: as many ids; () where any other token is wrong.
    positions: where each answer is read, of the text (of the target, in an encoder-decoder).
    """

    prompt: Prompt
    texts: tuple[RunInputs, ...]
    targets: tuple[int, ...] = ()
    foils: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()

    @property
    def compares_sentences(self) -> bool:
        """Whether the answer is a sentence that is nearer than another, not a token."""
        return not self.targets


def questions_for(model: Model, task: Task) -> tuple[tuple[Question, ...], tuple[Refused, ...]]:
    """A task's prompts as a model reads them, and those that it cannot be given with the reason.

    Raises:
        TaskError: the task asks for what this model does not do at all.
    """
    reason = unfit(model, task)
    if reason:
        raise TaskError(reason)
    questions, refused = [], []
    make = _MAKERS[task.question]
    for number, prompt in enumerate(task.prompts, start=1):
        try:
            questions.append(make(model, prompt))
        except (InputError, TaskError) as error:
            refused.append(Refused(prompt.row or number, prompt.text, str(error)))
    return tuple(questions), tuple(refused)


def chosen_questions(
    model: Model, task: Task, n: int | None = None, seed: int = 0
) -> tuple[tuple[Question, ...], tuple[Refused, ...]]:
    """n of the questions that a model can be given (None: all), in an order drawn from `seed` (`Task.sample`), and the
    prompts that it cannot be given.

    Raises:
        TaskError: not one can be used.
    """
    usable, refused = questions_for(model, task)
    by_prompt = {id(question.prompt): question for question in usable}
    kept = replace(task, prompts=tuple(question.prompt for question in usable)).sample(n, seed)
    if not usable:
        why = f" {refused[0].reason}" if refused else ""
        raise TaskError(f"No prompt of “{task.title}” can be used with {model.details.title}.{why}")
    return tuple(by_prompt[id(prompt)] for prompt in kept.prompts), refused


def unfit(model: Model, task: Task) -> str:
    """Why a task asks for something that a model does not do; empty where it does."""
    title = model.details.title
    if model.kind == "seq2seq" and task.question != "sequence":
        return f"{title} is an encoder-decoder; “{task.title}” is for models that predict words or compare sentences."
    if task.question == "sequence" and model.kind != "seq2seq":
        return f"{title} writes no text from a text; “{task.title}” is for encoder-decoders."
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
    foils = () if prompt.foil is None else (_one_token(model, prompt.foil, "foil"),)
    if (target,) == foils:
        raise TaskError(f"Target and foil are the same token, {prompt.target!r}.")
    return Question(prompt, (RunInputs(tokens),), (target,), foils, (predicted_position(model, tokens),))


def _sequence_question(model: Model, prompt: Prompt) -> Question:
    """The decoder is given the right answer so far and asked for each next token, up to its end mark: all of them are
    right exactly where its own greedy output is the target.
    """
    assert isinstance(model, PretrainedModel)
    source = model.tokenize(prompt.text)
    _require_whole(source.n_total, len(source))
    inputs = model.prepare(source, target=prompt.target)
    ids = inputs.tokens.ids
    if len(ids) < 2:
        raise TaskError("The target is empty.")
    if len(ids) == model.max_tokens:
        raise TaskError(f"The target is too long; this model writes at most {model.max_tokens - 2:,} tokens.")
    targets = (*ids[1:], *model.end_tokens[:1])
    return Question(prompt, (inputs,), targets, positions=tuple(range(len(targets))))


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


_MAKERS = {"word": _word_question, "similarity": _similarity_question, "sequence": _sequence_question}
