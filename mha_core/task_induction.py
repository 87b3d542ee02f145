"""Induction as a task: random tokens of which a few come again; what came after them last time?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mha_core.induction import ordinary_ids
from mha_core.model import Model
from mha_core.pretrained import PretrainedModel
from mha_core.task_words_by_frequency import FREQUENT, RARE
from mha_core.tasks import Prompt, Task, TaskError

# Distance in tokens -> prompts. A long one costs as much as dozens of short ones, so that there are fewer.
DISTANCES = {8: 90, 32: 90, 128: 80, 384: 30, 1024: 10}
SHOWN_AGAIN = 4
BEFORE = 8  # at most, of tokens before those that come again
_WORD = re.compile(r"^ [a-z]{3,}$")
_ENOUGH = 1000


def induction(model: Model, seed: int = 0) -> Task:
    """Random words of a model's own vocabulary, four of which come again 8 to 1,024 tokens later, as far as it takes.

    Raises:
        TaskError: the model predicts no next word, or has too few words that are one token.
    """
    says = (
        "Whether the token that followed last time is above another token, taken at random from the same sequence, "
        "where random words come again after 8 to 1,024 tokens. Nothing but the repetition helps. Slices: the distance "
        "(of the long ones there are fewer prompts, in proportion in every sample), and whether the answer is in the "
        "earlier half of the vocabulary's words (frequent: tokenizers take common pieces first) or the later (rare)."
    )
    if model.kind != "causal-lm" or not isinstance(model, PretrainedModel):
        raise TaskError(f"{model.details.title} predicts no next word; “Induction” is for language models that do.")
    pool = _words(model)
    if len(pool) < _ENOUGH:
        raise TaskError(
            f"{model.details.title} has {len(pool)} words that are one token each; induction needs {_ENOUGH} to draw "
            "from."
        )
    rng = np.random.default_rng([seed, 4])
    room = model.max_tokens - SHOWN_AGAIN - BEFORE - 4
    prompts = tuple(
        _prompt(rng, pool, distance, number)
        for distance, count in DISTANCES.items()
        if distance <= min(room, len(pool) - BEFORE)
        for number in range(count)
    )
    return Task("induction", "Induction", says, prompts, seed=seed, balanced="distance")


def _words(model: PretrainedModel) -> list[str]:
    """Words with their space before them that are one token, in the order of the vocabulary."""
    surfaces = [(number, model.surface(number)) for number in ordinary_ids(model)]
    return [surface for number, surface in surfaces if _WORD.match(surface) and model.token_id(surface) == number]


def _prompt(rng: np.random.Generator, pool: Sequence[str], distance: int, number: int) -> Prompt:
    """`distance` tokens from the repeated ones to themselves, and up to `BEFORE` before them."""
    before = int(rng.integers(0, BEFORE + 1))
    places = rng.choice(len(pool), before + distance, replace=False).tolist()
    answer = places[before + SHOWN_AGAIN]
    others = [place for place in places if place != answer and place not in places[before : before + SHOWN_AGAIN]]
    foil = others[int(rng.integers(len(others)))]
    again = places[before : before + SHOWN_AGAIN]
    text = "".join(pool[place] for place in [*places, *again])
    word = FREQUENT if answer < len(pool) // 2 else RARE
    slices = {"distance": str(distance), "word": word}
    # Every sequence is drawn anew: it is a template of its own.
    return Prompt(text, pool[answer], pool[foil], f"sequence {distance}-{number}", slices)
