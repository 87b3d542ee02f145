"""Date normalisation as a task for the small translator of ours: a written date, to be written as year-month-day."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

from mha_core.date_translator import DateTranslator
from mha_core.dates import FIRST, LAST, Format, formats, is_held_out
from mha_core.model import Model
from mha_core.tasks import Prompt, Task, TaskError, without_repeats

PER_TEMPLATE = 24
_SEPARATORS = (("/", "slashes"), (".", "dots"), ("-", "dashes"))


def date_normalisation(model: Model, seed: int = 0) -> Task:
    """Written dates in every template of `mha_core.dates`; half of the dates were never trained on, and where there
    are such, half of the formats.

    Raises:
        TaskError: the model is not the date translator.
    """
    if not isinstance(model, DateTranslator):
        raise TaskError(
            f"{model.details.title} was not made to write dates; “Date normalisation” is for the date translator. Give "
            "an encoder-decoder a file of your own, with what it is to write as the target."
        )
    rng = random.Random(f"{seed} dates")  # noqa: S311 - no secret
    prompts = [
        _prompt(rng, name, group, number) for name, group in _by_template().items() for number in range(PER_TEMPLATE)
    ]
    says = (
        "Whether a date, written in one of many ways, becomes its ISO form (“the 3rd of March, 2021”: 2021-03-03), to "
        "the last character. Slices: the format's family, whether the month is a name or a number, digits of the year, "
        "whether a weekday stands before it, whether the format and the date were trained on or are new, and of the "
        "right answer the century and the month."
    )
    return Task("dates", "Date normalisation", says, without_repeats(prompts), "sequence", seed)


def _by_template() -> dict[str, list[Format]]:
    groups: dict[str, list[Format]] = {}
    for item in formats():
        groups.setdefault(f"{item.template}, month {_month(item)}", []).append(item)
    return groups


def _prompt(rng: random.Random, template: str, group: Sequence[Format], number: int) -> Prompt:
    new_format, new_date = bool(number % 2), bool(number // 2 % 2)
    # Ways to write a date whose year has two digits are twice as many in some templates: the year is drawn first.
    year = rng.choice(sorted({item.year for item in group}))
    some = [item for item in group if item.year == year]
    item = rng.choice([one for one in some if one.held_out == new_format] or some)
    date = _date(rng)
    while is_held_out(date) != new_date or not item.can_write(date):
        date = _date(rng)
    slices = {
        "format": _family(item), "month": _month(item), "year": "four digits" if item.year == "2021" else "two digits",
        "weekday": "with" if item.weekday else "without",
        "format seen": "new" if item.held_out else "trained on", "date seen": "new" if new_date else "trained on",
        "answer": f"{date.year // 100}xx", "answer's month": f"{date.month:02d}",
    }  # fmt: skip
    return Prompt(item.write(date), date.isoformat(), None, template, slices)


def _date(rng: random.Random) -> datetime.date:
    return FIRST + datetime.timedelta(rng.randrange((LAST - FIRST).days + 1))


def _month(item: Format) -> str:
    return "numbered" if item.month in ("1", "01") else "named"


def _family(item: Format) -> str:
    """Its order, and what stands between its parts, in words."""
    first = {"y": "year", "m": "month", "d": "day"}[item.template.removeprefix("the ")[1]]
    if " of " in item.template or " the " in item.template:
        between = "words"
    else:
        between = next((word for mark, word in _SEPARATORS if mark in item.template), "")
        between = between or ("spaces" if " " in item.template else "nothing")
    return f"{first} first, {between}"
