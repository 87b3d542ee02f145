"""What an intervention did: clean and changed runs of the same tokens, compared. No Streamlit.

Logits, probabilities and losses belong to the model file that the trace came from. Losses and divergences are in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.interventions import HeadAblation, InterventionError, Interventions
from mha_core.metrics import kl_divergence, token_losses, token_movement
from mha_core.model import Model
from mha_core.pieces import readable
from mha_core.trace import Trace


@dataclass(frozen=True)
class WordChange:
    """One vocabulary entry: its surface (" Mary"), and per run, clean first, its probability, logit and rank from 1."""

    word: str
    token_id: int
    probabilities: tuple[float, ...]
    logits: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class PredictionEffect:
    """How the prediction at one position changed.

    position: where. runs: names of the runs, "clean" first. words: the most likely entries, of any of the runs.
    top: the clean run's most likely entry. kl: KL(clean ‖ run) per run, nats (0 for clean).
    entropy: per run, nats.
    """

    position: int
    runs: tuple[str, ...]
    words: tuple[WordChange, ...]
    top: WordChange
    kl: tuple[float, ...]
    entropy: tuple[float, ...]

    def best_word(self, run: int) -> WordChange:
        """The most likely of the listed words in one run."""
        return max(self.words, key=lambda word: word.probabilities[run])


def plan_for(off: Sequence[str], kind: str, **arguments: object) -> Interventions:
    """The plan that switches named heads off in one way; nothing is changed when no head is named."""
    return Interventions([HeadAblation(off, kind, **arguments)] if off else [])  # type: ignore[arg-type]


def heads_of_model(off: Sequence[str], model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a model has, and those it does not have (from a link made for another model)."""
    known, strangers = [], []
    for name in off:
        try:
            plan_for((name,), "zero").validated_for(model.sites)
            known.append(name)
        except InterventionError:
            strangers.append(name)
    return tuple(known), tuple(strangers)


def prediction_position(model: Model, trace: Trace) -> int | None:
    """Where a model's prediction is read: the last position of a decoder, the first mask of a masked LM."""
    if model.kind in ("causal-lm", "seq2seq"):
        return len(trace.tokens) - 1
    if model.kind == "masked-lm":
        mask = getattr(getattr(model, "tokenizer", None), "mask_token_id", None)
        return trace.tokens.ids.index(mask) if mask in trace.tokens.ids else None
    return None


def prediction_effect(model: Model, runs: Mapping[str, Trace], position: int, count: int = 10) -> PredictionEffect:
    """Compare the predictions of runs of the same tokens at one position; the first run is the clean one."""
    logits = torch.stack([trace.logits_at([position])[0] for trace in runs.values()])  # [run, vocabulary]
    log_probabilities = logits.log_softmax(dim=-1)
    probabilities = log_probabilities.exp()
    best = probabilities.topk(min(count, probabilities.shape[-1]), dim=-1).indices.tolist()
    # The clean run's words in its order, then those that only another run thinks of.
    wanted = dict.fromkeys([*best[0], *(token for row in best[1:] for token in row[:3])])
    words = tuple(
        WordChange(
            model.surface(token), token, tuple(probabilities[:, token].tolist()), tuple(logits[:, token].tolist()),
            tuple((1 + (logits > logits[:, token, None]).sum(dim=-1)).tolist()),
        )
        for token in wanted
    )  # fmt: skip
    entropy = -(probabilities * log_probabilities).sum(dim=-1)
    return PredictionEffect(
        position,
        tuple(runs),
        words,
        words[0],
        tuple(kl_divergence(logits[0], logits).tolist()),
        tuple(entropy.tolist()),
    )


def answer_differences(model: Model, runs: Mapping[str, Trace], position: int, answers: Sequence[str]) -> list[float]:
    """Logit of the first answer minus that of the second at one position, per run.

    Raises:
        InputError: an answer is no single token of this model.
    """
    first, second = (model.token_id(answer) for answer in answers)
    logits = [trace.logits_at([position])[0] for trace in runs.values()]
    return [float(row[first] - row[second]) for row in logits]


def loss_change(clean: Trace, changed: Trace) -> list[float | None]:
    """Change of each token's loss, in nats, above 0 is worse: [position]; None for the first."""
    ids = torch.tensor(clean.tokens.ids)
    losses = [_losses(trace, ids) for trace in (clean, changed)]
    return [None, *(losses[1] - losses[0]).tolist()]


