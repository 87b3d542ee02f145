"""BertViz's head view, as a notebook shows it: from a sentence to its lines in a browser.

BertViz is no requirement of ours. It is kept in the folder that `HEADSCOPE_BERTVIZ` names, or in a temporary one, and
put there by pip and npm when it is not there yet. The scripts that its HTML asks a content network for come from npm
packages and are handed to the page where it asks.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import torch
from playwright.sync_api import Browser, Page, Route

from mha_core.catalogue import find_files
from tests.bench.library import plain_model
from tests.chromium import last_line

VARIABLE = "HEADSCOPE_BERTVIZ"
BERTVIZ = "bertviz==1.4.1"
PIP = (("--no-deps", BERTVIZ), ("ipython",))  # its other requirements are ours, too, or not used by the head view
# What the HTML asks for: package and version on npm, the file in it. npm has no jQuery 2.0.0, which it asks for.
SCRIPTS = {
    "require.min.js": ("requirejs-2.3.6", "require.js"),
    "d3.min.js": ("d3-5.7.0", "dist/d3.min.js"),
    "jquery.min.js": ("jquery-2.1.0", "dist/jquery.min.js"),
}
INSTALL_SECONDS = 300

# Until the lines are painted. Gives the seconds for which the page waited for scripts that a browser would have kept.
DRAWN = """async (lines) => {
  while (document.querySelectorAll("#attention line").length !== lines) await new Promise(requestAnimationFrame);
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const waits = performance.getEntriesByType("resource").filter(({ initiatorType }) => initiatorType === "script");
  let waited = 0, until = 0;
  for (const { startTime, responseEnd } of waits.sort((a, b) => a.startTime - b.startTime)) {
    waited += Math.max(0, responseEnd - Math.max(startTime, until));
    until = Math.max(until, responseEnd);
  }
  return waited / 1000;
}"""

# What a notebook does with HTML: put it into a cell, and make its scripts anew so that they run. The libraries that the
# first view has loaded are there for the next one.
CELL = """async () => {
  document.querySelector("#attention").remove();
  const text = await (await fetch("view.html", { cache: "no-store" })).text();
  document.body.innerHTML = text;
  for (const written of document.body.querySelectorAll("script:not([src])")) {
    const script = document.createElement("script");
    script.textContent = written.textContent;
    written.replaceWith(script);
  }
}"""


class NoBertVizError(RuntimeError):
    """It is not here and could not be brought here; the message says why."""


class Shown(NamedTuple):
    """Seconds for the model, for making the HTML, and until it was drawn; the HTML's bytes."""

    model: float
    making: float
    drawing: float
    n_bytes: int

    @property
    def seconds(self) -> float:
        return self.model + self.making + self.drawing


def prepare(folder: Path) -> Callable[..., Any]:
    """BertViz's `head_view`, installed into a folder if it is not there.

    Raises:
        NoBertVizError: pip or npm are missing or fail.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packages = folder / "python"
    if not (packages / "bertviz").is_dir():
        for wanted in PIP:
            _install([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), *wanted], folder)
    missing = [package for package, _ in SCRIPTS.values() if not (folder / f"{package}.tgz").is_file()]
    if missing:
        _install(["npm", "pack", "--silent", *("@".join(name.rsplit("-", 1)) for name in missing)], folder)
    sys.path.append(str(packages))  # at the end: what is installed already is what is used
    head_view: Callable[..., Any] = importlib.import_module("bertviz").head_view
    return head_view


def _install(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    else:
        if done.returncode == 0:
            return
        said = last_line(done.stderr or done.stdout)
    raise NoBertVizError(
        f"BertViz is not in {folder} and cannot be brought there: `{' '.join(command[:3])} …` said: {said}. "
        f"Set {VARIABLE} to a folder that holds it, or let pip and npm reach their registries."
    )


def script(folder: Path, name: str) -> bytes:
    """One of the scripts that the HTML asks for."""
    package, path = SCRIPTS[name]
    with tarfile.open(folder / f"{package}.tgz") as archive:
        member = archive.extractfile(f"package/{path}")
        assert member is not None
        return member.read()


class Notebook:
    """Shows head views; the model, BertViz and the browser stay as they are from one to the next, as ours do."""

    def __init__(self, name: str, head_view: Callable[..., Any], page: Page, folder: Path, address: str) -> None:
        from transformers import AutoTokenizer

        self.page, self.folder, self.address, self.head_view = page, folder, address, head_view
        self.tokenizer = AutoTokenizer.from_pretrained(find_files(name).folder)
        self.model = plain_model(name, "encoder", attention="eager")  # the fused kernel has no weights to give

    def show(self, text: str) -> Shown:
        """Run the model on a sentence, load its head view as a page and wait until it is drawn.

        The time for which the page waits for BertViz's scripts is not counted: a browser keeps them.
        """
        ran, made, html, lines = self._make(text)
        began = time.perf_counter()
        self.page.goto(f"{self.address}/view.html", wait_until="commit")
        waited: float = self.page.evaluate(DRAWN, lines)
        return Shown(ran, made, time.perf_counter() - began - waited, len(html))

    def show_in_cell(self, text: str) -> Shown:
        """The same into the page of the last view, whose scripts have been read already."""
        ran, made, html, lines = self._make(text)
        began = time.perf_counter()
        self.page.evaluate(CELL)
        self.page.evaluate(DRAWN, lines)
        return Shown(ran, made, time.perf_counter() - began, len(html))

    def _make(self, text: str) -> tuple[float, float, bytes, int]:
        """Seconds for the model and for the HTML, the HTML, and how many lines it will draw."""
        began = time.perf_counter()
        given = self.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            attentions = self.model(**given, output_attentions=True).attentions
        ran = time.perf_counter()
        labels = self.tokenizer.convert_ids_to_tokens(given.input_ids[0])
        html = self.head_view(attentions, labels, html_action="return").data.encode()
        (self.folder / "view.html").write_bytes(b"<!doctype html><meta charset=utf-8>" + html)
        _, n_heads, n_tokens, _ = attentions[0].shape
        return ran - began, time.perf_counter() - ran, html, n_heads * n_tokens**2


@contextmanager
def notebook(name: str, browser: Browser, folder: Path, scratch: Path) -> Iterator[Notebook]:
    """A notebook page in a browser, its files served on the loopback.

    Raises:
        NoBertVizError: see `prepare`.
    """
    head_view = prepare(folder)
    scripts = {file: script(folder, file) for file in SCRIPTS}

    def answer(route: Route) -> None:
        file = route.request.url.rsplit("/", 1)[-1]
        route.fulfill(body=scripts[file], content_type="text/javascript")

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(scratch)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(60_000)
    try:
        page = context.new_page()
        page.route("https://cdnjs.cloudflare.com/**", answer)
        yield Notebook(name, head_view, page, scratch, f"http://127.0.0.1:{server.server_port}")
    finally:
        context.close()
        server.shutdown()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing between the tables."""


def kept_in(temporary: Path) -> Path:
    """Where BertViz is or shall be."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser().resolve() if named else temporary
