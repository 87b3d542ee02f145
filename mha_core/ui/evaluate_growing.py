"""Measurements of the Evaluate page while they grow: kept at every step, drawn now and then; errors as sentences."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import streamlit as st

from mha_core.interventions import InterventionError
from mha_core.model import Model
from mha_core.pruning import Pruning
from mha_core.task_sweep import TaskSweep
from mha_core.tasks import TaskError
from mha_core.tokens import InputError
from mha_core.ui.ablation import measure_reference
from mha_core.ui.stores import store
from mha_core.ui.text import plain

_REDRAWN = 1.0  # seconds between two pictures, at least
Place = st.delta_generator.DeltaGenerator
Growing = TypeVar("Growing", TaskSweep, Pruning)


def grow(steps: Iterable[Growing], key: Hashable, place: Place, draw: Callable[[Growing, str], None]) -> None:
    """Keep each step under `key`, and draw it in `place` when the latest picture is old enough.

    draw: takes a step and a name for the picture's part. The last step is the page's to draw.
    """
    drawn, pause = float("-inf"), _REDRAWN
    for number, step in enumerate(steps):
        store().keep_result(key, step)
        began = time.monotonic()
        if step.finished or began - drawn < pause:
            continue
        with place.container():
            draw(step, f"step_{number}")
        drawn = time.monotonic()
        pause = max(_REDRAWN, 8 * (drawn - began))  # drawing stays a small part of the work


def require_means(model: Model, way: str) -> None:
    """Measure the means of the reference sentences, in view, where heads are to be replaced by them."""
    if way == "mean" and not model.has_means("corpus"):
        measure_reference(model, "corpus")


@contextmanager
def errors_said() -> Iterator[None]:
    """What cannot be measured is said in the place of the measurement."""
    try:
        yield
    except (TaskError, InterventionError, InputError) as error:
        st.warning(plain(str(error)))