def _losses(trace: Trace, ids: Tensor, chunk: int = 256) -> Tensor:
    """Loss of tokens 1 to the last, in chunks: 2,048 rows of a 49,152-word vocabulary at once are 400 MB."""
    parts = []
    for start in range(0, len(ids) - 1, chunk):
        stop = min(start + chunk, len(ids) - 1)
        logits = trace.logits_at(range(start, stop))
        parts.append(torch.nn.functional.cross_entropy(logits, ids[start + 1 : stop + 1], reduction="none"))
    return torch.cat(parts) if parts else token_losses(torch.zeros(1, 1), ids)


@dataclass(frozen=True)
class Written:
    """What a decoder would write at each position, given the clean run's target before it.

    pieces: the likeliest token. moved: how much of the probability is with other tokens than in the clean run, 0 to 1
    (the total variation distance). differ: how many pieces are not the clean run's.
    """

    pieces: tuple[str, ...]
    moved: tuple[float, ...]
    differ: int


def written(model: Model, clean: Trace, changed: Trace) -> Written:
    """Compare what two runs of the same target write, position by position."""
    positions = range(len(clean.tokens))
    before, after = (trace.logits_at(positions).softmax(dim=-1) for trace in (clean, changed))
    best, now = before.argmax(dim=-1), after.argmax(dim=-1)
    moved = (before - after).abs().sum(dim=-1) / 2
    pieces = tuple(model.surface(number) for number in now.tolist())
    return Written(pieces, tuple(moved.tolist()), int((best != now).sum()))


def movement(clean: Trace, changed: Trace) -> list[float]:
    """How far each token's final vector moved, relative to its length: [position], 0 where nothing changed."""
    return token_movement(clean.hidden, changed.hidden).tolist()


def reading(effect: PredictionEffect, n_off: int) -> list[str]:
    """What the numbers say, in plain words: comparisons that are computed, never a claim about what a head is for."""
    if n_off == 0:
        return ["All heads are on: nothing is changed. Switch a head off in the grid."]
    heads = "this head" if n_off == 1 else f"these {n_off} heads"
    by_run = dict(zip(effect.runs, range(len(effect.runs)), strict=True))
    sentences = []
    for run, number in by_run.items():
        if run != "clean":
            sentences.append(_one_reading(effect, number, heads, run))
    if "zero" in by_run and "mean" in by_run:
        zero, mean = effect.kl[by_run["zero"]], effect.kl[by_run["mean"]]
        if zero > 0.1 and mean < 0.1 * zero:
            sentences.append(
                f"Held at their mean they matter {zero / max(mean, 1e-6):,.0f} times less than cut to zero (KL): here "
                "the network relies on their usual output being there, not on what they do with this sentence."
            )
        elif zero > 0.1 and mean > 0.5 * zero:
            sentences.append("The mean does not make up for them: what they write depends on this sentence.")
    sentences.append("One sentence is an anecdote; it says nothing yet about other sentences.")
    return sentences


def _one_reading(effect: PredictionEffect, number: int, heads: str, run: str) -> str:
    done = {"zero": f"Cut to zero, {heads}", "mean": f"Held at their mean, {heads}"}.get(run, f"With {run}, {heads}")
    before, after = effect.top.probabilities[0], effect.top.probabilities[number]
    best = effect.best_word(number)
    strength = (
        "hardly change" if effect.kl[number] < 0.01 else "change" if effect.kl[number] < 0.5 else "strongly change"
    )
    if heads == "this head":
        strength = strength.replace("change", "changes").replace("hardly changes", "hardly changes")
    kept = best.token_id == effect.top.token_id
    outcome = (
        f"“{readable(effect.top.word)}” stays the most likely, {before:.3f} → {after:.3f}"
        if kept
        else f"“{readable(effect.top.word)}” falls from {before:.3f} to {after:.3f} and “{readable(best.word)}” leads "
        f"with {best.probabilities[number]:.3f}"
    )
    return f"{done} {strength} the next word (KL {effect.kl[number]:.3g} nats): {outcome}."


def similarity_reading(similarity: Mapping[str, float], n_off: int) -> list[str]:
    """What two sentences' similarity per run says, in plain words; the first run is the clean one."""
    if n_off == 0:
        return []
    clean = similarity["clean"]
    sentences = []
    for run, value in similarity.items():
        if run == "clean":
            continue
        change = value - clean
        size = "hardly moves" if abs(change) < 0.01 else "rises" if change > 0 else "falls"
        sentences.append(f"Under {run}, similarity {size}: {clean:.3f} → {value:.3f}.")
    return [*sentences, "One pair is an anecdote; it says nothing yet about other sentences."]
