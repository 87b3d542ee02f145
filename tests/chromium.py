"""Find a Chromium for the browser tests, or install one: ``python tests/chromium.py``.

Looked at in this order: ``HEADSCOPE_CHROMIUM``, browsers on ``PATH``, Playwright's own download. Where there is
none, Playwright is asked to install one, and failing that Debian's package manager, if we are root. The tests
themselves only look; they never install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

VARIABLE = "HEADSCOPE_CHROMIUM"
ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEBIAN_PACKAGES = ("chromium", "fonts-liberation")  # without a font a page shows boxes instead of words
VERSION_SECONDS = 60
CONNECT_MILLISECONDS = "10000"
INSTALL_SECONDS = 900

ADVICE = (
    "The browser tests need Chromium or Chrome and found none that starts. Install one (on Debian, as root: "
    "apt-get install chromium; elsewhere: python -m playwright install chromium), "
    f"or set {VARIABLE} to a browser's program file."
)


class NoChromiumError(RuntimeError):
    """There is no usable browser; the message says what to do."""


def find() -> Path | None:
    """Return a Chromium or Chrome that starts, or None.

    Raises:
        NoChromiumError: ``HEADSCOPE_CHROMIUM`` is set to something that does not start.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named).expanduser()
        if not starts(path):
            raise NoChromiumError(
                f"{VARIABLE} is {named!r}, which does not start as a Chromium or Chrome. "
                "Set it to the browser's program file, or unset it to have one looked for."
            )
        return path
    return next((path for path in candidates() if starts(path)), None)


def find_or_install() -> Path:
    """Return a Chromium or Chrome that starts, installing one if there is none.

    Raises:
        NoChromiumError: none was found and none could be installed.
    """
    found = find()
    if found:
        return found
    tried = []
    for name, install in (("Playwright", install_by_playwright), ("apt-get", install_by_apt)):
        said = install()
        found = find()
        if found:
            return found
        tried.append(f"{name}: {said}")
    raise NoChromiumError("\n  ".join([ADVICE, *tried]))


def candidates() -> Iterable[Path]:
    """Browsers on ``PATH``, then the one Playwright keeps, without starting any."""
    for name in ON_PATH:
        on_path = shutil.which(name)
        if on_path:
            yield Path(on_path)
    # In a process of its own: Playwright refuses a second start inside a thread that already runs it.
    ask = "from playwright.sync_api import sync_playwright as a\nwith a() as p: print(p.chromium.executable_path)"
    code, said = run([sys.executable, "-c", ask], seconds=VERSION_SECONDS)
    if code == 0 and said:
        kept = Path(said.splitlines()[-1])
        if kept.is_file():
            yield kept


def starts(path: Path) -> bool:
    """Whether the file runs and calls itself Chromium or Chrome: a stub does not, nor one that lacks libraries."""
    code, said = run([str(path), "--version"], seconds=VERSION_SECONDS)
    return code == 0 and "chrom" in said.lower()


def install_by_playwright() -> str:
    """Download Playwright's own Chromium. Returns the last thing it said."""
    environment = {**os.environ, "PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": CONNECT_MILLISECONDS}
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    code, said = run(command, seconds=INSTALL_SECONDS, environment=environment)
    if code == 0:
        return "installed a browser, which does not start here (libraries it needs may be missing)"
    return next((line.strip() for line in said.splitlines() if "Error" in line), last_line(said))


def install_by_apt() -> str:
    """Install Debian's Chromium. Returns the last thing said, or why it was not tried."""
    if not shutil.which("apt-get"):
        return "not on this system"
    if os.geteuid() != 0:
        return "needs root, and this is not root"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], seconds=INSTALL_SECONDS, environment=environment)
    command = ["apt-get", "install", "-y", "--no-install-recommends", *DEBIAN_PACKAGES]
    code, said = run(command, seconds=INSTALL_SECONDS, environment=environment)
    if code == 0:
        return "installed its chromium, which does not start here"
    return last_line(said)


def run(command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a program without a keyboard; returns its exit code (127: cannot be run) and all it said."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"gave no answer within {seconds:.0f} seconds"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()


def last_line(said: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "said nothing")


def main() -> int:
    """Say where the browser is, or what to do about there being none."""
    try:
        path = find_or_install()
    except NoChromiumError as error:
        print(error, file=sys.stderr)
        return 1
    _, version = run([str(path), "--version"], seconds=VERSION_SECONDS)
    print(f"The browser tests use {path}: {last_line(version)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
