"""What browser tests stand on: a real Chromium, servers that end with the tests, pages that report errors."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from mha_core.standalone import to_html
from mha_core.view import View
from tests.chromium import ADVICE, NoChromiumError, find

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
STOP_SECONDS = 10
LOG_CHARACTERS = 6000
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A real browser beside a real model on two cores can miss a deadline: a test here may be repeated, and says so in
    the report. What is wrong stays wrong three times.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=2))


# ---------------------------------------------------------------- the browser


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The browser's program file; without one every browser test fails and says what to install."""
    try:
        path = find()
    except NoChromiumError as error:
        pytest.fail(str(error), pytrace=False)
    if path is None:
        pytest.fail(f"{ADVICE} `python tests/chromium.py` tries to install one.", pytrace=False)
    return path


@pytest.fixture(scope="session")
def browser(chromium_path: Path) -> Iterator[Browser]:
    """One headless Chromium for all tests; each test has contexts of its own in it."""
    arguments = [
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",  # containers give /dev/shm 64 MB, too little for a page full of maps
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium refuses its sandbox to root
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium_path, args=arguments, timeout=60_000)
        yield launched
        launched.close()


@pytest.fixture
def page_errors() -> list[str]:
    """What went wrong in this test's pages. A test that provokes an error checks the list, then clears it."""
    return []


@pytest.fixture
def new_page(
    browser: Browser, page_errors: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., Page]]:
    """Open a page as a new visitor: ``new_page(**options of Browser.new_context)``.

    Console errors, uncaught exceptions and requests to any other machine are collected in ``page_errors``,
    and the test fails if that list is not empty at its end. When the test itself failed, a picture of every
    page is left in its folder.
    """
    contexts: list[BrowserContext] = []

    def open_page(**options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **options})
        context.set_default_timeout(30_000)
        contexts.append(context)
        opened = context.new_page()
        watch(opened, page_errors)
        return opened

    yield open_page

    if request.node.stash.get(FAILED, False):
        pages = [page for context in contexts for page in context.pages]
        for number, page in enumerate(pages):
            picture = tmp_path / f"page-{number}.png"
            page.screenshot(path=picture, full_page=True, timeout=10_000)
            request.node.add_report_section("teardown", "picture", f"{page.url}\n{picture}")
    for context in contexts:
        context.close()
    if page_errors:
        pytest.fail("The page reported errors:\n  " + "\n  ".join(page_errors), pytrace=False)


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    """One visitor's page."""
    return new_page()


def watch(page: Page, errors: list[str]) -> None:
    """Collect what goes wrong in a page: console errors, uncaught exceptions, requests to other machines."""

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"console: {message.text} ({message.location.get('url', '')})")

    def on_request(request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.hostname not in LOOPBACK:
            errors.append(f"asked another machine: {request.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: errors.append(f"exception: {error}"))
    page.on("request", on_request)


@pytest.fixture
def offline(new_page: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Open a view's own HTML file from the disk; anything it asks a network fails the test."""
    number = itertools.count()

    def open_view(view: View, title: str = "A view", **options: Any) -> Page:
        path = tmp_path / f"view-{next(number)}.html"
        path.write_text(to_html(view, title), encoding="utf-8")
        page = new_page(**{"viewport": {"width": 1100, "height": 900}, **options})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.locator(".hs-maps[data-painted]").wait_for()
        assert asked == [path.as_uri()]
        return page

    return open_view


@pytest.fixture
def forgive_probing(new_page: Callable[..., Page], page_errors: list[str]) -> Iterator[None]:
    """Streamlit's page looks for its server below the page's own path first, and the browser reports the 404."""
    yield  # before `new_page` looks at the errors
    page_errors[:] = [error for error in page_errors if not re.search(r"404.*/_stcore/(health|host-config)", error)]


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failed test, so that its pages are pictured before they are closed."""
    report = yield
    if call.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


# ---------------------------------------------------------------- the servers


class Server:
    """One ``streamlit run``, in a process group of its own."""

    def __init__(self, script: Path, environment: Mapping[str, str], log: Path) -> None:
        self.script, self.log_path = script, log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            *(sys.executable, "-m", "streamlit", "run", str(script)),
            *("--server.headless", "true", "--server.address", "127.0.0.1", "--server.port", str(self.port)),
            *("--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none"),
        ]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Return when the server answers; fail at once if it has ended, after a while if it stays silent."""
        # Loopback is never behind a proxy.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll()
            if ended is not None:
                raise RuntimeError(f"The server of {self.script} ended with code {ended}. It said:\n{self.log()}")
            try:
                with direct.open(f"{self.url}/_stcore/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.stop()
        raise RuntimeError(
            f"The server of {self.script} did not answer within {START_SECONDS} s. It said:\n{self.log()}"
        )

    def log(self) -> str:
        """The end of what the server said."""
        return self.log_path.read_text(errors="replace")[-LOG_CHARACTERS:]

    def stop(self) -> None:
        """End this server and what it started, and nothing else."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            os.killpg(self.process.pid, how)  # the leader is not reaped yet, so the group is still ours
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue


class Servers:
    """Servers on demand: ``serve(script, env) -> address``. Asked the same again, it gives the same server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[tuple[Path, tuple[tuple[str, str], ...]], Server] = {}

    def __call__(self, script_path: str | Path, env: Mapping[str, str] | None = None) -> str:
        """Serve a script (relative to the project's folder); returns its address, ready for ``page.goto``."""
        script = (ROOT / script_path).resolve()
        if not script.is_file():
            raise FileNotFoundError(f"There is no script {script} to serve.")
        key = (script, tuple(sorted((env or {}).items())))
        server = self.running.get(key)
        if server is None or server.process.poll() is not None:
            server = Server(script, env or {}, self.folder / f"server-{len(self.running)}-{script.stem}.log")
            self.running[key] = server
            server.wait_until_ready()
        return server.url

    def log(self, url: str) -> str:
        """The end of what the server at this address said, tracebacks included."""
        return next(server.log() for server in self.running.values() if url.startswith(server.url))

    def stop(self) -> None:
        """End every server started here."""
        for server in self.running.values():
            server.stop()


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """``serve(script_path, env=None)`` starts ``streamlit run`` and returns its address; ends with the tests."""
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def app_url(serve: Servers) -> str:
    """The address of the app itself."""
    return serve("app.py")


def free_port() -> int:
    """A loopback port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
