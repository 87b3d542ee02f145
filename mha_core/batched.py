"""Many prompts through a model under one plan, in length buckets: equal to one run per prompt.

Measured per prompt are logits at the place of the answer, and of sentence pairs their cosines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from mha_core.backend import Call
from mha_core.interventions import Interventions
from mha_core.metrics import sentence_embedding
from mha_core.model import Model
from mha_core.pretrained import PretrainedModel
from mha_core.run_inputs import RunInputs, batch_arguments
from mha_core.tasks import Question

MAX_ROWS, MAX_POSITIONS = 16, 2048  # of a batch: more rows are no faster on a processor, and memory grows
_LOGIT_ROWS = 256
Row = dict[str, float]
OnBatch = Callable[[int], None]


def ask(
    model: Model, questions: Sequence[Question], plan: Interventions, on_batch: OnBatch = lambda n: None
) -> list[Row]:
    """What a model says to each question under a plan, in order.

    Words: `accuracy` (1: the target is above the foil, or above every other word), `logit_diff` (target minus foil;
    minus the best other word where there is no foil), `log_prob` of the target in nats, and for models of the next
    word `loss`, the mean loss of the prompt's own tokens in nats. Sentences: `accuracy` (1: the target is nearer),
    `cosine` with the target, `foil_cosine`, `cosine_diff`. on_batch: told how many prompts each batch did; what it
    raises ends the work.

    Raises:
        InterventionError: a plan that this model or one of the prompts cannot carry out.
    """
    rows: list[Row] = [{} for _ in questions]
    for numbers in buckets([max(map(_length, q.texts)) for q in questions], _shared(plan)):
        asked = [questions[number] for number in numbers]
        similar = len(asked[0].texts) > 1
        found = _similarities(model, asked, plan) if similar else _words(model, asked, plan)
        for number, row in zip(numbers, found, strict=True):
            rows[number] = row
        on_batch(len(numbers))
    return rows


def buckets(lengths: Sequence[int], shared: str) -> Iterator[list[int]]:
    """Which prompts run together: "padded" of similar length, "equal" of the same length, "single" alone."""
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    batch: list[int] = []
    for number in order:
        full = len(batch) >= (1 if shared == "single" else MAX_ROWS)
        wide = batch and lengths[number] * (len(batch) + 1) > MAX_POSITIONS
        other = batch and (shared == "equal" or lengths[number] > 1.5 * lengths[batch[0]] + 4)
        if full or wide or (other and lengths[number] != lengths[batch[0]]):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _shared(plan: Interventions) -> str:
    """How alike prompts must be for the plan to be the same edits for all of them."""
    if any(item.kind == "resample" or item.reference == "sentence" for item in plan.ablations):
        return "single"
    return "equal" if plan.knockouts or any(item.positions for item in plan.ablations) else "padded"


def _length(inputs: RunInputs) -> int:
    return len(inputs.tokens)


def _hidden(model: Model, inputs: Sequence[RunInputs], plan: Interventions) -> list[Tensor]:
    """Final hidden states [position, d_model] of each input, without padding."""
    if not isinstance(model, PretrainedModel):
        return [model.run_prepared(item, plan).hidden for item in inputs]
    resolved = model.resolved(inputs[0], plan)
    call = Call(model.slots, resolved.edits, record=False)
    model.call_in(call, *batch_arguments(list(inputs), model.padding_id))
    resolved.applied(call.applied, call.blocked)
    assert call.hidden is not None
    return [hidden[: _length(item)] for hidden, item in zip(call.hidden, inputs, strict=True)]


@torch.inference_mode()
def _words(model: Model, asked: Sequence[Question], plan: Interventions) -> list[Row]:
    hidden = _hidden(model, [question.texts[0] for question in asked], plan)
    logits = model.logits_of(torch.stack([h[q.position] for h, q in zip(hidden, asked, strict=True)]))
    rows = [_word_row(line, question) for line, question in zip(logits.float(), asked, strict=True)]
    if model.kind == "causal-lm":
        losses = _losses(model, hidden, [question.texts[0].tokens.ids for question in asked])
        for row, loss in zip(rows, losses, strict=True):
            row["loss"] = loss
    return rows


def _word_row(logits: Tensor, question: Question) -> Row:
    target = float(logits[question.target])
    if question.foil is not None:
        foil = float(logits[question.foil])
    else:
        others = logits.clone()
        others[question.target] = float("-inf")
        foil = float(others.max())
    log_prob = float(logits.log_softmax(-1)[question.target])
    return {"accuracy": float(target > foil), "logit_diff": target - foil, "log_prob": log_prob}


def _losses(model: Model, hidden: Sequence[Tensor], ids: Sequence[Sequence[int]]) -> list[float]:
    """Mean loss of each text's tokens from the second on, in nats."""
    states = torch.cat([h[:-1] for h in hidden])
    wanted = torch.cat([torch.tensor(line[1:]) for line in ids])
    losses: list[Any] = []
    for start in range(0, len(states), _LOGIT_ROWS):
        part = slice(start, start + _LOGIT_ROWS)
        losses.append(cross_entropy(model.logits_of(states[part]), wanted[part], reduction="none"))
    return [float(part.mean()) for part in torch.cat(losses).split([len(line) - 1 for line in ids])]


@torch.inference_mode()
def _similarities(model: Model, asked: Sequence[Question], plan: Interventions) -> list[Row]:
    """Texts, targets and foils have their own lengths: each kind is bucketed by itself."""
    columns: list[list[Tensor]] = []
    for column in range(3):
        inputs = [question.texts[column] for question in asked]
        embeddings: list[Tensor] = [torch.empty(0)] * len(inputs)
        for numbers in buckets([_length(item) for item in inputs], _shared(plan)):
            for number, hidden in zip(numbers, _hidden(model, [inputs[n] for n in numbers], plan), strict=True):
                embeddings[number] = sentence_embedding(hidden)
        columns.append(embeddings)
    rows = []
    for text, target, foil in zip(*columns, strict=True):
        near, far = float(cosine_similarity(text, target, dim=0)), float(cosine_similarity(text, foil, dim=0))
        rows.append({"accuracy": float(near > far), "cosine_diff": near - far, "cosine": near, "foil_cosine": far})
    return rows
