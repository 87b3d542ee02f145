"""Where a model's numbers are made, and with what: its device and number type."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from mha_core.catalogue import ModelUnsupportedError

DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps", "auto")


@dataclass(frozen=True)
class Placement:
    """device: "cpu", "cuda" (or "cuda:1"), "mps", or "auto": over all that there are, for a model larger than one of
    them. dtype: "float32", "bfloat16" or "float16", of weights and of what runs through them.
    """

    device: str = "cpu"
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.dtype if self.device == "cpu" else f"{self.dtype} {self.device.partition(':')[0]}"


HOME = Placement()
"""Where all that a run gives is, whatever the model's placement: the CPU, in float32."""


def at_home(tensor: Tensor) -> Tensor:
    """A tensor on the CPU, and in float32 where it had half precision (NumPy has no bfloat16)."""
    return tensor.to("cpu", torch.float32 if is_half(tensor) else tensor.dtype)


def is_half(tensor: Tensor) -> bool:
    """Whether its numbers are bfloat16 or float16."""
    return tensor.dtype in (torch.bfloat16, torch.float16)


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """`--device` and `--dtype` for a command; `placement_of` reads them."""
    group = parser.add_argument_group("device")
    devices = "cpu (default), cuda, cuda:1, mps, or auto: over all there are, for a model larger than one"
    dtypes = "of weights and runs (default float32; the others are smaller and less exact)"
    group.add_argument("--device", default="cpu", help=devices)
    group.add_argument("--dtype", default="float32", choices=DTYPES, help=dtypes)


def placement_of(device: str = "cpu", dtype: str = "float32") -> Placement:
    """A placement that can be had on this machine.

    Raises:
        ModelUnsupportedError: there is no such device or number type.
    """
    kind, _, number = device.partition(":")
    if dtype not in DTYPES:
        raise ModelUnsupportedError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    if kind not in DEVICES or (number and (kind != "cuda" or not number.isdecimal())) or device.endswith(":"):
        raise ModelUnsupportedError(f"device is {device[:40]!r}; it must be one of {', '.join(DEVICES)}, or cuda:1.")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            raise ModelUnsupportedError(
                f"device is {device!r} and torch sees {count or 'no'} CUDA device{'s' if count > 1 else ''} here; "
                "take another device, or install torch's CUDA build and the driver."
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ModelUnsupportedError("device is 'mps' and torch sees no Apple GPU here; take another device.")
    return Placement(device, dtype)
