"""A task of your own: prompts from CSV or JSON lines. Every row that cannot be used is listed with its reason."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mha_core.tasks import Prompt, Refused, Task, TaskError

MAX_BYTES, MAX_ROWS, MAX_SLICES, MAX_CHARACTERS = 2_000_000, 5_000, 20, 10_000
COLUMNS = ("prompt", "target", "foil", "template")
LIMITS = (
    f"At most {MAX_BYTES // 1_000_000} MB, {MAX_ROWS:,} rows, {MAX_SLICES} slice columns and {MAX_CHARACTERS:,} "
    "characters a prompt. Columns: prompt, target; foil (optional); template (optional: rows that are alike); every "
    "other column is a slice. A target or foil that starts with a letter or digit gets a space before it, unless the "
    "prompt ends with one."
)
EXAMPLE_CSV = (
    "prompt,target,foil,template,subject\n"
    '"The keys near the cabinet",are,is,cabinet,plural\n'
    '"The key near the cabinets",is,are,cabinet,singular\n'
)


@dataclass(frozen=True)
class OwnTask:
    """What a file gave: the task, and the rows that cannot be used."""

    task: Task
    refused: tuple[Refused, ...]


def read_task(data: bytes, file_name: str, name: str = "own") -> OwnTask:
    """A task from a file's bytes. file_name: ends in .jsonl or .ndjson for JSON lines; anything else is CSV.

    Raises:
        TaskError: too large, not text, no prompt or target column, or no row that can be used.
    """
    if len(data) > MAX_BYTES:
        raise TaskError(f"{file_name} has {len(data):,} bytes; at most {MAX_BYTES:,} are taken. Split it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TaskError(f"{file_name} is not UTF-8 text. Save it as CSV UTF-8 or JSON lines.") from None
    rows = _json_rows(text) if file_name.lower().endswith((".jsonl", ".ndjson")) else _csv_rows(text)
    prompts: list[Prompt] = []
    refused: list[Refused] = []
    has_foils, columns = False, {}  # type: bool, dict[str, None]
    found: list[tuple[int, Mapping[str, str] | str]] = []
    for number, row in enumerate(rows, start=1):
        if number > MAX_ROWS:
            raise TaskError(f"{file_name} has more than {MAX_ROWS:,} rows. Split it.")
        found.append((number, row))
        if not isinstance(row, str):
            columns |= dict.fromkeys(row)
            has_foils = has_foils or bool(row.get("foil", "").strip())
    slices = [column for column in columns if column not in COLUMNS]
    if len(slices) > MAX_SLICES:
        raise TaskError(f"{file_name} has {len(slices)} slice columns; at most {MAX_SLICES} are taken.")
    for number, row in found:
        reason = row if isinstance(row, str) else _refusal(row, has_foils)
        if isinstance(row, str) or reason:
            refused.append(Refused(number, "" if isinstance(row, str) else row.get("prompt", ""), reason))
        else:
            prompts.append(_prompt(number, row, slices, has_foils))
    if not prompts:
        why = f" Row 1: {refused[0].reason}" if refused else ""
        raise TaskError(f"{file_name} has no row that can be used.{why} {LIMITS}")
    says = "Prompts of your own: whether the target is " + ("above the foil." if has_foils else "the most likely word.")
    return OwnTask(Task(name, file_name, says, tuple(prompts)), tuple(refused))


def _csv_rows(text: str) -> Iterator[Mapping[str, str] | str]:
    """Rows by column, or what is wrong with a row."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [column.strip() for column in next(reader, [])]
        if not {"prompt", "target"} <= set(header) or len(set(header)) < len(header):
            raise TaskError(
                f"The first line names the columns {', '.join(header)[:200] or 'nothing'}; prompt and target must be "
                "among them, and each name only once."
            )
        for row in reader:
            if len(row) > len(header):
                yield f"It has {len(row)} cells and the header {len(header)}; put cells with commas in quotes."
            elif row:
                yield dict(zip(header, [*row, *[""] * (len(header) - len(row))], strict=True))
    except csv.Error as error:
        raise TaskError(f"This is no CSV: {error}.") from None


def _json_rows(text: str) -> Iterator[Mapping[str, str] | str]:
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield f"It is not JSON: {error}."
            continue
        if not isinstance(record, dict):
            yield "It is not a JSON object; write one object a line."
        elif any(isinstance(value, (dict, list)) for value in record.values()):
            yield "It holds a list or an object; every value must be a text, a number, true, false or null."
        else:
            yield {str(name).strip(): "" if value is None else str(value) for name, value in record.items()}


def _refusal(row: Mapping[str, str], has_foils: bool) -> str:
    """Why a row cannot be used; empty where it can."""
    for name in ("prompt", "target"):
        if not row.get(name, "").strip():
            return f"The {name} is empty."
    if len(row["prompt"]) > MAX_CHARACTERS:
        return f"The prompt has {len(row['prompt']):,} characters; at most {MAX_CHARACTERS:,} are taken."
    if has_foils and not row.get("foil", "").strip():
        return "The foil is missing; other rows have one, so every row needs one."
    return ""


def _prompt(number: int, row: Mapping[str, str], slices: list[str], has_foils: bool) -> Prompt:
    text = row["prompt"]
    foil = _spaced(text, row["foil"]) if has_foils else None
    template = row.get("template", "").strip() or f"row {number}"
    values = {name: row[name].strip() for name in slices if row.get(name, "").strip()}
    return Prompt(text, _spaced(text, row["target"]), foil, template, values, number)


def _spaced(text: str, word: str) -> str:
    return f" {word}" if word[:1].isalnum() and not text[-1:].isspace() else word
