"""Which plans can be measured on a task: those of the page's own field, of the Ablate page, and those kept there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mha_core.effects import heads_of_model
from mha_core.interventions import HeadAblation, HeadRef, InterventionError, Interventions
from mha_core.model import Model
from mha_core.ui.evaluate_state import MAX_MEASURED
from mha_core.ui.plan_building import reference_lines
from mha_core.ui.session import current, update
from mha_core.ui.state import MAX_PLAN, MAX_PLANS, SavedPlan, ViewState

_SHOWN_HEADS = 4


def plans_to_measure(state: ViewState, model: Model) -> tuple[dict[str, Interventions], list[str]]:
    """Plans by name, each plan once, and a sentence for each that cannot be measured."""
    plans: dict[str, Interventions] = {}
    problems: list[str] = []
    for name, heads in _sets_of_heads(state, model, problems):
        for way in state.ways:
            reference = reference_lines(state) or "corpus"
            _add(plans, f"{name}, {way}", Interventions(HeadAblation(heads, way, reference=reference)))
    for saved in state.plans:
        name = saved.name or "kept plan"
        try:
            plan = Interventions.from_json(saved.plan).validated_for(model.sites)
        except InterventionError as error:
            problems.append(f"{name}: {error}")
            continue
        problem = bound_to_one_text(plan)
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            _add(plans, name, plan)
    if len(plans) > MAX_MEASURED:
        problems.append(f"{len(plans)} plans were given; the first {MAX_MEASURED} are taken.")
    return dict(list(plans.items())[:MAX_MEASURED]), problems


def _add(plans: dict[str, Interventions], name: str, plan: Interventions) -> None:
    """Under a name that is free; the same plan is not measured twice."""
    if plan in plans.values():
        return
    names = (name, *(f"{name} ({number})" for number in range(2, 2 + len(plans) + 1)))
    plans[next(free for free in names if free not in plans)] = plan


def _sets_of_heads(state: ViewState, model: Model, problems: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Heads that go together, with a name: typed ones, then those that are off on the Ablate page."""
    for part in state.typed.split(";"):
        if part.strip():
            try:
                refs = tuple(dict.fromkeys(HeadRef.parse(name) for name in part.split(",") if name.strip()))
                Interventions(HeadAblation(refs, "zero")).validated_for(model.sites)
            except InterventionError as error:
                problems.append(f"“{part.strip()}”: {error}")
                continue
            yield named_heads(tuple(map(str, refs))), tuple(map(str, refs))
    off, strangers = heads_of_model(state.off, model)
    if strangers:
        problems.append(f"This model has no {', '.join(strangers[:8])}, switched off on the Ablate page.")
    if off:
        yield named_heads(off), tuple(off)


def named_heads(names: Sequence[str]) -> str:
    """Heads in a few words."""
    more = f" and {len(names) - _SHOWN_HEADS} more" if len(names) > _SHOWN_HEADS else ""
    return ", ".join(names[:_SHOWN_HEADS]) + more


def bound_to_one_text(plan: Interventions) -> str:
    """Why a plan only makes sense for the sentence it was made for; empty where it can be measured on any."""
    if any(place >= 0 for item in plan.ablations for place in item.positions or ()):
        return "it names positions of one sentence. Switch heads off at all tokens, or at the last."
    if any(place >= 0 for item in plan.knockouts for place in (*item.src, *item.dst)):
        return "its closed cells are positions of one sentence, and mean nothing in other prompts."
    if any(item.kind == "resample" for item in plan.ablations):
        return "it takes heads' output from another sentence of the same length, which prompts have not."
    return ""


def onto_ablate_page(plan: Interventions, name: str) -> None:
    """Make a plan the working plan of the Ablate page, or keep it there where it is more than heads switched off."""
    state, items = current(), tuple(plan.ablations)
    simple = len(items) == 1 and not plan.knockouts and items[0].positions is None and items[0].kind in ("zero", "mean")
    if simple and items[0].kind == "mean" and items[0].reference not in ("corpus", reference_lines(state)):
        simple = False
    if simple:
        lines = {"lines": ""} if items[0].reference == "corpus" else {}
        heads = tuple(str(head) for head in items[0].heads)
        update(off=heads, kinds=(items[0].kind,), where="", cells=(), **lines)
        return
    kept = [replace(saved, shown=saved.plan == plan.to_json()) for saved in state.plans]
    if not any(saved.shown for saved in kept):
        kept = [*kept[: MAX_PLANS - 1], SavedPlan(name, plan.to_json()[:MAX_PLAN])]
    update(off=(), cells=(), plans=tuple(kept))


def toggled(name: str) -> None:
    """Switch one head off, or on again, in the working plan."""
    off = current().off
    update(off=tuple(head for head in off if head != name) if name in off else (*off, name))


def said_plan(names: Sequence[str]) -> str:
    """The working plan in a sentence."""
    return f"Switched off by your clicks, and on the Ablate page: {named_heads(names) if names else 'no head'}."
