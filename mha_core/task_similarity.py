"""Sentence similarity as a task for encoders: a paraphrase against a negated or an unrelated sentence."""

from __future__ import annotations

import numpy as np

from mha_core.task_words_by_frequency import CRITERION, FREQUENT, PEOPLE, PLACES, RARE
from mha_core.tasks import Prompt, Task, without_repeats

# A sentence, another way to say it, and its negation. {a}: who; {b}: a place, a thing or another person.
_SIMILARITY = (
    (
        "The {a} bought a house in the {b}.",
        "A home in the {b} was purchased by the {a}.",
        "The {a} never bought a house in the {b}.",
    ),
    (
        "The {a} arrived late at the {b}.",
        "The {a} was not on time at the {b}.",
        "The {a} did not arrive late at the {b}.",
    ),
    (
        "The {a} likes to walk near the {b}.",
        "Walking close to the {b} is something the {a} enjoys.",
        "The {a} does not like to walk near the {b}.",
    ),
    (
        "The {a} lost a bag at the {b}.",
        "At the {b}, the {a} could no longer find a bag.",
        "The {a} has not lost a bag at the {b}.",
    ),
    ("The {a} was born in the {b}.", "The {b} is where the {a} was born.", "The {a} was not born in the {b}."),
    ("The {a} is very happy in the {b}.", "Life in the {b} makes the {a} glad.", "The {a} is not happy in the {b}."),
    (
        "The {a} sold an old car at the {b}.",
        "An old vehicle was sold by the {a} at the {b}.",
        "The {a} did not sell an old car at the {b}.",
    ),
    (
        "The {a} knows everybody in the {b}.",
        "There is nobody in the {b} whom the {a} does not know.",
        "The {a} does not know anybody in the {b}.",
    ),
    (
        "The {a} told a story about the {b}.",
        "A tale about the {b} was told by the {a}.",
        "The {a} told no story about the {b}.",
    ),
    (
        "The {a} left the {b} this morning.",
        "This morning the {a} went away from the {b}.",
        "The {a} did not leave the {b} this morning.",
    ),
    (
        "The {a} can see the {b} from the window.",
        "From the window, the {b} is visible to the {a}.",
        "The {a} cannot see the {b} from the window.",
    ),
    (
        "The {a} wants to work in the {b}.",
        "A job in the {b} is what the {a} would like.",
        "The {a} does not want to work in the {b}.",
    ),
    (
        "The {a} found a coin in the {b}.",
        "A coin was discovered in the {b} by the {a}.",
        "The {a} found no coin in the {b}.",
    ),
    (
        "The {a} wrote a letter about the {b}.",
        "A letter about the {b} was written by the {a}.",
        "The {a} has never written a letter about the {b}.",
    ),
    ("The {a} is afraid of the {b}.", "The {b} frightens the {a}.", "The {a} is not afraid of the {b}."),
    (
        "The {a} slept all day in the {b}.",
        "The {a} spent the whole day asleep in the {b}.",
        "The {a} did not sleep in the {b}.",
    ),
    (
        "The {a} paid for the meal at the {b}.",
        "The bill for the food at the {b} was paid by the {a}.",
        "The {a} did not pay for the meal at the {b}.",
    ),
    (
        "The {a} took a picture of the {b}.",
        "A photo of the {b} was taken by the {a}.",
        "The {a} took no picture of the {b}.",
    ),
    ("The {a} got sick in the {b}.", "The {a} became ill in the {b}.", "The {a} did not get sick in the {b}."),
    (
        "The {a} opened a small shop in the {b}.",
        "A little store in the {b} was started by the {a}.",
        "The {a} did not open a shop in the {b}.",
    ),
    (
        "The {a} will come back to the {b} soon.",
        "Before long the {a} will return to the {b}.",
        "The {a} will not come back to the {b}.",
    ),
    (
        "The {a} forgot the way to the {b}.",
        "The {a} did not remember how to get to the {b}.",
        "The {a} did not forget the way to the {b}.",
    ),
    (
        "The {a} met an old friend at the {b}.",
        "At the {b}, an old friend ran into the {a}.",
        "The {a} met no friend at the {b}.",
    ),
    ("The {a} began to sing in the {b}.", "In the {b}, the {a} started singing.", "The {a} did not sing in the {b}."),
)


def similarity(seed: int = 0) -> Task:
    """Is a paraphrase nearer than a sentence that says the opposite, or something else?"""
    rng = np.random.default_rng([seed, 5])
    prompts = []
    for number, (sentence, paraphrase, negated) in enumerate(_SIMILARITY):
        for frequency in (FREQUENT, RARE) * 4:
            (who, other_who), (where, other_where) = (words.drawn(rng, frequency, 2) for words in (PEOPLE, PLACES))
            other = _SIMILARITY[(number + int(rng.integers(1, len(_SIMILARITY)))) % len(_SIMILARITY)][0]
            foils = {"negated": negated.format(a=who, b=where), "same words": other.format(a=who, b=where),
                     "unrelated": other.format(a=other_who, b=other_where)}  # fmt: skip
            for contrast, foil in foils.items():
                slices = {"contrast": contrast, "word": frequency}
                text, target = sentence.format(a=who, b=where), paraphrase.format(a=who, b=where)
                prompts.append(Prompt(text, target, foil, f"similarity {number}", slices))
    says = (
        "Whether a sentence's paraphrase is nearer to it (cosine of the mean-pooled embeddings) than another sentence: "
        "its negation, another statement about the same person and place, or an unrelated one (slice: contrast). A "
        "second slice: whether person and place are frequent or rare words "
        f"({CRITERION}). AUC is over all pairs. Encoders are known to pass over negation."
    )
    return Task("similarity", "Sentence similarity", says, without_repeats(prompts), "similarity", seed)
