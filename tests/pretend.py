"""A second device where there is none: tensors that say they are on it, live on the CPU, and keep a GPU's rules.

An operation whose tensors are on two devices fails, as it would with a GPU, and so does reading one by NumPy. Copies
are allowed, and numbers without axes from the CPU beside anything. Results are the CPU's, to the bit. What only a real
device can show (its kernels, its memory, two of them at once) is not shown here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")  # the one device besides the CPU that every build of torch can name
_COPIES = {"aten._to_copy.default", "aten.copy_.default"}


class Pretended(Tensor):
    """A tensor that says it is on the device. numbers: its numbers."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Pretended:
        with torch.inference_mode(False):  # an inference tensor of this kind cannot be indexed
            made: Pretended = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, numbers.size(), strides=numbers.stride(), storage_offset=numbers.storage_offset(),
                dtype=numbers.dtype, device=DEVICE, requires_grad=False,
            )  # fmt: skip
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.numbers!r})"


class _Factories(TorchDispatchMode):
    """Tensors made on the device, or sent to it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name  # type: ignore[attr-defined]
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):  # type: ignore[attr-defined]
        with _Factories():  # made of other operations, which inference mode would not take it apart into
            return func.decompose(*args, **kwargs)  # type: ignore[attr-defined]
    given = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
    there = [item for item in given if isinstance(item, Pretended)]
    asked = kwargs.get("device")
    if str(func) not in _COPIES and there:
        strangers = [item for item in given if not isinstance(item, Pretended) and item.ndim > 0]
        if strangers:
            raise RuntimeError(f"{func}: tensors on {DEVICE} and on the CPU {tuple(strangers[0].shape)} meet.")
    if asked is not None:
        to_device = torch.device(asked).type == DEVICE.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif str(func) == "aten.copy_.default":
        to_device = isinstance(args[0], Pretended)
    else:
        to_device = bool(there)
    plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    if name.endswith("_") and not name.endswith("__"):
        return args[0]
    return tree_map(_wrapped, result) if to_device else result


def _plain(item: Any) -> Any:
    return item.numbers if isinstance(item, Pretended) else item


def _wrapped(item: Any) -> Any:
    return Pretended(item) if isinstance(item, Tensor) and not isinstance(item, Pretended) else item


@contextmanager
def pretended_device() -> Iterator[None]:
    """In here tensors can be made on `DEVICE` and sent to it."""
    with _Factories():
        yield


def send(network: nn.Module) -> None:
    """Put a network's parameters and buffers on the device."""
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(Pretended(parameter.detach()), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Pretended(buffer)
