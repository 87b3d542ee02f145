"""A view as one HTML file that opens offline: the component the app draws it with, its numbers, what made them.

Nothing in the file asks a network. Its one script is ours, named by its hash in the file's own security policy, so that
nothing else would run even if it got in; the view travels as base64, and every other text is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mha_core import palette
from mha_core.paths import asset
from mha_core.view import View

DRAWING = ("maps", "matrix", "text", "lines")
"""The components that stand on `assets/common.js`; the view's kind says which draws it."""

COMPONENT_OF = {"overview": "maps", "layer": "maps", "matrix": "matrix", "text": "text", "lines": "lines"}

_THEME = """
:root {
  color-scheme: light dark;
  --st-text-color: #1b2333;
  --st-background-color: #ffffff;
  --st-font: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  --st-base-radius: 8px;
}
@media (prefers-color-scheme: dark) {
  :root {
    --st-text-color: #e6eaf2;
    --st-background-color: #10151f;
  }
}
body {
  max-width: 1100px;
  margin: 0 auto;
  padding: 28px 20px 40px;
  background: var(--st-background-color);
  color: var(--st-text-color);
  font: 14px/1.45 var(--st-font);
}
h1 {
  margin: 0 0 18px;
  font-size: 22px;
  line-height: 1.25;
  overflow-wrap: anywhere;
}
#provenance {
  margin-top: 30px;
  padding-top: 14px;
  border-top: 1px solid color-mix(in srgb, currentColor 18%, transparent);
}
h2 {
  margin: 0 0 8px;
  font-size: 14px;
}
dl {
  display: grid;
  grid-template-columns: max-content minmax(0, 1fr);
  gap: 3px 16px;
  margin: 0;
  font-size: 13px;
}
dt {
  opacity: 0.7;
}
dd {
  margin: 0;
  overflow-wrap: anywhere;
  white-space: pre-wrap;
}
@media (max-width: 520px) {
  body {
    padding: 16px 12px 28px;
  }
  dl {
    grid-template-columns: minmax(0, 1fr);
  }
  dd {
    margin-bottom: 6px;
  }
}
"""

_START = """
// ------------------------------------------------------------------------------------------- without Streamlit: here

{
  const packed = atob(document.getElementById("data").textContent.trim());
  const data = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) data[i] = packed.charCodeAt(i);
  const parentElement = document.getElementById("view");
  // Nobody listens here; what a click chooses is marked by the view itself.
  const draw = () => headscope({ data, parentElement, setTriggerValue() {}, setStateValue() {} });
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
"""


def sources(component: str) -> tuple[str, str]:
    """A drawing component's CSS and JavaScript: what all share, then its own, each one text."""
    css, js = (
        "\n".join(asset(f"{name}.{ending}").read_text(encoding="utf-8") for name in ("common", component))
        for ending in ("css", "js")
    )
    return css, js


def to_html(view: View, title: str) -> str:
    """The view as one self-contained HTML file: hover, keyboard and pictures work offline, in light and dark.

    Parameters
    ----------
    view:
        Of kind overview, layer, matrix, text or lines; its provenance is shown under it.
    title:
        The page's heading; any text, it is escaped.

    Returns
    -------
    The file's text; write it as UTF-8.

    Raises
    ------
    ValueError
        When no component draws views of this kind.
    """
    component = COMPONENT_OF.get(view.kind)
    if component is None:
        raise ValueError(f"A view of kind {view.kind!r} has no page of its own; these have: {', '.join(COMPONENT_OF)}.")
    meta = {"palette": palette.for_browser(), **view.meta, "listens": []}
    css, js = sources(component)
    script = _inert(f"{js}\n{_START}")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"
    name = _escape(title)
    alt = _escape(str(view.meta.get("alt", title)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Headscope">
<title>{name}</title>
<style>{_THEME}{_inert(css)}</style>
</head>
<body>
<main>
<h1 dir="auto">{name}</h1>
<div id="view"></div>
<noscript><p>{alt}</p><p>This page draws its picture with JavaScript, which is switched off here.</p></noscript>
<section id="provenance" aria-labelledby="made">
<h2 id="made">What made this picture</h2>
<dl>
{_provenance(view.provenance)}
</dl>
</section>
</main>
<script type="text/plain" id="data">{base64.b64encode(replace(view, meta=meta).pack()).decode("ascii")}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _escape(text: str) -> str:
    """Text for HTML; lone surrogates and control characters, which a file cannot carry, are shown as �."""
    printable = "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF or (c < " " and c not in "\t\n") else c for c in text)
    return html.escape(printable)


def _inert(source: str) -> str:
    """Our own CSS or script, which must not end the element it stands in."""
    if re.search(r"</(script|style)|<!--", source, re.IGNORECASE):
        raise ValueError("A component's source holds '</script', '</style' or '<!--', which would end its element.")
    return source


def _provenance(provenance: Mapping[str, Any]) -> str:
    rows = [
        f'<dt>{_escape(name.replace("_", " "))}</dt><dd dir="auto">{_escape(_said(value))}</dd>'
        for name, value in provenance.items()
        if value not in (None, "", [], {})
    ]
    rows.append("<dt>made with</dt><dd>Headscope; layers, heads and positions count from 0</dd>")
    return "\n".join(rows)


def _said(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_said(one)}" for name, one in value.items() if one not in (None, "", [], {}))
    if isinstance(value, Sequence):
        return ", ".join(map(_said, value))
    return json.dumps(value, ensure_ascii=False, default=str)
