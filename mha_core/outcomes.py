"""What a change of heads is measured by: one number per run, the same for sweeps, pairs, controls and the preview.

Numbers are natural: divergences and losses in nats, 0 where nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from mha_core.interventions import InterventionError
from mha_core.metrics import kl_divergence, sentence_embedding
from mha_core.model import Model
from mha_core.tokens import Tokens

METRICS = {
    "kl": "KL(clean ‖ ablated) of the prediction at the last position, in nats",
    "logit_diff": "change of the first answer's logit minus the second's, at the last position",
    "loss": "change of the mean loss over the sentence, in nats",
    "top1_prob": "change of the probability of the clean run's most likely word, at the last position",
    "cosine_distance": "1 − cosine of the ablated sentence embedding with the clean one",
    "similarity": "change of the cosine of the sentence embedding with another sentence's",
}
FLAT = ("kl", "cosine_distance")
"""Distances from the clean run: least, and so with a gradient of zero, where nothing has changed."""

_CHUNK = 256  # positions whose logits are made at once: 2,048 rows of a 49,152-word vocabulary are 400 MB
LogitsOf = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Outcome:
    """A metric, ready to be taken of runs of one sentence.

    name: one of `METRICS`. baseline: the clean run's own value. answers: the two words, for "logit_diff".
    position: where the prediction is read: the last position; in a masked LM the first mask, where there is one.
    terms: (hidden [row, position, d_model], hidden -> logits) -> numbers [row] whose sum is the metric.
    """

    name: str
    baseline: float
    position: int
    terms: Callable[[Tensor, LogitsOf], Iterator[Tensor]]
    logits_of: Callable[[Tensor, bool], Tensor]
    answers: tuple[str, str] | None = None

    def changes(self, hidden: Tensor) -> list[float]:
        """The metric of changed runs minus that of the clean run, one per row. hidden: [row, position, d_model]."""
        with torch.inference_mode():
            value = torch.stack(list(self.terms(hidden, lambda h: self.logits_of(h, False)))).sum(dim=0)
            return (value - self.baseline).tolist()

    def gradient(self, hidden: Tensor) -> Tensor:
        """Gradient of the metric with respect to one run's final hidden states: [position, d_model] for the same."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = hidden.detach().clone().requires_grad_()
            total = torch.zeros_like(leaf)
            for term in self.terms(leaf[None], lambda h: self.logits_of(h, True)):
                total = total + torch.autograd.grad(term.sum(), leaf)[0]
        return total.detach()


def outcome_of(
    model: Model,
    tokens: Tokens,
    hidden: Tensor,
    metric: str | None = None,
    answers: tuple[str, str] | None = None,
    other: str | None = None,
) -> Outcome:
    """A metric for runs of a sentence whose clean run ended in `hidden` [position, d_model].

    Args:
        metric: one of `METRICS`; None: what `answers` or `other` is for, else "kl" for a model with words to predict
            and "cosine_distance" for a bare encoder.
        answers: two words that are one token each, for "logit_diff". other: another sentence, for "similarity".

    Raises:
        InterventionError: what this model or text has no such metric for.
    """
    default = "kl" if model.has_logits else "cosine_distance"
    name = metric or ("logit_diff" if answers else "similarity" if other else default)
    if name not in METRICS:
        raise InterventionError(f"metric is {name!r}; it must be one of {', '.join(METRICS)}.")
    if (name == "logit_diff") != (answers is not None):
        raise InterventionError('"logit_diff" is the metric that takes answers, a pair such as (" Mary", " John").')
    if (name == "similarity") != (other is not None):
        raise InterventionError('"similarity" is the metric that takes another sentence to compare with.')
    position = predicted_position(model, tokens)
    if name in ("cosine_distance", "similarity"):
        terms = _cosine_terms(model, hidden, other)
    elif not model.has_logits:
        raise InterventionError(f"This model is a bare encoder without words to predict; {name!r} needs them.")
    elif name == "loss":
        terms = _loss_terms(tokens)
    else:
        terms = _prediction_terms(model, hidden, position, name, answers)
    with torch.inference_mode():
        baseline = float(sum(term.sum() for term in terms(hidden[None], model.logits_of)))
    baseline = 0.0 if name in FLAT else baseline
    return Outcome(name, baseline, position, terms, model.logits_of, answers)


def predicted_position(model: Model, tokens: Tokens) -> int:
    """Where a prediction is read: the first mask of a masked LM's text, else the last position."""
    mask = getattr(getattr(model, "tokenizer", None), "mask_token_id", None)
    if model.kind == "masked-lm" and mask in tokens.ids:
        return tokens.ids.index(mask)
    return len(tokens) - 1


def _cosine_terms(model: Model, hidden: Tensor, other: str | None) -> Callable[[Tensor, LogitsOf], Iterator[Tensor]]:
    wanted = sentence_embedding(hidden if other is None else model.run(other).hidden)
    with torch.inference_mode(False):
        wanted = wanted.clone()  # a backward pass takes no tensor of inference mode

    def terms(changed: Tensor, logits_of: LogitsOf) -> Iterator[Tensor]:
        cosine = cosine_similarity(changed.mean(dim=1), wanted[None], dim=-1)
        yield 1 - cosine if other is None else cosine

    return terms


def _loss_terms(tokens: Tokens) -> Callable[[Tensor, LogitsOf], Iterator[Tensor]]:
    ids = torch.tensor(tokens.ids)
    n = len(ids) - 1
    if n < 1:
        raise InterventionError("The loss needs a sentence of at least two tokens.")

    def terms(changed: Tensor, logits_of: LogitsOf) -> Iterator[Tensor]:
        rows = len(changed)
        step = max(1, _CHUNK // rows)
        for start in range(0, n, step):
            stop = min(n, start + step)
            logits = logits_of(changed[:, start:stop].reshape(-1, changed.shape[-1]))
            losses = cross_entropy(logits, ids[start + 1 : stop + 1].repeat(rows), reduction="none")
            yield losses.view(rows, -1).sum(dim=1) / n

    return terms


def _prediction_terms(
    model: Model, hidden: Tensor, position: int, name: str, answers: tuple[str, str] | None
) -> Callable[[Tensor, LogitsOf], Iterator[Tensor]]:
    before = model.logits_of(hidden[[position]])[0]
    top = int(before.argmax())
    first, second = (model.token_id(answer) for answer in answers) if answers else (top, top)

    def terms(changed: Tensor, logits_of: LogitsOf) -> Iterator[Tensor]:
        logits = logits_of(changed[:, position])  # [row, vocabulary]
        if name == "kl":
            yield kl_divergence(before, logits)
        elif name == "top1_prob":
            yield logits.softmax(dim=-1)[:, top]
        else:
            yield logits[:, first] - logits[:, second]

    return terms
