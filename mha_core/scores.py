"""What is measured of an answer: from final hidden states to numbers, many runs of one question at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from mha_core.metrics import sentence_embedding
from mha_core.model import Model
from mha_core.questions import Question

METRICS = {
    "accuracy": "share of prompts whose target is above the foil (without foils: above every other word)",
    "logit_diff": "the target's logit minus the foil's (without foils: minus the best other word's); of several tokens "
    "their mean",
    "log_prob": "log-probability of the target, in nats; of several tokens their sum",
    "loss": "mean loss per token, in nats: of the prompt's own tokens, what the plan does to reading as such; in an "
    "encoder-decoder of the target's",
    "cosine_diff": "cosine with the target sentence minus cosine with the foil",
    "cosine": "cosine with the target sentence",
    "auc": "AUC: how often a target is nearer than a foil, over all pairs of prompts",
}
Scores = dict[str, Tensor]  # metric -> [run]


def read_out(question: Question, hidden: Tensor) -> Tensor:
    """What of a run the scores are made from: hidden [run, position, d_model] -> [run, answer, d_model].

    Of words the states where answers are read; of sentences their embedding.
    """
    if question.compares_sentences:
        return torch.stack([sentence_embedding(state) for state in hidden])[:, None]
    return hidden[:, list(question.positions)]


def scores_of(model: Model, question: Question, states: list[Tensor], gradients: bool = False) -> Scores:
    """Scores of runs of one question. states: what `read_out` took of the runs of each of its texts. gradients: let
    them flow back to `states`.

    Words: `accuracy` (1: every target is above its foil, or above every other word), `logit_diff`, `log_prob`; of an
    encoder-decoder `loss` too. Sentences: `accuracy` (1: the target is nearer), `cosine_diff`, `cosine`, `foil_cosine`.
    """
    if question.compares_sentences:
        return sentence_scores(*(state[:, 0] for state in states))
    runs, answers, width = states[0].shape
    logits = model.logits_of(states[0].reshape(-1, width), gradients).float()
    return token_scores(logits.view(runs, answers, -1), question)


def token_scores(logits: Tensor, question: Question) -> Scores:
    """Scores of logits [run, answer, vocabulary]."""
    targets = torch.tensor(question.targets)[None, :, None].expand(len(logits), -1, -1)
    right = logits.gather(-1, targets)[..., 0]  # [run, answer]
    if question.foils:
        foils = torch.tensor(question.foils)[None, :, None].expand(len(logits), -1, -1)
        wrong = logits.gather(-1, foils)[..., 0]
    else:
        wrong = logits.scatter(-1, targets, float("-inf")).amax(dim=-1)
    log_probs = right - logits.logsumexp(dim=-1)
    found = {
        "accuracy": (right > wrong).all(dim=1).float(), "logit_diff": (right - wrong).mean(dim=1),
        "log_prob": log_probs.sum(dim=1),
    }  # fmt: skip
    return found | ({"loss": -log_probs.mean(dim=1)} if question.texts[0].source is not None else {})


def sentence_scores(text: Tensor, target: Tensor, foil: Tensor) -> Scores:
    """Scores of embeddings [run, d_model]."""
    near, far = cosine_similarity(text, target, dim=-1), cosine_similarity(text, foil, dim=-1)
    return {"accuracy": (near > far).float(), "cosine_diff": near - far, "cosine": near, "foil_cosine": far}
