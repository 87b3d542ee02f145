"""Many prompts through a model under one plan, in length buckets: equal to one run per prompt.

Measured per prompt are logits at the places of the answer, and of sentence pairs their cosines: see `scores.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mha_core.backend import Call
from mha_core.interventions import Interventions
from mha_core.model import Model
from mha_core.pretrained import PretrainedModel
from mha_core.questions import Question
from mha_core.run_inputs import RunInputs, batch_arguments
from mha_core.scores import Scores, read_out, scores_of, token_scores

MAX_ROWS, MAX_POSITIONS = 16, 2048  # of a batch: more rows are no faster on a processor, and memory grows
_LOGIT_ROWS = 256
Row = dict[str, float]
OnBatch = Callable[[int], None]


def ask(
    model: Model, questions: Sequence[Question], plan: Interventions, on_batch: OnBatch = lambda n: None
) -> list[Row]:
    """What a model says to each question under a plan, in order.

    Those of `scores_of`, and for models of the next word `loss`, the mean loss of the prompt's own tokens in nats.
    on_batch: told how many prompts each batch did; what it raises ends the work.

    Raises:
        InterventionError: a plan that this model or one of the prompts cannot carry out.
    """
    rows: list[Row] = [{} for _ in questions]
    for numbers in batches(model, questions, plan):
        asked = [questions[number] for number in numbers]
        found = (_similarities if asked[0].compares_sentences else _words)(model, asked, plan)
        for number, row in zip(numbers, found, strict=True):
            rows[number] = row
        on_batch(len(numbers))
    return rows


def batches(model: Model, questions: Sequence[Question], plan: Interventions) -> Iterator[list[int]]:
    """Which questions run together, by number."""
    return buckets([max(map(_length, q.texts)) for q in questions], _shared(plan, model))


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


def _shared(plan: Interventions, model: Model) -> str:
    """How alike prompts must be for the plan to be the same edits for all of them."""
    if any(item.kind == "resample" or item.reference == "sentence" for item in plan.ablations):
        return "single"
    if not plan.knockouts and not any(item.positions for item in plan.ablations):
        return "padded"
    return "single" if model.kind == "seq2seq" else "equal"  # there two lengths would have to be equal


def _length(inputs: RunInputs) -> int:
    return len(inputs.tokens) + (len(inputs.source) if inputs.source else 0)


def _hidden(model: Model, inputs: Sequence[RunInputs], plan: Interventions) -> list[Tensor]:
    """Final hidden states [position, d_model] of each input, without padding."""
    if not isinstance(model, PretrainedModel):
        return [model.run_prepared(item, plan).hidden for item in inputs]
    resolved = model.resolved(inputs[0], plan)
    call = Call(model.slots, resolved.edits, record=False)
    model.call_in(call, *batch_arguments(list(inputs), model.padding_id))
    resolved.applied(call.applied, call.blocked)
    assert call.hidden is not None
    return [hidden[: len(item.tokens)] for hidden, item in zip(call.hidden, inputs, strict=True)]


@torch.inference_mode()
def _words(model: Model, asked: Sequence[Question], plan: Interventions) -> list[Row]:
    hidden = _hidden(model, [question.texts[0] for question in asked], plan)
    states = [read_out(q, h[None])[0] for h, q in zip(hidden, asked, strict=True)]  # each [answer, d_model]
    logits = model.logits_of(torch.cat(states)).float().split([len(state) for state in states])
    rows = [_row(token_scores(line[None], question)) for line, question in zip(logits, asked, strict=True)]
    if model.kind == "causal-lm":
        losses = _losses(model, hidden, [question.texts[0].tokens.ids for question in asked])
        for row, loss in zip(rows, losses, strict=True):
            row["loss"] = loss
    return rows


def _row(scores: Scores) -> Row:
    return {name: float(values[0]) for name, values in scores.items()}


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
        states: list[Tensor] = [torch.empty(0)] * len(inputs)
        for numbers in buckets([_length(item) for item in inputs], _shared(plan, model)):
            for number, hidden in zip(numbers, _hidden(model, [inputs[n] for n in numbers], plan), strict=True):
                states[number] = read_out(asked[number], hidden[None])
        columns.append(states)
    return [_row(scores_of(model, q, list(states))) for q, *states in zip(asked, *columns, strict=True)]
