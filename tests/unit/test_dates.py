"""The written dates that the date translator is trained on."""

from __future__ import annotations

import datetime
import random
import re

import pytest

from mha_core.dates import (
    FIRST,
    LAST,
    MONTHS,
    NAMED,
    NUMERIC,
    TEMPLATES,
    Format,
    characters,
    draw,
    formats,
    is_held_out,
    reference_dates,
)

MARCH = datetime.date(2021, 3, 3)  # a Wednesday
WRITTEN = {
    "3 March 2021": Format("{d} {m} {y}"),
    "03 MAR 2021": Format("{d} {m} {y}", "short", "01", case="upper"),
    "the 3rd of March, 2021": Format("the {d} of {m}, {y}", day="1st"),
    "the 3rd of March 2021": Format("the {d} of {m} {y}", day="1st"),
    "3rd of march 21": Format("{d} of {m} {y}", day="1st", year="21", case="lower"),
    "Wed 3 Mar., 2021": Format("{d} {m}, {y}", "dotted", weekday="short"),
    "3-Mar-21": Format("{d}-{m}-{y}", "short", year="21"),
    "Wednesday, March 3rd 2021": Format("{m} {d} {y}", day="1st", weekday="full"),
    "Wednesday March 3, 2021": Format("{m} {d}, {y}", weekday="bare"),
    "Mar 3 21": Format("{m} {d} {y}", "short", year="21"),
    "Mar. 3 '21": Format("{m} {d} {y}", "dotted", year="'21"),
    "March the 3rd, 2021": Format("{m} the {d}, {y}", day="1st"),
    "Mar-03-2021": Format("{m}-{d}-{y}", "short", "01"),
    "2021 March 3": Format("{y} {m} {d}"),
    "2021-mar-03": Format("{y}-{m}-{d}", "short", "01", case="lower"),
    "3.3.2021": Format("{d}.{m}.{y}", "1"),
    "3. 3. 2021": Format("{d}. {m}. {y}", "1"),
    "03-03-21": Format("{d}-{m}-{y}", "01", "01", "21"),
    "03/03/2021": Format("{m}/{d}/{y}", "01", "01"),
    "2021-03-03": Format("{y}-{m}-{d}", "01", "01"),
    "2021/3/3": Format("{y}/{m}/{d}", "1"),
    "2021.03.03": Format("{y}.{m}.{d}", "01", "01"),
    "20210303": Format("{y}{m}{d}", "01", "01"),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_format_writes(text: str) -> None:
    assert WRITTEN[text].write(MARCH) == text
    assert WRITTEN[text] in formats()


def test_every_template_is_written_above_or_below() -> None:
    named = {item.template for item in WRITTEN.values()} | {"{d}/{m}/{y}"}
    assert named == set(TEMPLATES)
    assert len(TEMPLATES) >= 12


def test_slashes_are_day_first_only_where_the_first_number_is_no_month() -> None:
    day_first = Format("{d}/{m}/{y}", "1")
    assert day_first.write(datetime.date(1999, 12, 25)) == "25/12/1999"
    assert day_first.can_write(datetime.date(1999, 12, 13))
    assert not day_first.can_write(datetime.date(1999, 12, 12))


def test_two_digits_mean_1950_to_2049() -> None:
    short = Format("{d} {m} {y}", year="21")
    years = [year for year in range(1900, 2100) if short.can_write(datetime.date(year, 5, 5))]
    assert years == list(range(1950, 2050))


def test_no_two_dates_are_written_alike() -> None:
    """Every rule for what is ambiguous together leave one reading."""
    read: dict[str, str] = {}
    for text, iso in draw(random.Random(3), 40_000):
        assert read.setdefault(text.lower(), iso) == iso, text


@pytest.mark.parametrize("day", range(1, 32))
def test_ordinals(day: int) -> None:
    written = Format("{m} {d} {y}", day="1st").write(datetime.date(2021, 1, day)).split()[1]
    ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}.get(day, "th")
    assert written == f"{day}{ending}"


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_format_of_a_template_can_be_read_back(template: str) -> None:
    """By ordinary means: the numbers, the month's name, and the order of the template."""
    rng = random.Random(template)
    order = re.findall(r"\{(\w)\}", template)
    for item in [item for item in formats() if item.template == template]:
        date = FIRST + datetime.timedelta(rng.randrange((LAST - FIRST).days))
        while not item.can_write(date):
            date = FIRST + datetime.timedelta(rng.randrange((LAST - FIRST).days))
        assert _read(item, item.write(date), order) == date, (item, item.write(date))


def _read(item: Format, text: str, order: list[str]) -> datetime.date:
    numbers = re.findall(r"\d+", text)
    if item.template == "{y}{m}{d}":
        numbers = [text[:4], text[4:6], text[6:]]
    values = dict(zip([part for part in order if part != "m" or template_is_numeric(item)], numbers, strict=True))
    if "m" not in values:
        after_weekday = text.split(" ", 1)[1] if item.weekday else text
        values["m"] = str(1 + next(n for n, name in enumerate(MONTHS) if name[:3].lower() in after_weekday.lower()))
    year = int(values["y"])
    year += 0 if len(values["y"]) == 4 else 2000 if year < 50 else 1900
    return datetime.date(year, int(values["m"]), int(values["d"]))


def template_is_numeric(item: Format) -> bool:
    return item.month in ("1", "01")


def test_what_is_held_out_never_comes_up_in_training() -> None:
    pairs = draw(random.Random(0), 5000)
    assert not [iso for _, iso in pairs if is_held_out(datetime.date.fromisoformat(iso))]
    never = {
        item.write(datetime.date.fromisoformat(iso)) for item in formats() if item.held_out for _, iso in pairs[:40]
    }
    shared = {item.write(datetime.date.fromisoformat(iso)) for item in formats() if not item.held_out
              for _, iso in pairs[:40]}  # fmt: skip
    assert not (never - shared) & {text for text, _ in pairs}
    held_out = sum(item.held_out for item in formats())
    assert 0.05 < held_out / len(formats()) < 0.15
    assert not any(item.held_out for item in formats() if item.template in NUMERIC and template_is_numeric(item))
    assert {item.template for item in formats() if item.held_out} <= set(NAMED)


def test_new_dates_and_formats_are_new() -> None:
    known = {item for item in formats() if not item.held_out}
    for text, iso in draw(random.Random(1), 300, new_dates=True, new_formats=True):
        date = datetime.date.fromisoformat(iso)
        assert is_held_out(date)
        assert text in {item.write(date) for item in set(formats()) - known}


def test_equal_seeds_draw_equal_dates_and_others_do_not() -> None:
    assert draw(random.Random(5), 50) == draw(random.Random(5), 50)
    assert draw(random.Random(5), 50) != draw(random.Random(6), 50)


def test_every_template_comes_up_about_equally_often() -> None:
    texts = [text for text, _ in draw(random.Random(0), 4000)]
    compact = sum(bool(re.fullmatch(r"\d{8}", text)) for text in texts)
    assert compact == pytest.approx(4000 / (len(NAMED) + len(NUMERIC)), rel=0.25)


def test_characters_are_all_that_is_ever_written() -> None:
    used = {character for pair in draw(random.Random(2), 5000) for character in pair[0] + pair[1]}
    assert used <= set(characters())
    assert list(characters()) == sorted(set(characters()))


def test_reference_dates_are_readable_and_of_the_trained_part() -> None:
    assert len(reference_dates()) == len(set(reference_dates())) == 64
