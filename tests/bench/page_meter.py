"""One warm page of the app, and how long what a person does takes until it is painted."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import CDPSession, Page
from playwright.sync_api import Error as PlaywrightError

from tests.bench.measure import Spread, processor_time

METER = Path(__file__).with_name("meter.js").read_text(encoding="utf-8")
QUIET = 300  # milliseconds without a message or change after which all is done
TIMEOUT = 60_000  # milliseconds
PAUSE = 150  # milliseconds for which the sentence's field waits for more keys
Result = Mapping[str, Any]

NOTES = (
    "Milliseconds, medians (middle half). “painted”: from the key or click until the frame in which the last component "
    "was new had been painted. “after sending”: the same from the browser's message on, without the 150 ms for which a "
    "text field waits for more keys. “server”: from the browser's message to the last one that the painting needed; "
    "“browser”: from there to painted. “server done”: its very last message. “busy”: the page's thread, in all; "
    "“drawing”: its part in the components' own drawing.",
)


class PageMeter:
    """The app in a page that measures itself (see meter.js)."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.add_init_script(METER)
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")
        self._processes: CDPSession | None = None

    def open(self, url: str, path: str = "", **query: str) -> None:
        """Open a page of the app and wait until it has been drawn."""
        self.page.goto(f"{url}/{path}?{urlencode(query)}")
        self.page.locator("[data-painted]").first.wait_for(state="attached", timeout=2 * TIMEOUT)
        self.settle()

    def settle(self) -> None:
        """Wait until the server has nothing more to say."""
        self.page.evaluate("quiet => headscopeMeter.settled(quiet)", 2 * QUIET)

    def views(self, within: str | None = None) -> list[str]:
        """What the components of the page show."""
        shown: list[str] = self.page.evaluate("within => headscopeMeter.views(within)", within)
        return shown

    def measure(
        self, event: str, action: Callable[[], object], *, within: str | None = None, count: int = 0,
        settle: bool = True,
    ) -> Result:  # fmt: skip
        """Do something and measure from its event to when every component (`within` a place) shows something else.

        count: the least components that must be there then; at least as many as there are now.

        Times in milliseconds from the event, as meter.js names them, and how long the page's one thread was busy.
        """
        if settle:
            self.settle()
        options = {"type": event, "within": within, "count": count, "quiet": QUIET, "timeout": TIMEOUT}
        self.page.evaluate("options => headscopeMeter.arm(options)", options)
        before = self._busy()
        action()
        return {**self._result(), "busy": self._busy() - before}

    def rerun(self, event: str, action: Callable[[], object], server: int) -> Result:
        """Do something that runs the page again, and measure from its event until that has ended and been painted.

        server: the process whose processor time is counted. Times in milliseconds, as meter.js names them; with
        "server" and "browser", the processor time of the two, which others on the machine hardly change.
        """
        self.settle()
        self.page.evaluate(
            "options => headscopeMeter.armRerun(options)", {"type": event, "quiet": QUIET, "timeout": TIMEOUT}
        )
        before = processor_time(server), self._drawing_time()
        action()
        result = self._result()
        return {
            **result,
            "server": 1000 * (processor_time(server) - before[0]),
            "browser": 1000 * (self._drawing_time() - before[1]),
        }

    def heap_bytes(self) -> tuple[float, float]:
        """What the page's JavaScript holds on to, without rubbish: its heap, and the arrays' numbers outside it."""
        self._session.send("HeapProfiler.collectGarbage")
        usage = self._session.send("Runtime.getHeapUsage")
        return float(usage["usedSize"]), float(usage.get("backingStorageSize", 0))

    def _result(self) -> dict[str, Any]:
        try:
            result: dict[str, Any] = self.page.evaluate("() => headscopeMeter.result")
            return result
        except PlaywrightError as error:
            said = self.page.locator("[data-testid=stException], [data-testid=stAlert]").all_inner_texts()
            raise AssertionError(f"{error.message}\nThe page says: {said or 'nothing'}") from error

    def _drawing_time(self) -> float:
        """Seconds of processor time of the processes that draw pages."""
        browser = self.page.context.browser
        assert browser is not None
        if self._processes is None:
            self._processes = browser.new_browser_cdp_session()
        found = self._processes.send("SystemInfo.getProcessInfo")["processInfo"]
        return sum(float(process["cpuTime"]) for process in found if process["type"] == "renderer")

    def _busy(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(1000 * float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


class Typist:
    """Edits the sentence one key at a time: each key replaces the last letter, by one that was not there before.

    text: ends in a word of one letter and begins with one of `OPENINGS`, so that all edits have as many tokens.
    """

    OPENINGS = ("When", "Then", "Once", "While", "After")

    def __init__(self, meter: PageMeter, text: str) -> None:
        self.meter, self.field = meter, meter.page.get_by_label("Sentence", exact=True)
        self.text = text
        self._unused = string.ascii_lowercase[1:]
        self.field.click()
        self.field.press("End")

    def edit(self) -> None:
        """One key."""
        key, self._unused = self._unused[0], self._unused[1:]
        self.text = self.text[:-1] + key
        self.meter.page.keyboard.press("Shift+ArrowLeft")
        self.meter.page.keyboard.press(key)

    def prepare(self, edits: int) -> None:
        """Make sure that as many edits can follow with nothing in between: begin another sentence where there can't."""
        if edits <= len(self._unused):
            return
        opening, rest = self.text.split(" ", maxsplit=1)
        self.text = f"{self.OPENINGS[self.OPENINGS.index(opening) + 1]} {rest[:-1]}a"
        self._unused = string.ascii_lowercase[1:]
        self.field.fill(self.text)
        self.field.press("End")
        self.meter.page.wait_for_timeout(2 * PAUSE)
        self.meter.settle()


def spread(results: list[Result], of: Callable[[Result], float]) -> Spread:
    return Spread(tuple(of(result) for result in results))


def row(what: str, results: list[Result]) -> dict[str, object]:
    """One line of a table: an action, how often it was done, and where its time went."""

    def ms(of: Callable[[Result], float]) -> str:
        return spread(results, of).text()

    return {
        "": what,
        "n": len(results),
        "painted": ms(lambda r: r["painted"]),
        "after sending": ms(lambda r: r["painted"] - r["committed"]),
        "server": ms(lambda r: r["arrived"] - r["committed"]),
        "browser": ms(lambda r: r["painted"] - r["arrived"]),
        "server done": ms(lambda r: r["idle"] - r["committed"]),
        "busy": ms(lambda r: r["busy"]),
        "drawing": ms(lambda r: sum(r["drawing"])),
        "messages": f"{spread(results, lambda r: r['messages']).median:.0f}",
        "kB": f"{spread(results, lambda r: r['bytes'] / 1000).median:,.0f}",
    }
