"""From a plan to tensors: what each attention of a run has to change.

Interventions that need another run (a counterfactual sentence, means over reference sentences) are run here, before
the run they are for. `attend` then only sees edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mha_core.edits import BlockKeys, Edit, ReplaceOutput, ScaleOutput, UniformWeights
from mha_core.interventions import AttentionKnockout, HeadAblation, InterventionError, Interventions
from mha_core.tokens import Tokens
from mha_core.trace import Site, Trace

SlotKey = tuple[str, int]


class References(Protocol):
    """What a model offers to resolve a plan with."""

    @property
    def sites(self) -> Mapping[str, Site]: ...
    def mean_outputs(self, reference: str | tuple[str, ...]) -> Mapping[SlotKey, Tensor]: ...
    def clean_trace(self) -> Trace: ...
    def source_trace(self, text: str) -> Trace: ...


@dataclass(frozen=True, eq=False)
class Resolved:
    """A plan as edits per slot; `owners` says which item of the plan each edit belongs to."""

    plan: Interventions
    edits: Mapping[SlotKey, tuple[Edit, ...]]
    owners: Mapping[SlotKey, tuple[int, ...]]

    def applied(self, calls: Mapping[SlotKey, int], blocked: Mapping[SlotKey, tuple[int, ...]]) -> tuple[int, ...]:
        """How many attention calls each item of the plan changed.

        Raises:
            InterventionError: an item changed less than was asked for.
        """
        counts, closed = [0] * len(self.plan), [0] * len(self.plan)
        for slot, owners in self.owners.items():
            for owner in set(owners):
                counts[owner] += calls.get(slot, 0)
            blocks = [o for o, e in zip(owners, self.edits[slot], strict=True) if isinstance(e, BlockKeys)]
            for owner, cells in zip(blocks, blocked.get(slot, ()), strict=False):
                closed[owner] += cells
        for number, item in enumerate(self.plan):
            expected = sum(number in owners for owners in self.owners.values())
            if counts[number] < expected or expected == 0:
                raise InterventionError(f"This was asked for and did not happen: {item}.")
            if isinstance(item, AttentionKnockout) and closed[number] == 0:
                raise InterventionError(
                    f"This was asked for and changes nothing: {item}. Every one of these positions is closed already "
                    "(later positions in a causal model, for instance)."
                )
        return tuple(counts)


def resolve(plan: Interventions, references: References) -> Resolved:
    """Turn a validated plan into edits, running what it needs."""
    edits: dict[SlotKey, list[Edit]] = {}
    owners: dict[SlotKey, list[int]] = {}
    for number, item in enumerate(plan):
        made = (
            _knockout_edits(item, references.sites)
            if isinstance(item, AttentionKnockout)
            else _ablation_edits(item, references)
        )
        for slot, edit in made:
            edits.setdefault(slot, []).append(edit)
            owners.setdefault(slot, []).append(number)
    return Resolved(plan, {k: tuple(v) for k, v in edits.items()}, {k: tuple(v) for k, v in owners.items()})


def _knockout_edits(item: AttentionKnockout, sites: Mapping[str, Site]) -> list[tuple[SlotKey, Edit]]:
    site = sites[item.site]
    made: list[tuple[SlotKey, Edit]] = []
    for layer in range(site.n_layers):
        heads = item.heads_of(layer, site.n_heads)
        if heads:
            keys, positions = torch.tensor(item.src), torch.tensor(item.dst)
            made.append(((item.site, layer), BlockKeys(torch.tensor(heads), positions=positions, keys=keys)))
    return made


def _ablation_edits(item: HeadAblation, references: References) -> list[tuple[SlotKey, Edit]]:
    by_slot: dict[SlotKey, list[int]] = {}
    for head in item.heads:
        by_slot.setdefault((head.site, head.layer), []).append(head.head)
    values = replacement_values(item, references)
    positions = None if item.positions is None else torch.tensor(item.positions)
    return [
        (slot, _edit(item, torch.tensor(heads), positions, None if values is None else values[slot]))
        for slot, heads in by_slot.items()
    ]


def _edit(item: HeadAblation, heads: Tensor, positions: Tensor | None, value: Tensor | None) -> Edit:
    """One layer's edit. value: [head, 1 or position, d_head] of all heads of the layer."""
    if item.kind == "uniform":
        return UniformWeights(heads, positions=positions)
    if value is None:
        return ScaleOutput(heads, positions=positions, factor=item.factor or 0.0)
    value = value[heads]
    if positions is not None and value.shape[1] > 1:
        value = value[:, positions]
    return ReplaceOutput(heads, positions=positions, value=value)


def replacement_values(item: HeadAblation, references: References) -> dict[SlotKey, Tensor] | None:
    """What replaces z in each layer that is named: slot -> [head, 1 or position, d_head]; None where nothing does."""
    slots = list(dict.fromkeys((head.site, head.layer) for head in item.heads))
    if item.kind == "mean" and item.reference != "sentence":
        means = references.mean_outputs(item.reference)
        return {slot: means[slot][:, None] for slot in slots}
    if item.kind == "mean":
        clean = references.clean_trace()
        return {(s, n): clean.head_outputs(n, s).mean(dim=1, keepdim=True) for s, n in slots}
    if item.kind == "resample" and item.source is not None:
        clean, source = references.clean_trace(), references.source_trace(item.source)
        for site in {site for site, _ in slots}:
            _check_same_length(clean.site_tokens(site)[0], source.site_tokens(site)[0])
        return {(site, layer): source.head_outputs(layer, site) for site, layer in slots}
    return None


def _check_same_length(tokens: Tokens, source: Tokens) -> None:
    if len(tokens) == len(source):
        return
    pairs = zip(tokens.ids, source.ids, strict=False)
    part = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(source)))
    here = [t.labels[part] if part < len(t) else "its end" for t in (tokens, source)]
    raise InterventionError(
        f"The sentence has {len(tokens)} tokens and the other sentence {len(source)}; resampling takes each position "
        f"from the same position there, so both must be equally long. They part at position {part}: {here[0]!r} here, "
        f"{here[1]!r} there."
    )
