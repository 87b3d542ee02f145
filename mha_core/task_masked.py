"""Masked word as a task for masked language models: a gap with words on both sides of it.

No masked model is packaged. That the prompts have an answer was checked with SmolLM2: of 414 sentences 92.8 % are
likelier to it with the target in the gap than with the foil (98 % by number and gender, 87 % opposites, 89 % kinds).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mha_core.model import Model
from mha_core.task_words_by_frequency import CRITERION, FREQUENT, KINDS, NOUNS, OPPOSITES, RARE, SUBJECTS
from mha_core.tasks import Prompt, Task, TaskError, chosen, without_repeats

PER_TEMPLATE_AND_FREQUENCY = 10
GAP = "[gap]"
_Drawn = tuple[str, str, str]  # the word that tells, target, foil
# {c}: the word that tells which answer is right. Two templates each with the gap early, in the middle, and late.
_VERB = (
    (f"The {{c}} {GAP} still standing there when we came back in the evening.", ("was", "were")),
    (f"We were told that the {{c}} {GAP} been moved to another place.", ("has", "have")),
    (f"After all the rain of last week, we saw that the {{c}} near the lake {GAP} wet.", ("was", "were")),
    (f"Look, {GAP} {{c}} could be seen from very far away in those days.", ("this", "these")),
    (f"I do not know whether {GAP} {{c}} came from the same place.", ("this", "these")),
    (f"Nobody in the whole town could remember who had brought {GAP} {{c}} here.", ("this", "these")),
)
_POSSESSIVE = (
    f"The {{c}} lost {GAP} keys on the way to the station yesterday.",
    f"The {{c}} and {GAP} friends came to see us on Sunday morning.",
    f"Early in the morning the {{c}} put on {GAP} shoes and went out for a walk.",
    f"Last summer the {{c}} sold {GAP} house and moved to another country.",
    f"When the bus had finally arrived, the {{c}} got on and took out {GAP} book.",
    f"We all watched as the {{c}} sat down and closed {GAP} eyes.",
)
_OPPOSITE = (
    f"It is {GAP} rather than {{c}}, whatever they may tell you about it.",
    f"It was {GAP}, not {{c}}, as all of us could see at once.",
    f"Yesterday it was still {{c}}, today it is {GAP}, and nobody can say why it changed.",
    f"While the old one is {{c}}, the new one is {GAP}, as everybody here can tell you.",
    f"The first one was {{c}}, but the second one was the opposite: it was {GAP}.",
    f"One of the two brothers likes it {{c}}, and the other one likes it {GAP}.",
)
_KIND = (
    f"This {GAP}, the {{c}}, is well known all over the world today.",
    f"Every {GAP} such as the {{c}} has a place in this book.",
    f"They drew the {{c}}, because that {GAP} is easy to recognise from far away.",
    f"Once she had seen the {{c}}, no other {GAP} in the place was good enough.",
    f"He had read about the {{c}} and wanted to see this kind of {GAP}.",
    f"We all know that the {{c}} is a kind of {GAP}.",
)


def masked_word(model: Model, seed: int = 0) -> Task:
    """Sentences with one gap, which holds the model's own mask token.

    Raises:
        TaskError: the model fills no gaps.
    """
    mask = getattr(getattr(model, "tokenizer", None), "mask_token", None)
    if model.kind != "masked-lm" or not mask:
        raise TaskError(f"{model.details.title} fills no gaps; “Masked word” is for masked language models.")
    says = (
        "Whether the word that belongs in a gap is above one that does not, with words on both sides. Slices: what "
        "tells (the number of a noun, the gender of a person, an adjective that the answer contradicts, a member of "
        "the kind that is asked for), where the gap stands (early, middle, late), the right word, and whether the word "
        f"that tells is frequent or rare ({CRITERION})."
    )
    return Task("masked-word", "Masked word", says, masked_prompts(mask, seed), seed=seed)


def masked_prompts(mask: str, seed: int = 0) -> tuple[Prompt, ...]:
    """The prompts of `masked_word`. mask: what the gap holds."""
    rng = np.random.default_rng([seed, 6])
    prompts = []
    for number, (knowledge, template, draw) in enumerate(_templates()):
        for frequency in (FREQUENT, RARE) * PER_TEMPLATE_AND_FREQUENCY:
            cue, target, foil = draw(rng, frequency)
            slices = {"knowledge": knowledge, "gap": _gap(template), "word": frequency, "answer": target}
            text = template.replace(GAP, mask).replace("{c}", cue)
            prompts.append(Prompt(text, f" {target}", f" {foil}", f"masked word {number}", slices))
    return without_repeats(prompts)


def _templates() -> list[tuple[str, str, Callable[[np.random.Generator, str], _Drawn]]]:
    """What tells, the template, and how its words are drawn."""
    found = [("number", template, _number(forms)) for template, forms in _VERB]
    found += [("gender", template, _gender) for template in _POSSESSIVE]
    found += [("opposite", template, _opposite) for template in _OPPOSITE]
    return [*found, *(("kind", template, _kind) for template in _KIND)]


def _number(forms: tuple[str, str]) -> Callable[[np.random.Generator, str], _Drawn]:
    def draw(rng: np.random.Generator, frequency: str) -> _Drawn:
        noun = NOUNS.drawn(rng, frequency)[0]
        return (f"{noun}s", forms[1], forms[0]) if rng.integers(2) else (noun, *forms)

    return draw


def _gender(rng: np.random.Generator, frequency: str) -> _Drawn:
    answers = {"he": ("his", "her"), "she": ("her", "his")}
    pronoun = chosen(rng, tuple(answers))[0]
    return (SUBJECTS[pronoun].drawn(rng, frequency)[0], *answers[pronoun])


def _opposite(rng: np.random.Generator, frequency: str) -> _Drawn:
    same, opposite = list(OPPOSITES)[int(rng.integers(len(OPPOSITES)))]
    return OPPOSITES[same, opposite].drawn(rng, frequency)[0], opposite, same


def _kind(rng: np.random.Generator, frequency: str) -> _Drawn:
    right, wrong = chosen(rng, tuple(KINDS), 2)
    if {right, wrong} == {"animal", "bird"}:  # a bird is an animal
        wrong = "building"
    return KINDS[right].drawn(rng, frequency)[0], right, wrong


def _gap(template: str) -> str:
    """Where the gap stands: in the first, second or last third of the words."""
    words = template.split()
    before = next(place for place, word in enumerate(words) if GAP in word)
    return ("early", "middle", "late")[min(2, 3 * before // len(words))]
