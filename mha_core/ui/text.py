"""Text that people typed, shown as text."""

from __future__ import annotations

import re

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


def plain(text: str) -> str:
    """`text` with every ASCII punctuation mark escaped, so that Markdown, LaTeX and colour directives stay letters.

    For places where Streamlit always reads Markdown (errors, captions, labels). A backslash before punctuation is the
    one escape CommonMark guarantees.
    """
    return _PUNCTUATION.sub(r"\\\1", text)
