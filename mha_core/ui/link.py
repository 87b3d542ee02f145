"""A button that copies the page's address."""

from __future__ import annotations

from mha_core.ui.components import _component


def copy_link(key: str) -> None:
    """The address holds the whole view; where the browser gives no clipboard it is shown instead."""
    _component("link")(key=key, data={})
