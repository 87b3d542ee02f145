"""Headscope's attention inside transformers: registration, per-call state, and probing a loaded model.

Models are loaded with `attn_implementation="headscope"`. Their attention modules then call `_attention` below with
their queries, keys and values, and it calls `attend`. What is recorded or changed is decided by the `Call` of the
current context: nothing is ever written on the shared model, so two people can run one model at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from mha_core.attention import AttentionInputs
from mha_core.attention_by_head import outputs
from mha_core.edits import Edit

ATTENTION_NAME = "headscope"
SlotKey = tuple[str, int]  # site, layer


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """One attention call: the module that made it, its arguments, and z [batch, head, query, d_head]."""

    module: nn.Module
    inputs: AttentionInputs
    output: Tensor


@dataclass(frozen=True, eq=False)
class Slots:
    """Which (site, layer) each attention call of a run is, found by probing.

    modules: attention module -> the slots of its calls in one forward pass, in order (several where one module
        serves all layers, as in ALBERT).
    projections: slot -> the output projection, whose input is the concatenated head outputs.
    """

    modules: Mapping[nn.Module, tuple[SlotKey, ...]]
    projections: Mapping[SlotKey, nn.Module]


@dataclass
class Call:
    """The state of one run. Lives in a ContextVar, so it belongs to one thread's one run.

    slots: where attention happens; None while a model is still being probed.
    edits: what is changed, per slot.
    record: keep each call's arguments for the trace.
    kernel: "own" runs `attend`; "library" runs the library's own attention on the same model (the proof line).
    on_attention: called before each attention with the number of those done; what it raises ends the run.
    observe: called in each attention with its slot, then as `attention_by_head.outputs` calls `look`.
    head_input: in a replay, the final hidden states to put under the model's output head instead of running it.
    next_logits: the model's output shall hold the last position's logits; otherwise its head has nothing to do.
    gradients: keep every z in `outputs`, with a gradient asked for from there on. The weights never have one.
    """

    slots: Slots | None = None
    edits: Mapping[SlotKey, tuple[Edit, ...]] = field(default_factory=dict)
    record: bool = True
    kernel: str = "own"
    on_attention: Callable[[int], None] | None = None
    observe: Callable[[SlotKey, int, Tensor], None] | None = None
    head_input: Tensor | None = None
    next_logits: bool = False
    gradients: bool = False

    records: dict[SlotKey, AttentionInputs] = field(default_factory=dict)
    projected: dict[SlotKey, Tensor] = field(default_factory=dict)
    applied: dict[SlotKey, int] = field(default_factory=dict)
    blocked: dict[SlotKey, tuple[int, ...]] = field(default_factory=dict)
    captured: list[CapturedCall] = field(default_factory=list)
    outputs: dict[SlotKey, Tensor] = field(default_factory=dict)
    hidden: Tensor | None = None
    n_calls: int = 0
    _turns: dict[nn.Module, int] = field(default_factory=dict)
    _current: SlotKey | None = None

    def attend(self, module: nn.Module, inputs: AttentionInputs, library: Callable[[], Tensor]) -> Tensor:
        """Run one attention of this call and keep what the trace needs. Returns z [batch, head, query, d_head]."""
        slot = self._next_slot(module)
        if self.on_attention is not None:
            self.on_attention(self.n_calls)
        self.n_calls += 1
        edits = self.edits.get(slot, ()) if slot is not None else ()
        if edits:
            inputs = replace(inputs, edits=tuple(edit.to(inputs.query.device) for edit in edits))
        look = None if self.observe is None or slot is None else partial(self.observe, slot)
        z, n_blocked = (library(), ()) if self.kernel == "library" else outputs(inputs, look)
        if slot is None:
            self.captured.append(CapturedCall(module, inputs, z))
        else:
            self._keep(slot, inputs, z, n_blocked)
        return z

    def start_at(self, layer: int) -> None:
        """This run begins at a layer: a module that serves all layers (ALBERT's) has had its earlier turns."""
        for module, slots in self.slots.modules.items() if self.slots else ():
            if len(slots) > 1:
                self._turns[module] = layer

    def _next_slot(self, module: nn.Module) -> SlotKey | None:
        if self.slots is None:
            return None
        slots = self.slots.modules.get(module)
        if slots is None:
            raise RuntimeError(f"{type(module).__name__} attends here but was not seen when the model was probed.")
        turn = self._turns.get(module, 0)
        self._turns[module] = turn + 1
        return slots[turn % len(slots)]

    def _keep(self, slot: SlotKey, inputs: AttentionInputs, z: Tensor, n_blocked: tuple[int, ...]) -> None:
        self._current = slot
        if self.gradients:
            self.outputs[slot] = z.requires_grad_()
        if self.record:
            self.records[slot] = inputs
        if inputs.edits:
            self.applied[slot] = self.applied.get(slot, 0) + 1
            self.blocked[slot] = n_blocked

    def keep_projection(self, projection: nn.Module, output: Tensor) -> None:
        """What the output projection of the latest attention wrote, [batch, query, d_model]."""
        slot = self._current
        if self.record and slot is not None and self.slots and self.slots.projections.get(slot) is projection:
            self.projected[slot] = output
            self._current = None


_CALL: ContextVar[Call | None] = ContextVar("headscope_call", default=None)


@contextmanager
def running(call: Call) -> Iterator[Call]:
    """Make `call` the state of every attention in this context. Gradients are off unless the caller has them on."""
    token = _CALL.set(call)
    try:
        yield call
    finally:
        _CALL.reset(token)


@contextmanager
def capturing() -> Iterator[list[CapturedCall]]:
    """Collect every attention call made in this context, in order, with its arguments and head outputs."""
    with running(Call()) as call:
        yield call.captured


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls. Returns [batch, query, head, d_head] and no weights: the trace makes those."""
    if dropout:
        raise RuntimeError("Headscope runs models for reading; call model.eval() before a run with dropout.")
    inputs = AttentionInputs(
        query,
        key,
        value,
        mask=attention_mask,
        bias=position_bias,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
    )
    if key.shape[0] == 1 < query.shape[0]:  # variants of a target read one source
        inputs = replace(
            inputs, key=key.expand(len(query), *key.shape[1:]), value=value.expand(len(query), *value.shape[1:])
        )

    def library() -> Tensor:
        given = {
            "scaling": scaling,
            "softcap": softcap,
            "position_bias": position_bias,
            "s_aux": s_aux,
            **kwargs,
        }
        return _library_attention(module, query, key, value, attention_mask, given)

    return attend_in_call(module, inputs, library).transpose(1, 2).contiguous(), None


def attend_in_call(module: nn.Module, inputs: AttentionInputs, library: Callable[[], Tensor]) -> Tensor:
    """One attention of a network, as the running call wants it: z [batch, head, query, d_head].

    Args:
        module: the attention module, which the call knows its place by.
        inputs: what is attended with.
        library: gives the same z by the library's own attention, for runs that ask for that.
    """
    call = _CALL.get()
    return inputs.attend().head_outputs if call is None else call.attend(module, inputs, library)


def _library_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, given: dict[str, Any]
) -> Tensor:
    """z from the library: torch's fused kernel, or the family's eager function where the kernel can't do it."""
    arguments = {name: value for name, value in given.items() if value is not None}
    if "softcap" in arguments or "s_aux" in arguments:
        function = sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[attr-defined]
    else:
        function = AttentionInterface()["sdpa"]
    output, _ = function(module, query, key, value, mask, **arguments)
    return output.transpose(1, 2)


def register() -> None:
    """Register our attention and its mask function with transformers. Without the mask function causality and
    padding are silently lost.
    """
    AttentionInterface.register(ATTENTION_NAME, _attention)
    AttentionMaskInterface.register(ATTENTION_NAME, eager_mask)


register()


def find_output_projections(
    root: nn.Module, run: Callable[[], object]
) -> tuple[list[CapturedCall], list[nn.Module | None]]:
    """Run a model once and find, for every attention call, the module whose input is that call's head outputs.

    Args:
        root: the model; nobody else may run it yet.
        run: makes one forward pass.

    Returns:
        The calls in order, and for each the Linear or Conv1D that takes its concatenated heads (None: not found).
    """
    projections: list[nn.Module | None] = []
    calls: list[CapturedCall] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        if not calls or not args or not isinstance(args[0], Tensor):
            return
        projections.extend([None] * (len(calls) - len(projections)))
        z = calls[-1].output.transpose(1, 2)  # [batch, query, head, d_head]
        if projections[-1] is None and args[0].numel() == z.numel() and torch.equal(args[0].reshape(-1), z.reshape(-1)):
            projections[-1] = module

    linear = [m for m in root.modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
    handles = [module.register_forward_pre_hook(before) for module in linear]
    try:
        with running(Call()) as call:
            calls = call.captured
            run()
    finally:
        for handle in handles:
            handle.remove()
    projections.extend([None] * (len(calls) - len(projections)))
    return calls, projections


def watch_projections(projections: Mapping[SlotKey, nn.Module]) -> None:
    """Let the running call see what output projections write. One hook per module for the model's life: it holds no
    state, it asks the context.
    """

    def after(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        call = _CALL.get()
        if call is not None:
            call.keep_projection(module, output)

    for module in set(projections.values()):
        module.register_forward_hook(after)


def watch_base(base: nn.Module) -> None:
    """Put a switch between a model's trunk and its output head.

    In a run, the call takes the trunk's final hidden states and the head sees no position (or the last one, where
    the call asks for it): the largest matrix of a small model is not multiplied in vain, once per row of a batch.
    In a replay (`Call.head_input`) the trunk does not run at all and the head gets the hidden states it is given:
    that is how logits are made later, for the positions asked for, in any family.
    """
    original = base.forward
    output_type: list[type] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = _CALL.get()
        if call is None or call.slots is None:
            output = original(*args, **kwargs)
            output_type[:] = [type(output)]
            return output
        if call.head_input is not None:
            return output_type[0](last_hidden_state=call.head_input)
        output = original(*args, **kwargs)
        call.hidden = output.last_hidden_state
        output["last_hidden_state"] = call.hidden[:, -1:] if call.next_logits else call.hidden[:1, :0]
        return output

    base.forward = forward  # type: ignore[method-assign]
