"""What a visitor chose on the Lesson page: part of `ViewState`, so that each step has its own address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mha_core.lesson import Sizes
from mha_core.lesson_steps import STEP_NAMES

ALL_STEPS = "all"
SECTIONS = ("steps", "masks", "heads", "average", "redundant", "questions")
INPUTS = ("toy", "sentence", "head")
STEP_MASKS = ("none", "causal")
MASKS = ("none", "causal", "padding")
MASK_SENTENCE = "I love building software."
SHOWN_STEPS = (*STEP_NAMES, ALL_STEPS)
WIDE_D_MODEL = 16
NARROW_HEADS = (2, 4, 8)
_SIZES = re.compile(r"(\d{1,3})x(\d{1,3})(?:x(\d{1,3}))?(?:/(\d{1,6}))?")
_ROW = re.compile(r"\d{1,3}(,\d{1,3}){3}")


@dataclass(frozen=True)
class LessonChoices:
    """Choices of the Lesson page.

    lesson: the section. step: of the step by step. given: what goes in: the worked example, the sentence, or a head
    of the model. edits: changed numbers of the worked example. sizes: "8x2", "8x2x3/1": d_model, h, d_k, seed.
    mask: in the steps. closing, sample, later, at: of the masks: which mask, the sentence, what its end is replaced by,
    the position looked at (-1: the last). narrow: how many narrow heads. row: one head's row, four whole shares.
    sharp: how large the scores of the two opposite heads are. gone, copied: of the redundant heads: which one is off
    (-1: none), and whether head 0 was copied onto head 1.
    """

    lesson: str = SECTIONS[0]
    step: str = STEP_NAMES[0]
    given: str = INPUTS[0]
    edits: str = ""
    sizes: str = "8x2"
    mask: str = STEP_MASKS[0]
    closing: str = "causal"
    sample: str = MASK_SENTENCE
    later: str = "dogs !"
    at: int = 1
    narrow: int = 4
    row: str = "45,5,45,5"
    sharp: float = 4.0
    gone: int = -1
    copied: bool = False


def sizes_of(text: str) -> Sizes:
    """Sizes as an address has them; what cannot be read is the default. Whether they fit is said by `Sizes.layer`."""
    match = _SIZES.fullmatch(text)
    if match is None:
        return Sizes()
    d_model, n_heads, d_head, seed = (None if part is None else int(part) for part in match.groups())
    return Sizes(d_model or 0, n_heads or 0, d_head, seed or 0)


def sizes_text(sizes: Sizes) -> str:
    """Sizes for an address."""
    d_head = "" if sizes.d_head is None else f"x{sizes.d_head}"
    seed = f"/{sizes.seed}" if sizes.seed else ""
    return f"{sizes.d_model}x{sizes.n_heads}{d_head}{seed}"


def read_sizes(text: str) -> str | None:
    """An address's sizes if they can be read."""
    return text if _SIZES.fullmatch(text) else None


def read_row(text: str) -> str | None:
    """An address's row of four shares if it can be read."""
    return text if _ROW.fullmatch(text) and all(int(part) <= 100 for part in text.split(",")) else None
