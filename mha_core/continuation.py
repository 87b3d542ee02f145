"""Greedy continuation under a plan, word by word: what a model with some heads off would go on to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mha_core.backend import Call, SlotKey
from mha_core.edits import BlockKeys, Edit, ReplaceOutput
from mha_core.interventions import InterventionError, Interventions
from mha_core.model import Model, Plan
from mha_core.pretrained import PretrainedModel
from mha_core.resolve import Resolved
from mha_core.run_inputs import RunInputs
from mha_core.tokens import Tokens


@dataclass(frozen=True)
class Piece:
    """One written token.

    token_id: its number. text: what it adds to the text so far; "" while a character is not complete.
    probability: that the run under the plan gave it.
    """

    token_id: int
    text: str
    probability: float


def continuations(
    model: Model,
    text: str | Tokens,
    plan: Plan = None,
    max_new_tokens: int = 20,
    *,
    target: str | Tokens | None = None,
) -> Iterator[Piece]:
    """Write on greedily under a plan, one token at a time; close the iterator to stop.

    Every step runs the whole text again, so that it equals `Model.run` on it to the bit; nothing is kept between steps
    but the ids, and nothing on the model.

    Args:
        text: what a decoder goes on from; the source, in an encoder-decoder, whose target is written from its start.
        plan: an intervention without positions holds at every position, those of new words too; one with positions
            holds there only (in an encoder-decoder's target: as soon as the position is written). The mean over
            "sentence" is that of the text given, and stays it.
        max_new_tokens: the most that are written; less where the model ends or its positions do.
        target: for an encoder-decoder whose plan names positions of the target or resamples there: the target that
            these are of; None: what the unchanged model writes.

    Raises:
        InterventionError: the model writes nothing on; or the plan resamples without positions, since the other
            sentence has nothing to take for new words.
    """
    if not isinstance(model, PretrainedModel) or model.kind not in ("causal-lm", "seq2seq"):
        raise InterventionError(
            f"{model.details.title} reads a text and does not go on with it; a continuation needs a decoder."
        )
    if max_new_tokens < 1:
        raise InterventionError(f"max_new_tokens is {max_new_tokens}; at least one token is written.")
    plan = plan if isinstance(plan, Interventions) else Interventions(plan)
    for item in plan.ablations:
        if item.kind == "resample" and item.positions is None and any(ref.site != "enc" for ref in item.heads):
            raise InterventionError(
                "Resampling takes each position's output from the same position of the other sentence, which has none "
                "for new words; name the positions where it is to happen."
            )
    tokens = text if isinstance(text, Tokens) else model.tokenize(text)
    inputs = model.prepare(tokens, target=target) if model.kind == "seq2seq" and plan else RunInputs(tokens)
    return _pieces(model, tokens, model.resolved(inputs, plan), max_new_tokens)


def continuation(
    model: Model, text: str | Tokens, plan: Plan = None, max_new_tokens: int = 20, *, target: str | Tokens | None = None
) -> str:
    """The whole continuation as one text; arguments as in `continuations`."""
    return "".join(piece.text for piece in continuations(model, text, plan, max_new_tokens, target=target))


def _pieces(model: PretrainedModel, tokens: Tokens, resolved: Resolved, most: int) -> Iterator[Piece]:
    seq2seq = model.kind == "seq2seq"
    ids = [] if seq2seq else list(tokens.ids)
    step = _decoder(model, tokens, resolved) if seq2seq else _writer(model, resolved)
    tail = _tail(model, ids)
    before = len(model.decode(tail)) if tail else 0
    written: list[int] = []
    shown = ""
    for _ in range(min(most, model.max_tokens - max(1, len(ids)))):
        logits = step([*ids, *written])
        best = int(logits.argmax())
        if best in model.end_tokens:
            return
        written.append(best)
        # Half a character at the end is not text yet; it comes with the token that completes it.
        whole = model.decode([*tail, *written])[before:].rstrip("\ufffd")
        added, shown = whole[len(shown) :], max(shown, whole, key=len)
        yield Piece(best, added, float(logits.softmax(dim=-1)[best]))


def _tail(model: PretrainedModel, ids: list[int]) -> list[int]:
    """The last ids that are whole characters, so that what follows keeps its leading space."""
    lengths = range(1, min(8, len(ids)) + 1)
    return next((ids[-n:] for n in lengths if "\ufffd" not in model.decode(ids[-n:])), [])


def _writer(model: PretrainedModel, resolved: Resolved) -> Callable[[list[int]], Tensor]:
    """Ids so far -> logits [vocabulary] of the next, for a decoder."""

    def step(ids: list[int]) -> Tensor:
        call = Call(model.slots, resolved.edits, record=False, next_logits=True)
        arguments = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        logits: Tensor = model.call_in(call, arguments, {})["logits"]
        resolved.applied(call.applied, call.blocked)
        return logits[0, -1]

    return step


def _decoder(model: PretrainedModel, source: Tokens, resolved: Resolved) -> Callable[[list[int]], Tensor]:
    """The same for an encoder-decoder: target ids after its start token; the source is read once."""
    reading = Call(model.slots, resolved.edits, record=False)
    arguments = model.encode(reading, source)

    def step(ids: list[int]) -> Tensor:
        target = [model.start_token, *ids]
        edits = _until(resolved.edits, len(target))
        call = Call(model.slots, edits, record=False, next_logits=True)
        logits: Tensor = model.call_in(call, arguments, {"input_ids": torch.tensor([target])})["logits"]
        missed = [slot for slot in edits if slot[0] != "enc" and not call.applied.get(slot)]
        missed += [slot for slot in edits if slot[0] == "enc" and not reading.applied.get(slot)]
        if missed:
            raise InterventionError(f"This was asked for and did not happen: a change at {missed[0]}.")
        return logits[0, -1]

    return step


def _until(edits: Mapping[SlotKey, tuple[Edit, ...]], length: int) -> dict[SlotKey, tuple[Edit, ...]]:
    """What of the edits of a target concerns its first `length` positions; the encoder's stay whole."""
    kept: dict[SlotKey, tuple[Edit, ...]] = {}
    for slot, made in edits.items():
        inside = made if slot[0] == "enc" else tuple(e for e in (_cut(edit, slot, length) for edit in made) if e)
        if inside:
            kept[slot] = inside
    return kept


def _cut(edit: Edit, slot: SlotKey, length: int) -> Edit | None:
    if isinstance(edit, BlockKeys) and slot[0] == "dec" and edit.keys is not None:
        keys = edit.keys[edit.keys < length]
        if not len(keys):
            return None
        edit = replace(edit, keys=keys)
    positions = edit.positions
    if positions is None:
        return edit
    here = positions < length
    if not bool(here.any()):
        return None
    if isinstance(edit, ReplaceOutput) and edit.value is not None and edit.value.shape[-2] == len(here):
        edit = replace(edit, value=edit.value[..., here, :])
    return replace(edit, positions=positions[here])
