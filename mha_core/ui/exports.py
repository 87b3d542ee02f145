"""Take a view away: its numbers as CSV, JSON or NPZ, and the picture as one HTML file that opens offline."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import streamlit as st

from mha_core.export import export_numbers
from mha_core.standalone import to_html
from mha_core.view import View

_MIME = {"csv": "text/csv", "json": "application/json", "npz": "application/octet-stream"}


def export_menu(view: View | Callable[[], View], name: str, key: str) -> None:
    """A menu of downloads. PNG and SVG are made in the browser, by the buttons on the picture itself.

    view: or what makes it, where the numbers to take away are more exact than those that are drawn.
    name: of the files, such as "L4H10". Files are made when they are asked for.
    """
    stem = "headscope-" + (re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-") or "view")
    with st.popover(
        "Export", key=f"export_{key}", help="The numbers and the picture, each with what made it.", on_change="rerun"
    ) as opened:  # fmt: skip
        st.caption("PNG and SVG: the buttons on the picture. The page's address is a link to this view.")
        if not opened.open:  # buttons that nobody sees would be sent and drawn with every key that is typed
            return
        for kind, mime in _MIME.items():
            st.download_button(
                kind.upper(), data=partial(_numbers, view, kind), file_name=f"{stem}.{kind}", mime=mime,
                key=f"{kind}_{key}", on_click="ignore",
            )  # fmt: skip
        st.download_button(
            "HTML, opens offline", data=partial(_html, view, name), file_name=f"{stem}.html", mime="text/html",
            key=f"html_{key}", on_click="ignore",
        )  # fmt: skip


def _numbers(view: View | Callable[[], View], kind: str) -> bytes:
    return export_numbers(view() if callable(view) else view, kind)


def _html(view: View | Callable[[], View], name: str) -> bytes:
    return to_html(view() if callable(view) else view, name).encode()
