"""What a visitor chose on the Evaluate page: part of `ViewState`, so that a measurement has an address."""

from __future__ import annotations

from dataclasses import dataclass

from mha_core.pruning import ORDERS as _ORDERS
from mha_core.scores import METRICS

MEASURES = ("", *METRICS)
ORDERS = tuple(_ORDERS)
IMPORTANCE = ("gradient", "sweep")
MAX_MEASURED = 12  # plans that are measured together
OWN = "own"  # the name of an uploaded file's task; the file itself is in no address


@dataclass(frozen=True)
class EvaluateChoices:
    """Choices of the Evaluate page.

    task: the name of a built-in task, `OWN` for a file, "" for the first that the model is offered. prompts: how many
    are asked. seed: of prompts, their order, random heads and resampling.
    typed: heads of further plans ("L1H3, L1H5; L2H0": two plans). ways: how they and the heads of the Ablate page are
    switched off. without: names of plans that are not measured.
    measure: the metric that is drawn, "" for the usual one. part_of: the slice that is drawn, "" for the first.
    way: how the sweep and the pruning curves switch heads off. orders: of removal. order_by: what ranks the heads.
    """

    task: str = ""
    prompts: int = 48
    seed: int = 0
    typed: str = ""
    ways: tuple[str, ...] = ("zero", "mean")
    without: tuple[str, ...] = ()
    measure: str = ""
    part_of: str = ""
    way: str = "zero"
    orders: tuple[str, ...] = ("ascending", "reverse", "random")
    order_by: str = IMPORTANCE[0]
