"""How a component is declared, and how what a browser sends is read: never trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import streamlit as st

from mha_core.paths import asset
from mha_core.standalone import DRAWING, sources

BARE = ("mark",)
"""The components that draw nothing."""


@cache
def component(name: str) -> Callable[..., Any]:
    """The mounting command of one component, declared once a process (again would log a warning)."""
    css, js = sources(name) if name in DRAWING else _own(name)
    renderer: Callable[..., Any] = st.components.v2.component(f"headscope_{name}", css=css, js=js)
    return renderer


def _own(name: str) -> tuple[str | None, str]:
    return None if name in BARE else _text(f"{name}.css"), _text(f"{name}.js")


def _text(name: str) -> str:
    return asset(name).read_text(encoding="utf-8")


def index(value: object, size: int) -> int | None:
    """A whole number in 0..size-1, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        return None
    return value


def event(result: object, name: str) -> Mapping[str, Any]:
    """The event's value if it is a mapping, else an empty one."""
    value = result.get(name) if isinstance(result, Mapping) else None
    return value if isinstance(value, Mapping) else {}
