"""Tasks of one word, from templates: subject-verb agreement, indirect object, pronoun agreement.

Templates are our own. Each prompt's words are drawn from a seed.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from mha_core.task_words_by_frequency import CRITERION, FREQUENT, NAMES, NOUNS, RARE, SUBJECTS
from mha_core.tasks import Prompt, Task, chosen, without_repeats

_VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
_SINGULAR, _PLURAL = "singular", "plural"
# Numbers of the nouns between subject and verb (attractors).
_ATTRACTORS = ((), (_SINGULAR,), (_PLURAL,), (_SINGULAR, _SINGULAR), (_PLURAL, _PLURAL), (_SINGULAR, _PLURAL),
               (_PLURAL, _SINGULAR))  # fmt: skip
# What stands before the subject; what joins the first and the second attractor to it; the end of the relative clause.
_AGREEMENT = (
    ("The", "near the", "beside the", ""),
    ("Today the", "with the", "near the", ""),
    ("I know that the", "next to the", "of the", ""),
    ("She said that the", "beside the", "behind the", ""),
    ("Everyone could see that the", "in front of the", "near the", ""),
    ("We heard that the", "from the", "behind the", ""),
    ("Last year the", "close to the", "of the", ""),
    ("He told us that the", "without the", "from the", ""),
    ("In the morning the", "around the", "beside the", ""),
    ("Nobody knew that the", "above the", "near the", ""),
    ("They believe that the", "under the", "near the", ""),
    ("My friend thinks that the", "far from the", "beside the", ""),
    ("The new", "below the", "behind the", ""),
    ("Once again, the", "beyond the", "near the", ""),
    ("The", "that the", "near the", "had never liked"),
    ("I hear that the", "that the", "beside the", "could not find"),
    ("They say that the", "that the", "behind the", "had seen last week"),
    ("Today the", "which the", "near the", "would not give away"),
    ("Perhaps the", "that the", "behind the", "had bought last year"),
    ("We were told that the", "which the", "beside the", "did not want"),
    ("The old", "that the", "near the", "had almost hit"),
    ("It seems that the", "that the", "behind the", "could not remember"),
    ("She knows that the", "which the", "near the", "had been waiting for"),
    ("In this story the", "that the", "beside the", "did not understand"),
)


def agreement(seed: int = 0) -> Task:
    """Does the verb agree with its subject, past nouns of another number that stand nearer to it?"""
    rng = np.random.default_rng([seed, 1])
    prompts = [
        _agreement_prompt(rng, number, number_of_subject, attractors, frequency)
        for number in range(len(_AGREEMENT))
        for number_of_subject in (_SINGULAR, _PLURAL)
        for attractors in _ATTRACTORS
        for frequency in (FREQUENT, RARE)
    ]
    says = (
        "Whether the verb form that agrees with the subject (“are” after “The keys near the cabinet”) is above the one "
        "that does not. Slices: the subject's number; how many nouns stand between subject and verb (attractors), "
        "their number, and whether it is the subject's (mixed: one of each); what they stand in (a phrase, or a "
        f"relative clause); the right verb; and whether the subject is a frequent or a rare word ({CRITERION})."
    )
    return Task("agreement", "Subject-verb agreement", says, without_repeats(prompts), seed=seed)


def _agreement_prompt(
    rng: np.random.Generator, number: int, of_subject: str, attractors: tuple[str, ...], frequency: str
) -> Prompt:
    start, *joints, end = _AGREEMENT[number]
    subject = NOUNS.drawn(rng, frequency)[0]
    others = chosen(rng, [noun for noun in NOUNS.frequent if noun != subject], len(attractors))
    words = [start, _inflected(subject, of_subject)]
    for joint, noun, of_noun in zip(joints, others, attractors, strict=False):
        words += [joint, _inflected(noun, of_noun)]
    words += [end] if attractors and end else []
    singular, plural = _VERBS[int(rng.integers(len(_VERBS)))]
    right, wrong = (plural, singular) if of_subject == _PLURAL else (singular, plural)
    of_attractors = "none" if not attractors else attractors[0] if len(set(attractors)) == 1 else "mixed"
    against = {"none": "none", "mixed": "mixed", of_subject: "same"}.get(of_attractors, "other")
    slices = {
        "subject": of_subject, "attractors": ("none", "one", "two")[len(attractors)], "attractor number": of_attractors,
        "attractor against subject": against,
        "between": "nothing" if not attractors else "relative clause" if end else "phrase",
        "word": frequency, "answer": right.strip(),
    }  # fmt: skip
    return Prompt(" ".join(words), right, wrong, f"agreement {number}", slices)


def _inflected(noun: str, number: str) -> str:
    return f"{noun}s" if number == _PLURAL else noun


_THINGS = ("drink", "book", "letter", "ring", "key", "gift", "ticket", "ball")
# A and B are the names in the order of mention, S the one that is named again.
_INDIRECT = (
    "When {A} and {B} went to the store, {S} gave a {thing} to",
    "After {A} and {B} left the house, {S} handed a {thing} to",
    "While {A} and {B} were at the park, {S} gave a {thing} to",
    "Then {A} and {B} had a long talk, and {S} gave a {thing} to",
    "When {A} and {B} met at the station, {S} passed a {thing} to",
    "After {A} and {B} had lunch together, {S} offered a {thing} to",
    "Yesterday {A} and {B} went to school. {S} brought a {thing} for",
    "Once {A} and {B} arrived at the office, {S} showed a {thing} to",
    "{A} and {B} were working in the garden. {S} threw a {thing} to",
    "{A} and {B} sat down in the kitchen. Then {S} gave a {thing} to",
    "Because {A} and {B} were friends, {S} gave a {thing} to",
    "Before {A} and {B} said goodbye, {S} gave a {thing} to",
    "As {A} and {B} walked along the river, {S} handed a {thing} to",
    "Last week {A} and {B} visited the museum, and {S} bought a {thing} for",
    "When {A} and {B} finished the game, {S} gave a {thing} to",
    "Since {A} and {B} were late, {S} took a {thing} and gave it to",
    "At the party, {A} and {B} were talking, and {S} gave a {thing} to",
    "The teacher called {A} and {B}, and {S} showed a {thing} to",
    "In the library {A} and {B} shared a table. {S} passed a {thing} to",
    "During the holidays {A} and {B} met again, and {S} sent a {thing} to",
    "On the train, {A} and {B} began to talk. After a while {S} gave a {thing} to",
    "{A} and {B} lived in the same street. One day {S} brought a {thing} to",
    "Everybody saw {A} and {B} at the market, where {S} sold a {thing} to",
    "As soon as {A} and {B} came home, {S} gave a {thing} to",
)


def indirect_object(seed: int = 0) -> Task:
    """Does the name that was mentioned once stand above the one that was mentioned twice (Wang et al. 2022)?"""
    rng = np.random.default_rng([seed, 2])
    prompts = []
    for number, template in enumerate(_INDIRECT):
        for order in ("ABBA", "BABA"):
            for frequency, thing in zip((FREQUENT, RARE) * 4, chosen(rng, _THINGS, 8), strict=True):
                once, twice = NAMES.drawn(rng, frequency, 2)
                first, second = (once, twice) if order == "ABBA" else (twice, once)
                text = template.format(A=first, B=second, S=twice, thing=thing)
                slices = {"order": order, "thing": thing, "word": frequency, "answer": once}
                prompts.append(Prompt(text, f" {once}", f" {twice}", f"indirect object {number}", slices))
    says = (
        "Whether the name mentioned once (“ Mary” after “When Mary and John went to the store, John gave a drink to”) "
        "is above the name mentioned twice. Slices: the order of the names (ABBA: the answer came first; BABA: "
        f"second), what is given, the right name, and whether both names are frequent or rare ({CRITERION})."
    )
    return Task("indirect-object", "Indirect object", says, without_repeats(prompts), seed=seed)


_FOILS = {"he": " she", "she": " he", "it": " they", "they": " it"}
_PRONOUN = (
    "The {s} ran away because", "The {s} could not sleep because", "The {s} stopped eating because",
    "The {s} crossed the road because", "The {s} stayed inside because", "The {s} went back home because",
    "The {s} looked tired because", "The {s} drank some water because", "The {s} walked slowly because",
    "The {s} jumped into the river because", "The {s} slept all day because", "The {s} fell down because",
    "The {s} waited at the door because", "The {s} hid behind the tree because", "The {s} left the house because",
    "The {s} turned around because", "The {s} followed the road because", "The {s} got lost in the forest because",
    "The {s} woke up early because", "The {s} lay on the ground because", "The {s} made a loud noise because",
    "The {s} did not move because", "The {s} came closer because", "The {s} sat under the table because",
)  # fmt: skip


def pronoun(seed: int = 0) -> Task:
    """Does the pronoun agree with the one noun it can stand for?"""
    rng = np.random.default_rng([seed, 3])
    prompts = []
    for number, template in enumerate(_PRONOUN):
        for (answer, subjects), frequency in product(SUBJECTS.items(), (FREQUENT, RARE)):
            for subject in subjects.drawn(rng, frequency, 2):
                slices = {"answer": answer, "contrast": "gender" if answer in ("he", "she") else "number",
                          "word": frequency}  # fmt: skip
                text = template.format(s=subject)
                prompts.append(Prompt(text, f" {answer}", _FOILS[answer], f"pronoun {number}", slices))
    says = (
        "Whether the pronoun that agrees with the subject (“it” after “The animal crossed the road because”) is above "
        "the one that does not: “he” against “she”, “it” against “they”. Slices: the right pronoun, whether gender "
        f"or number tells, and whether the subject is a frequent or a rare word ({CRITERION})."
    )
    return Task("pronoun", "Pronoun agreement", says, without_repeats(prompts), seed=seed)
