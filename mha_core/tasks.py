"""Tasks: many prompts with a right and a wrong answer.

One sentence is an anecdote. A task asks the same question of hundreds of prompts made from templates; each prompt says
which template it is from (prompts of one template are alike, so intervals resample templates) and which slices it
belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

CHANCE = 0.5  # of a task whose prompts have a foil


class TaskError(ValueError):
    """A task that cannot be had, or data that is none, as a sentence for the person who asked."""


@dataclass(frozen=True)
class Prompt:
    """One question.

    text: what the model reads. target, foil: the right and the wrong answer: one token each, read after the text (at a
        mask, in a masked LM), foil None where any other word is wrong; for "similarity" two sentences, of which the
        target is nearer in meaning to `text`; for "sequence" the target is all that is to be written, without a foil.
    template: what it was made from. slices: slice name -> value, such as {"attractors": "one"}. row: in its file, from
        1 after the header; 0: not from a file.
    """

    text: str
    target: str
    foil: str | None = None
    template: str = ""
    slices: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    row: int = 0

    def __hash__(self) -> int:
        return hash((self.text, self.target, self.foil, self.template))


@dataclass(frozen=True)
class Task:
    """A set of prompts that measures one thing.

    name: what commands take. title: for people. says: what it measures, in sentences. prompts: in order.
    question: "word": is the target the next (or masked) word; "similarity": is the target the nearer sentence;
        "sequence": is the target, token by token, what an encoder-decoder writes.
    seed: what the prompts were drawn with; None for a file.
    balanced: a slice whose values stand in a sample of any size as they do in the whole; "": none.
    """

    name: str
    title: str
    says: str
    prompts: tuple[Prompt, ...]
    question: str = "word"
    seed: int | None = None
    balanced: str = ""

    @property
    def has_foils(self) -> bool:
        """Whether each prompt names a wrong answer; otherwise the target has to be the most likely of all words."""
        return bool(self.prompts) and all(prompt.foil is not None for prompt in self.prompts)

    @property
    def slice_names(self) -> tuple[str, ...]:
        """Names of all slices, in order of appearance."""
        return tuple(dict.fromkeys(name for prompt in self.prompts for name in prompt.slices))

    @property
    def templates(self) -> tuple[str, ...]:
        """All templates, in order of appearance."""
        return tuple(dict.fromkeys(prompt.template for prompt in self.prompts))

    def sample(self, n: int | None, seed: int = 0) -> Task:
        """n prompts (None, or more than there are: all) in an order drawn from `seed`, template after template in turn,
        so that the first few already come from many templates.
        """
        rng = np.random.default_rng(seed)
        by_template: dict[str, list[Prompt]] = {}
        for place in rng.permutation(len(self.prompts)).tolist():
            by_template.setdefault(self.prompts[place].template, []).append(self.prompts[place])
        rounds = max(map(len, by_template.values()), default=0)
        order = [group[i] for i in range(rounds) for group in by_template.values() if i < len(group)]
        return replace(self, prompts=tuple(self._in_proportion(order)[:n]))

    def _in_proportion(self, prompts: list[Prompt]) -> list[Prompt]:
        """Prompts of each value of the `balanced` slice spread evenly over the whole, in their order; one of a rare
        value comes when there are prompts enough for a whole one, so that costly prompts do not delay a first look.
        """
        if not self.balanced:
            return prompts
        values = [prompt.slices.get(self.balanced, "") for prompt in prompts]
        counts, seen = Counter(values), Counter[str]()
        places = []
        for value in values:
            seen[value] += 1
            places.append(seen[value] / counts[value])
        return [prompts[i] for i in sorted(range(len(prompts)), key=places.__getitem__)]


@dataclass(frozen=True)
class Refused:
    """A row or prompt that cannot be used. row: its number, from 1 without a file's header. reason: a sentence."""

    row: int
    text: str
    reason: str


def chosen(rng: np.random.Generator, options: Sequence[str], n: int = 1) -> list[str]:
    """n different options."""
    return [options[place] for place in rng.choice(len(options), n, replace=False).tolist()]


def without_repeats(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Prompts with different texts or answers, in order."""
    return tuple({(p.text, p.target, p.foil): p for p in prompts}.values())
