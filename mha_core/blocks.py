"""A model's blocks under control of the running call: begin in the middle, and let the batch grow on the way.

A sweep runs many variants of one sentence. Up to the layer where a variant's head is changed it equals the clean run,
so that nothing before needs to be run again: blocks before a chunk's first layer give back what they gave in the clean
run, and the rows of a layer's variants join the batch right before that layer. Each block runs as the library wrote
it. The switches are installed once when a model is loaded; they hold no state and ask the context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

BlockKey = tuple[str, int]  # stack ("self", "enc", "dec"), layer


@dataclass
class CleanBlocks:
    """What the blocks took in and gave back in the clean run, a batch of one. calls: all their arguments."""

    inputs: dict[BlockKey, Tensor] = field(default_factory=dict)
    calls: dict[BlockKey, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    outputs: dict[BlockKey, Any] = field(default_factory=dict)


@dataclass
class Wavefront:
    """The state of one run through the blocks; lives in a ContextVar.

    blocks: module -> the blocks it is, in the order of its calls (several where one module serves all layers).
    clean: filled by the clean run (`record`), read by the others.
    stack, joins: `joins[layer]` rows join the batch before that layer of that stack; the first such layer is where the
        run begins. Rows keep the order in which they join.
    """

    blocks: Mapping[nn.Module, tuple[BlockKey, ...]]
    clean: CleanBlocks
    stack: str = ""
    joins: Mapping[int, int] = field(default_factory=dict)
    record: bool = False
    turns: dict[nn.Module, int] = field(default_factory=dict)

    def run(self, module: nn.Module, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one block, or stand in for it."""
        keys = self.blocks[module]
        turn = self.turns.get(module, 0)
        self.turns[module] = turn + 1
        stack, layer = key = keys[turn % len(keys)]
        hidden: Tensor = args[0] if args else kwargs["hidden_states"]
        if self.record:
            self.clean.inputs[key] = hidden
            self.clean.calls[key] = (args, kwargs)
            self.clean.outputs[key] = output = original(*args, **kwargs)
            return output
        start = min(self.joins)
        if stack == self.stack and layer < start:
            return self.clean.outputs[key]
        if stack == self.stack and layer in self.joins:
            new = self.clean.inputs[key].expand(self.joins[layer], -1, -1)
            hidden = new if layer == start else torch.cat([hidden, new.to(hidden.device)])
        elif stack == "dec" and self.stack == "enc" and layer == 0:  # every variant of the source gets its target
            hidden = hidden.expand(sum(self.joins.values()), -1, -1)
        if args:
            return original(hidden, *args[1:], **kwargs)
        return original(**{**kwargs, "hidden_states": hidden})


WAVEFRONT: ContextVar[Wavefront | None] = ContextVar("headscope_wavefront", default=None)


def find_blocks(
    root: nn.Module, attention: Mapping[nn.Module, tuple[tuple[str, int], ...]], n_layers: Mapping[str, int]
) -> dict[nn.Module, tuple[BlockKey, ...]]:
    """Which module is the block of each layer: a child of a list of modules that holds the layer's attention.

    Args:
        root: the model.
        attention: attention module -> its (site, layer) in the order of its calls.
        n_layers: site -> number of layers. A list as long as that is the stack itself; else the innermost is taken.
    """
    chains = _list_children(root)
    blocks: dict[nn.Module, tuple[BlockKey, ...]] = {}
    for module, slots in attention.items():
        site = slots[0][0]
        if site == "cross" or module not in chains:
            continue
        holders = chains[module]
        whole = [child for child, length in holders if length == n_layers[site]]
        block = whole[0] if whole else holders[-1][0]
        blocks[block] = (*blocks.get(block, ()), *slots)
    return blocks


def _list_children(root: nn.Module) -> dict[nn.Module, list[tuple[nn.Module, int]]]:
    """Module -> the children of module lists it lies in, outermost first, each with its list's length."""
    chains: dict[nn.Module, list[tuple[nn.Module, int]]] = {}

    def walk(module: nn.Module, chain: list[tuple[nn.Module, int]]) -> None:
        if chain:
            chains[module] = chain
        for child in module.children():
            longer = [*chain, (child, len(module))] if isinstance(module, nn.ModuleList) else chain
            walk(child, longer)

    walk(root, [])
    return chains


def watch_blocks(blocks: Iterable[nn.Module]) -> None:
    """Let the running wavefront stand between a model and its blocks."""
    for block in blocks:
        _watch(block)


def _watch(block: nn.Module) -> None:
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        wavefront = WAVEFRONT.get()
        if wavefront is None:
            return original(*args, **kwargs)
        return wavefront.run(block, original, args, kwargs)

    block.forward = forward  # type: ignore[method-assign]
