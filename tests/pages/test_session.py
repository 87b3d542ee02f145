"""What the session says about long work."""

from __future__ import annotations

import pytest

from mha_core.ui.session import time_left


@pytest.mark.parametrize(
    ("seconds", "done", "total", "said"),
    [
        (0.5, 1, 10, ""),  # too early to say
        (5.0, 0, 10, ""),  # nothing to go by
        (5.0, 10, 10, ""),
        (10.0, 9, 10, ""),  # as good as done
        (10.0, 2, 10, "about 40 s left"),
        (60.0, 1, 11, "about 10 min left"),
    ],
)
def test_the_time_left_is_said_when_it_is_known(seconds: float, done: int, total: int, said: str) -> None:
    assert time_left(seconds, done, total) == said
