"""From a visitor's choices on the Ablate page to plans: one per way of replacing, plus what was kept."""

from __future__ import annotations

from collections.abc import Sequence

from mha_core.interventions import (
    AttentionKnockout,
    HeadAblation,
    HeadRef,
    Intervention,
    InterventionError,
    Interventions,
)
from mha_core.ui.state import ViewState

KNOCKOUT = "knockout"


def working_plans(state: ViewState, off: Sequence[str], site: str) -> tuple[dict[str, Interventions], list[str]]:
    """The plans that are on the page, by name, and a sentence for each that cannot be made of what was given."""
    plans: dict[str, Interventions] = {}
    problems: list[str] = []
    knockouts = _knockouts(state, off, site)
    for kind in state.kinds if off else ():
        try:
            plans[kind] = Interventions([_ablation(state, off, kind), *knockouts])
        except InterventionError as error:
            problems.append(f"{kind}: {error}")
    if not off and knockouts:
        plans[KNOCKOUT] = Interventions(knockouts)
    for saved in state.plans:
        if saved.shown and saved.plan:
            try:
                plans[saved.name or "kept plan"] = Interventions.from_json(saved.plan)
            except InterventionError as error:
                problems.append(f"{saved.name or 'kept plan'}: {error}")
    return plans, problems


def positions_of(state: ViewState) -> tuple[int, ...] | None:
    """Where heads are replaced: None for everywhere."""
    if not state.where:
        return None
    return (-1,) if state.where == "last" else tuple(int(part) for part in state.where.split(","))


def reference_lines(state: ViewState) -> tuple[str, ...]:
    """The visitor's own reference sentences."""
    return tuple(line.strip() for line in state.lines.splitlines() if line.strip())[:256]


def _ablation(state: ViewState, off: Sequence[str], kind: str) -> HeadAblation:
    positions = positions_of(state)
    if kind == "mean":
        return HeadAblation(off, "mean", positions, reference=reference_lines(state) or "corpus")
    if kind == "sentence":
        return HeadAblation(off, "mean", positions, reference="sentence")
    if kind == "resample":
        if not state.source.strip():
            raise InterventionError("type the other sentence to take the heads' output from.")
        return HeadAblation(off, "resample", positions, source=state.text if state.denoise else state.source)
    if kind == "scale":
        return HeadAblation(off, "scale", positions, factor=state.factor)
    return HeadAblation(off, kind, positions)


def _knockouts(state: ViewState, off: Sequence[str], site: str) -> list[Intervention]:
    """Each chosen cell as a knockout, in the scope that was chosen."""
    heads = [HeadRef.parse(name) for name in off]
    scope: dict[str, object] = {}
    if state.scope == "layer":
        scope = {"layers": [state.layer]}
    elif state.scope == "heads":
        here = [head for head in heads if head.site == site]
        if not here:
            return []
        scope = {"heads": here}
    made: list[Intervention] = []
    for cell in state.cells:
        query, key = (int(part) for part in cell.split("<"))
        made.append(AttentionKnockout([key], [query], site=site, **scope))  # type: ignore[arg-type]
    return made
