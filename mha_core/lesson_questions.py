"""What is often believed about heads, what is so, and where on the Lesson page it can be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mha_core.layer import MultiHeadAttention
from mha_core.lesson import TOY, Sizes, toy, work
from mha_core.lesson_edits import with_cells
from mha_core.lesson_more import n_parameters


@dataclass(frozen=True)
class Question:
    """answer: computed where it has numbers. changes: the page's choices that show it; "edits" is matrices."""

    question: str
    answer: Callable[[], str]
    button: str
    changes: Callable[[], dict[str, Any]]


def _many_tokens() -> str:
    row = work(toy()).weights[0, -1]
    return (
        f"No. A head shares its attention out over all words that it may see; in the worked example “learn.” gives "
        f"{float(row[1]):.2f} to itself and {float(row[0]):.2f} to “I”."
    )


def _parameters() -> str:
    one, eight = (n_parameters(MultiHeadAttention(512, n_heads)) for n_heads in (1, 8))
    same = "the same" if one == eight else "not the same"
    return (
        f"No. A layer 512 wide has {one:,} weights with one head and {eight:,} with eight: {same}. The width is "
        "divided among the heads, not multiplied."
    )


def _more_is_better() -> str:
    narrow = MultiHeadAttention(512, 64).d_head
    return (
        f"No. 64 heads in 512 dimensions leave each head only {narrow} numbers to match with, and heads can be copies "
        "of each other: one of them can then go without loss."
    )


SILENT_HEAD, _ = with_cells(TOY, [(f"V{1}", row, column, "0") for row in range(4) for column in range(2)])
"""The worked example with W_V of H1 all zero."""


def _explanation() -> str:
    worked = work(toy(SILENT_HEAD))
    share = float(worked.weights[1].max())
    length = float(torch.linalg.vector_norm(worked.contributions[1]))
    return (
        f"No. A map shows where a head looks, not what it does with it. With W_V of H1 set to zero its map still has "
        f"weights up to {share:.2f}, and what it adds has length {length:.2f}."
    )


QUESTIONS = (
    Question(
        "Does one head look at one word only?", _many_tokens, "See the softmax",
        lambda: {"lesson": "steps", "given": "toy", "step": "softmax", "mask": "none", "edits": TOY},
    ),
    Question(
        "Is each head given a role, such as grammar or names?",
        lambda: "No. All heads run the same code; they differ in their numbers only. Training may lead them to other "
        "patterns. Change W_Q of one head and its map changes, the other head’s does not.",
        "Change a head’s numbers",
        lambda: {"lesson": "steps", "given": "toy", "step": "project"},
    ),
    Question(
        "Do eight heads have eight times the parameters?", _parameters, "Compare one with several",
        lambda: {"lesson": "heads", "narrow": 8},
    ),
    Question(
        "Are more heads always better?", _more_is_better, "Take one out",
        lambda: {"lesson": "redundant", "copied": True},
    ),
    Question(
        "Is a head’s map an explanation?", _explanation, "See a map that does nothing",
        lambda: {"lesson": "steps", "given": "toy", "step": "output", "mask": "none", "edits": SILENT_HEAD},
    ),
    Question(
        "Does the model average its heads?",
        lambda: "No. It puts their outputs side by side, and W_O mixes them with weights of its own. An average is "
        "something that tools make for showing.",
        "See what averaging hides",
        lambda: {"lesson": "average", "sharp": 4.0},
    ),
    Question(
        "Does the mask delete weights after the softmax?",
        lambda: "No. It adds minus infinity before it, so that closed cells become 0 and the open ones sum to 1.",
        "See the mask",
        lambda: {"lesson": "steps", "given": "sentence", "step": "mask", "mask": "causal", "sizes": _sizes(Sizes())},
    ),
    Question(
        "Does attention replace a word’s numbers?",
        lambda: "No. Its output is added to them. What was there goes on, and what attention brought comes on top.",
        "See the sum",
        lambda: {"lesson": "steps", "given": "toy", "step": "residual"},
    ),
)  # fmt: skip


def _sizes(sizes: Sizes) -> str:
    return f"{sizes.d_model}x{sizes.n_heads}"
