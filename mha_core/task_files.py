"""A task of your own: prompts from CSV or JSON lines. Every row that cannot be used is listed with its reason.

Rows are read in `task_rows.py`. What a file asks follows from the model that is asked (`question_for`): models that
predict words are asked for a word, sentence encoders which of two sentences is nearer, encoder-decoders for a text.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mha_core.model import Model
from mha_core.task_rows import MAX_BYTES, MAX_CHARACTERS, MAX_ROWS, MAX_SLICES, Row, read_rows
from mha_core.tasks import Prompt, Refused, Task, TaskError

COLUMNS = ("prompt", "target", "foil", "template")
LIMITS = (
    f"At most {MAX_BYTES // 1_000_000} MB, {MAX_ROWS:,} rows, {MAX_SLICES} slice columns and {MAX_CHARACTERS:,} "
    "characters a cell. Columns: prompt, target; foil (optional); template (optional: rows that are alike); every "
    "other column is a slice. For models that predict words target and foil are one token each, and get a space before "
    "them where they start with a letter or digit, unless the prompt ends with one; a masked language model reads "
    "them at its mask token, or at the end of a prompt without one. For sentence encoders target and foil are "
    "sentences, and the foil is needed. For encoder-decoders the target is the whole text to be written."
)
_SAYS = {
    "word": "Prompts of your own: whether the target is the most likely word.",
    "similarity": "Sentences of your own: whether the target is nearer to the prompt than the foil.",
    "sequence": "Texts of your own: whether the target is written, token by token.",
}
_EXAMPLES: Mapping[str, Sequence[Mapping[str, str]]] = {
    "word": (
        {"prompt": "The keys near the cabinet", "target": "are", "foil": "is", "template": "cabinet",
         "subject": "plural"},
        {"prompt": "The key near the cabinets", "target": "is", "foil": "are", "template": "cabinet",
         "subject": "singular"},
    ),
    "similarity": (
        {"prompt": "The doctor left early.", "target": "The doctor went away soon.",
         "foil": "The doctor did not leave early.", "template": "leave", "contrast": "negated"},
        {"prompt": "The doctor left early.", "target": "The doctor went away soon.",
         "foil": "Bread is made of flour.", "template": "leave", "contrast": "unrelated"},
    ),
    "sequence": (
        {"prompt": "the 3rd of March, 2021", "target": "2021-03-03", "template": "words", "month": "named"},
        {"prompt": "3.4.2021", "target": "2021-04-03", "template": "dots", "month": "numbered"},
    ),
}  # fmt: skip


def example_file(question: str = "word", ending: str = "csv") -> bytes:
    """A file to fill in. question: "word", "similarity" or "sequence"; ending: "csv" or "jsonl"."""
    rows = _EXAMPLES[question]
    if ending == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


EXAMPLE_CSV = example_file().decode()


def question_for(model: Model) -> str:
    """What a file asks a model: "word", "similarity" or "sequence"."""
    if model.kind == "seq2seq":
        return "sequence"
    return "word" if model.has_logits else "similarity"


@dataclass(frozen=True)
class OwnTask:
    """What a file gave: the task, the rows that cannot be used, and sentences about what else is odd.

    given: the prompts as they stand in the file.
    """

    task: Task
    refused: tuple[Refused, ...]
    notes: tuple[str, ...] = ()
    given: tuple[Prompt, ...] = field(default=(), repr=False)

    def asked_of(self, model: Model) -> OwnTask:
        """The same file as it is asked of a model."""
        return _asked(self, question_for(model))


def read_task(data: bytes, file_name: str, name: str = "own", question: str = "word") -> OwnTask:
    """A task from a file's bytes.

    Args:
        file_name: ends in .jsonl, .ndjson or .json for JSON; anything else is CSV with commas, semicolons or tabs.
        question: see `question_for`; `OwnTask.asked_of` changes it when a model is chosen.

    Raises:
        TaskError: too large, not text, no prompt or target column, or no row that can be used.
    """
    table = read_rows(data, file_name, COLUMNS)
    slices = [column for column in table.columns if column not in COLUMNS]
    if len(slices) > MAX_SLICES:
        raise TaskError(f"{file_name} has {len(slices)} slice columns; at most {MAX_SLICES} are taken.")
    has_foils = any(not isinstance(row, str) and row.get("foil", "").strip() for row in table.rows)
    given: list[Prompt] = []
    refused: list[Refused] = []
    for number, row in enumerate(table.rows, start=1):
        reason = row if isinstance(row, str) else _refusal(row, has_foils)
        if isinstance(row, str) or reason:
            refused.append(Refused(number, "" if isinstance(row, str) else row.get("prompt", ""), reason))
        else:
            given.append(_prompt(number, row, slices, has_foils))
    if not given:
        why = f" Row 1: {refused[0].reason}" if refused else ""
        raise TaskError(f"{file_name} has no row that can be used.{why} {LIMITS}")
    notes = (*table.notes, *_repeated(given))
    return _asked(OwnTask(Task(name, file_name, "", ()), tuple(refused), notes, tuple(given)), question)


def _asked(own: OwnTask, question: str) -> OwnTask:
    has_foils = own.given[0].foil is not None
    says = _SAYS[question]
    if question == "word":
        says = "Prompts of your own: whether the target is above the foil." if has_foils else says
        prompts = tuple(replace(p, target=_spaced(p.text, p.target), foil=p.foil and _spaced(p.text, p.foil))
                        for p in own.given)  # fmt: skip
    elif question == "sequence":
        says += " The foils are not used: all that is written counts." if has_foils else ""
        prompts = tuple(replace(p, foil=None) for p in own.given)
    else:
        prompts = own.given
    return replace(own, task=replace(own.task, says=says, prompts=prompts, question=question))


def _refusal(row: Row, has_foils: bool) -> str:
    """Why a row cannot be used; empty where it can."""
    for name in ("prompt", "target"):
        if not row.get(name, "").strip():
            return f"The {name} is empty."
    if has_foils and not row.get("foil", "").strip():
        return "The foil is missing; other rows have one, so every row needs one."
    for name, cell in row.items():
        if len(cell) > MAX_CHARACTERS:
            return f"The {name[:40]} has {len(cell):,} characters; at most {MAX_CHARACTERS:,} are taken."
        if any("\ud800" <= character <= "\udfff" for character in cell):
            return f"The {name[:40]} holds half a character (a lone surrogate); write the whole one."
    return ""


def _prompt(number: int, row: Row, slices: list[str], has_foils: bool) -> Prompt:
    template = row.get("template", "").strip() or f"row {number}"
    values = {name: row[name].strip() for name in slices if row.get(name, "").strip()}
    return Prompt(row["prompt"], row["target"], row["foil"] if has_foils else None, template, values, number)


def _repeated(prompts: Sequence[Prompt]) -> list[str]:
    """What is said of rows that ask the same as an earlier one: they stay, and count again."""
    first: dict[tuple[str, str, str | None], int] = {}
    again: list[tuple[int, int]] = []
    for prompt in prompts:
        earlier = first.setdefault((prompt.text, prompt.target, prompt.foil), prompt.row)
        again += [(prompt.row, earlier)] if earlier != prompt.row else []
    if not again:
        return []
    named = ", ".join(f"row {row} (as row {earlier})" for row, earlier in again[:5])
    rest = f" and {len(again) - 5:,} more" if len(again) > 5 else ""
    return [f"The same prompt and answers stand there again in {named}{rest}; each counts as a prompt of its own."]


def _spaced(text: str, word: str) -> str:
    return f" {word}" if word[:1].isalnum() and not text[-1:].isspace() else word
