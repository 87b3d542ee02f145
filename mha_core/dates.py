"""Dates as people write them, each with its ISO form: what the small encoder–decoder of ours learns from.

Every rule by which an ambiguous date is read stands here:

- Year in front: year, month, day (2021/3/4 is 4 March).
- Numbers with dots or dashes: day first (3.4.2021 and 3-4-2021 are 3 April).
- Numbers with slashes: month first (3/4/2021 is 4 March), unless the first number cannot be a month (25/12/2021).
- Two digits of a year: 00 to 49 are 2000 to 2049, 50 to 99 are 1950 to 1999.
"""

from __future__ import annotations

import datetime
import random
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HELD_OUT_OF = 10  # one date in ten, and one format in ten, is never trained on

NAMED = (
    "{d} {m} {y}", "{d} {m}, {y}", "the {d} of {m}, {y}", "the {d} of {m} {y}", "{d} of {m} {y}", "{d}-{m}-{y}",
    "{m} {d}, {y}", "{m} {d} {y}", "{m} the {d}, {y}", "{m}-{d}-{y}", "{y} {m} {d}", "{y}-{m}-{d}",
)  # fmt: skip
"""With the month by name."""
NUMERIC = (
    "{d}.{m}.{y}", "{d}. {m}. {y}", "{d}-{m}-{y}", "{m}/{d}/{y}", "{d}/{m}/{y}", "{y}-{m}-{d}", "{y}/{m}/{d}",
    "{y}.{m}.{d}", "{y}{m}{d}",
)  # fmt: skip
"""With the month as a number."""
TEMPLATES = tuple(dict.fromkeys((*NAMED, *NUMERIC)))


@dataclass(frozen=True)
class Format:
    """One way to write a date.

    template: where day, month and year stand. month: "full", "short", "dotted" ("Mar."), "1" or "01".
    day: "1", "01" or "1st". year: "2021", "21" or "'21". weekday: before it: "", "full", "short" or "bare" (no comma).
    case: "as is", "lower" or "upper".
    """

    template: str
    month: str = "full"
    day: str = "1"
    year: str = "2021"
    weekday: str = ""
    case: str = "as is"

    def can_write(self, date: datetime.date) -> bool:
        """Whether the rules at the head of this module read the written form as this date."""
        if self.year != "2021" and not 1950 <= date.year <= 2049:
            return False
        return date.day > 12 or not (self.template == "{d}/{m}/{y}" and self.month in ("1", "01"))

    def write(self, date: datetime.date) -> str:
        """The date in this format."""
        text = self.template.format(d=_day(date.day, self.day), m=_month(date.month, self.month), y=self._year(date))
        text = _weekday(date, self.weekday) + text
        return {"lower": text.lower(), "upper": text.upper()}.get(self.case, text)

    def _year(self, date: datetime.date) -> str:
        return {"21": f"{date.year % 100:02d}", "'21": f"'{date.year % 100:02d}"}.get(self.year, str(date.year))

    @cached_property
    def held_out(self) -> bool:
        """Whether this format is never trained on. Numeric ones, of which there are few, all are trained on."""
        return self.template in NAMED and _drawn(repr((self.template, self.month, self.day, self.year, self.weekday)))


def _day(day: int, style: str) -> str:
    if style == "1st":
        ending = "th" if 10 < day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
        return f"{day}{ending}"
    return f"{day:02d}" if style == "01" else str(day)


def _month(month: int, style: str) -> str:
    name = MONTHS[month - 1]
    styles = {"short": name[:3], "dotted": name[:3] + ("" if name == "May" else "."), "1": str(month)}
    return {**styles, "01": f"{month:02d}"}.get(style, name)


def _weekday(date: datetime.date, style: str) -> str:
    name = WEEKDAYS[date.weekday()]
    return {"full": f"{name}, ", "short": f"{name[:3]} ", "bare": f"{name} "}.get(style, "")


def _drawn(what: str) -> bool:
    """One in `HELD_OUT_OF`, by a checksum: the same on every machine."""
    return zlib.crc32(what.encode()) % HELD_OUT_OF == 0


def is_held_out(date: datetime.date) -> bool:
    """Whether a date is never trained on, in any format."""
    return _drawn(date.isoformat())


@lru_cache(maxsize=1)
def formats() -> tuple[Format, ...]:
    """Every format, template by template."""
    made = []
    for template in NAMED:
        year_first = template.startswith("{y}")
        years: tuple[str, ...] = ("2021",) if year_first else ("2021", "21", "'21")
        days = ("1st",) if "the {d}" in template or "{d} of" in template else ("1", "01", "1st")
        weekdays = ("",) if year_first or "the" in template.split()[:1] else ("", "full", "short", "bare")
        for choice in product(("full", "short", "dotted"), days, years, weekdays, ("as is", "lower", "upper")):
            made.append(Format(template, *choice))
    for template in NUMERIC:
        years = ("2021",) if template.startswith("{y}") else ("2021", "21")
        widths = ("01",) if template == "{y}{m}{d}" else ("1", "01")
        made += [Format(template, width, width, year) for width, year in product(widths, years)]
    return tuple(made)


@lru_cache(maxsize=1)
def _by_template() -> dict[tuple[str, bool, bool], tuple[Format, ...]]:
    """(template, numeric, held out) -> its formats."""
    groups: dict[tuple[str, bool, bool], list[Format]] = {}
    for item in formats():
        groups.setdefault((item.template, item.month in ("1", "01"), item.held_out), []).append(item)
    return {key: tuple(group) for key, group in groups.items()}


def draw(
    rng: random.Random, count: int, *, new_dates: bool = False, new_formats: bool = False
) -> list[tuple[str, str]]:
    """Random dates, written and in ISO form. Each template is as likely as any other; those that
    take the month by name and as a number count twice.

    Args:
        rng: where the choices come from.
        count: how many.
        new_dates: dates that are never trained on; False: only dates that are.
        new_formats: the same for formats.
    """
    groups = [group for (_, _, held_out), group in _by_template().items() if held_out == new_formats]
    days = (LAST - FIRST).days + 1
    drawn: list[tuple[str, str]] = []
    while len(drawn) < count:
        chosen = rng.choice(rng.choice(groups))
        date = FIRST + datetime.timedelta(rng.randrange(days))
        while is_held_out(date) != new_dates or not chosen.can_write(date):
            date = FIRST + datetime.timedelta(rng.randrange(days))
        drawn.append((chosen.write(date), date.isoformat()))
    return drawn


@lru_cache(maxsize=1)
def reference_dates(count: int = 64) -> tuple[str, ...]:
    """Written dates over which the model's mean outputs are taken: of every template, from the trained part."""
    return tuple(text for text, _ in draw(random.Random(7), count))  # noqa: S311 - no secret


@lru_cache(maxsize=1)
def characters() -> tuple[str, ...]:
    """Every character that a written date or its ISO form can have, in order."""
    found = set("0123456789-")
    for item in formats():
        for month in range(1, 13):
            found |= set(item.write(datetime.date(2013, month, 20 + month % 9)))
    return tuple(sorted(found))
