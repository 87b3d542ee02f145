"""Text that people typed, shown as text."""

from __future__ import annotations

import re

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# What Streamlit turns into typographic signs, emoji and icons after Markdown has been read, where no escape helps.
_REPLACED = re.compile(r"(<->|<-|->|<=|>=|~=|--+|:[A-Za-z0-9_/+-]+:)")


def counted(count: int, thing: str) -> str:
    """A number of things in words: 1 head, 2 heads."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def plain(text: str) -> str:
    """`text` with every ASCII punctuation mark escaped, so that Markdown, LaTeX and colour directives stay letters.

    For places where Streamlit always reads Markdown (errors, captions, labels). A backslash before punctuation is the
    one escape CommonMark guarantees; the few signs that are replaced all the same are set as code, which never is.
    """
    parts = _REPLACED.split(text)
    return "".join(f"`{part}`" if number % 2 else _PUNCTUATION.sub(r"\\\1", part) for number, part in enumerate(parts))
