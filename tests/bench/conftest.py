"""What the measurements share with the browser tests, and quiet libraries."""

from __future__ import annotations

import pytest

from tests.browser.conftest import (
    browser,
    chromium_path,
    forgive_probing,
    new_page,
    page,
    page_errors,
    pytest_runtest_makereport,
    serve,
)

__all__ = [
    "browser",
    "chromium_path",
    "forgive_probing",
    "new_page",
    "page",
    "page_errors",
    "pytest_runtest_makereport",
    "serve",
]


@pytest.fixture(autouse=True)
def no_bars() -> None:
    """Progress bars of loading would stand between the tables."""
    from transformers.utils import logging

    logging.disable_progress_bar()
