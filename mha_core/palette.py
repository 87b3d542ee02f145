"""Colours, one source for the canvas components and the Plotly figures.

All scales are safe for the common colour-vision deficiencies: sequential scales are one hue whose lightness
only rises or only falls, diverging scales run blue to orange around a neutral grey. Dark scales start near
the page's dark background and rise to light, so that "more" always means "further from the page".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Theme = Literal["light", "dark"]

SEQUENTIAL: dict[Theme, tuple[str, ...]] = {
    "light": (
        "#eff5fb", "#d9e8f5", "#bdd7ec", "#98c2e1", "#6ca7d3", "#4489c1", "#2769ab", "#134a8c", "#08306b",
    ),
    "dark": (
        "#19212f", "#1b2d47", "#1f3c62", "#265082", "#3469a4", "#4d86bf", "#76a5d6", "#a8c8ea", "#e6f1fd",
    ),
}  # fmt: skip
"""From 0 (the first colour) to the most (the last)."""

DIVERGING: dict[Theme, tuple[str, ...]] = {
    "light": (
        "#0b4a8f", "#3b7cbc", "#83b1da", "#c3daee", "#f1f2f3", "#fbd8b4", "#f1aa64", "#d6781d", "#994800",
    ),
    "dark": (
        "#a9d0f7", "#619fdb", "#3170b0", "#21456c", "#20252f", "#5b3a16", "#a25d15", "#e28623", "#ffc681",
    ),
}  # fmt: skip
"""From the most negative (blue) through 0 (the middle, neutral) to the most positive (orange)."""

ACCENT: dict[Theme, str] = {"light": "#d9690a", "dark": "#f28c28"}
"""Orange: a head that is switched off, and the ring that shows a measure."""

SELECTED: dict[Theme, str] = {"light": "#23409f", "dark": "#8fb0ff"}
"""Indigo: the one head that is chosen on every page."""


def series(theme: Theme = "light") -> tuple[str, ...]:
    """Colours of lines or points that are told apart; give each a dash or a marker of its own too."""
    third = "#0f8f78" if theme == "light" else "#3fc1a5"
    return SELECTED[theme], ACCENT[theme], third, "#8a8f98", "#8f5fbf" if theme == "light" else "#b48ae0"


def sequential(theme: Theme = "light") -> list[str]:
    """The sequential scale of a theme, as a list of hex colours from least to most."""
    return list(SEQUENTIAL[theme])


def diverging(theme: Theme = "light") -> list[str]:
    """The diverging scale of a theme, as a list of hex colours from most negative to most positive."""
    return list(DIVERGING[theme])


def stops(colours: Sequence[str]) -> list[list[Any]]:
    """Evenly spaced colour stops `[[position, hex], ...]`, positions 0 to 1, the form Plotly takes.

    Raises
    ------
    ValueError
        When fewer than two colours are given: a scale needs two ends.
    """
    if len(colours) < 2:
        raise ValueError(f"A colour scale needs at least two colours; {len(colours)} were given.")
    return [[i / (len(colours) - 1), colour] for i, colour in enumerate(colours)]


def for_browser() -> dict[str, Any]:
    """What a component needs to draw in either theme; JSON-able, goes into `View.meta["palette"]`.

    `light` and `dark` are the sequential scales. The browser picks the theme, so that switching it needs no
    server.
    """
    return {
        "light": sequential("light"),
        "dark": sequential("dark"),
        "diverging": {"light": diverging("light"), "dark": diverging("dark")},
        "accent": dict(ACCENT),
        "selected": dict(SELECTED),
    }
