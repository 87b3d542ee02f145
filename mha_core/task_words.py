"""Tasks of one word, from templates: subject-verb agreement, indirect object, pronoun agreement.

Templates and words are our own. Each prompt's words are drawn from a seed.
"""

from __future__ import annotations

import numpy as np

from mha_core.tasks import Prompt, Task, chosen, without_repeats

_NOUNS = (
    "key", "door", "letter", "picture", "window", "teacher", "doctor", "driver", "farmer", "painter", "table", "chair",
    "garden", "river", "mountain", "bridge", "engine", "lamp", "ticket", "student", "guard", "neighbour", "writer",
    "pilot", "house", "boat", "tower", "road", "field", "car",
)  # fmt: skip
_VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
# What stands before the subject; what joins the first and the second attractor to it.
_AGREEMENT = (
    ("The", "near the", "beside the"), ("The old", "behind the", "of the"), ("Today the", "with the", "near the"),
    ("I know that the", "next to the", "of the"), ("She said that the", "beside the", "behind the"),
    ("Everyone could see that the", "in front of the", "near the"), ("We heard that the", "from the", "behind the"),
    ("It seems that the", "opposite the", "with the"), ("Last year the", "close to the", "of the"),
    ("The small", "by the", "near the"), ("He told us that the", "without the", "from the"),
    ("In the morning the", "around the", "beside the"), ("Nobody knew that the", "above the", "near the"),
    ("The famous", "of the", "behind the"), ("According to the report, the", "between the trees and the", "of the"),
    ("They believe that the", "along with the", "near the"), ("In this story the", "before the", "with the"),
    ("My friend thinks that the", "far from the", "beside the"), ("After the storm, the", "under the", "near the"),
    ("You can tell that the", "across from the", "of the"), ("The new", "below the", "behind the"),
    ("Once again, the", "beyond the", "near the"), ("The young man said that the", "past the", "of the"),
    ("At first, the", "against the", "with the"),
)  # fmt: skip


def agreement(seed: int = 0) -> Task:
    """Does the verb agree with its subject, past nouns of another number that stand nearer to it?"""
    rng = np.random.default_rng([seed, 1])
    prompts = []
    for number, frame in enumerate(_AGREEMENT):
        for plural in (False, True):
            for attractors in ((), (False,), (True,), (False, False), (True, True)):
                for verbs in chosen_pairs(rng, 2):
                    prompts.append(_agreement_prompt(rng, number, frame, plural, attractors, verbs))
    says = (
        "Whether the verb form that agrees with the subject (“are” after “The keys near the cabinet”) is above the one "
        "that does not. Slices: the subject's number, how many nouns stand between subject and verb (attractors), "
        "their number, and whether it is the subject's."
    )
    return Task("agreement", "Subject-verb agreement", says, without_repeats(prompts), seed=seed)


def chosen_pairs(rng: np.random.Generator, n: int) -> list[tuple[str, str]]:
    """n different verb pairs, singular and plural."""
    return [_VERBS[place] for place in rng.choice(len(_VERBS), n, replace=False).tolist()]


def _agreement_prompt(
    rng: np.random.Generator, number: int, frame: tuple[str, str, str], plural: bool, attractors: tuple[bool, ...],
    verbs: tuple[str, str],
) -> Prompt:  # fmt: skip
    nouns = chosen(rng, _NOUNS, 1 + len(attractors))
    words = [frame[0], _inflected(nouns[0], plural)]
    for joint, noun, many in zip(frame[1:], nouns[1:], attractors, strict=False):
        words += [joint, _inflected(noun, many)]
    right, wrong = (verbs[1], verbs[0]) if plural else verbs
    own = "plural" if plural else "singular"
    of_attractors = "none" if not attractors else "plural" if attractors[0] else "singular"
    slices = {
        "subject": own, "attractors": ("none", "one", "two")[len(attractors)], "attractor number": of_attractors,
        "attractor against subject": "none" if not attractors else "same" if own == of_attractors else "other",
        "answer": right.strip(),
    }  # fmt: skip
    return Prompt(" ".join(words), right, wrong, f"agreement {number}", slices)


def _inflected(noun: str, plural: bool) -> str:
    return f"{noun}s" if plural else noun


_NAMES = (
    "Mary", "John", "Tom", "James", "Anna", "Sarah", "David", "Peter", "Paul", "Mark", "Alice", "Emma", "Lisa", "Jack",
    "Kate", "Robert", "Michael", "Jane", "Laura", "Daniel", "Martin", "George", "Susan", "Simon",
)  # fmt: skip
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
            for thing in chosen(rng, _THINGS, 8):
                once, twice = chosen(rng, _NAMES, 2)
                first, second = (once, twice) if order == "ABBA" else (twice, once)
                text = template.format(A=first, B=second, S=twice, thing=thing)
                slices = {"order": order, "thing": thing}
                prompts.append(Prompt(text, f" {once}", f" {twice}", f"indirect object {number}", slices))
    says = (
        "Whether the name mentioned once (“ Mary” after “When Mary and John went to the store, John gave a drink to”) "
        "is above the name mentioned twice. Slices: the order of the names (ABBA: the answer came first; BABA: second) "
        "and what is given."
    )
    return Task("indirect-object", "Indirect object", says, without_repeats(prompts), seed=seed)


_SUBJECTS = {
    "he": ("boy", "man", "king", "father", "uncle", "brother", "grandfather", "prince", "husband", "son"),
    "she": ("girl", "woman", "queen", "mother", "aunt", "sister", "grandmother", "princess", "wife", "daughter"),
    "it": ("dog", "horse", "cat", "bird", "cow", "rabbit", "fox", "bear", "sheepdog", "elephant"),
    "they": ("dogs", "horses", "boys", "birds", "women", "girls", "children", "bears", "sisters", "farmers"),
}
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
        for answer, subjects in _SUBJECTS.items():
            for subject in chosen(rng, subjects, 4):
                slices = {"answer": answer, "contrast": "gender" if answer in ("he", "she") else "number"}
                text = template.format(s=subject)
                prompts.append(Prompt(text, f" {answer}", _FOILS[answer], f"pronoun {number}", slices))
    says = (
        "Whether the pronoun that agrees with the subject (“it” after “The animal crossed the road because”) is above "
        "the one that does not: “he” against “she”, “it” against “they”. Slices: the right pronoun, and whether gender "
        "or number tells."
    )
    return Task("pronoun", "Pronoun agreement", says, without_repeats(prompts), seed=seed)
