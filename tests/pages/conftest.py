"""What page tests share: visitors who stay, so that each test only pays for what it looks at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pages.driver import Visitor


@pytest.fixture(scope="session")
def _stayed() -> dict[str, Visitor]:
    return {}


@pytest.fixture
def regular(_stayed: dict[str, Visitor]) -> Callable[..., Visitor]:
    """``regular(page, **query)``: a visitor who has been on this page before and follows a link within it."""

    def come(page: str, /, **query: str) -> Visitor:
        if page not in _stayed:
            _stayed[page] = Visitor(page, **query)
        else:
            _stayed[page].follow(**query)
        return _stayed[page]

    return come
