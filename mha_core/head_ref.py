"""Names of heads: "L1H5" is head 5 of layer 1, both counted from 0."""

from __future__ import annotations

import re
from dataclasses import dataclass

SITES = ("self", "enc", "dec", "cross")
_HEAD_PATTERN = re.compile(r"^\s*(?:(self|enc|dec|cross)\.)?L([0-9]{1,4})H([0-9]{1,4})\s*$", re.IGNORECASE)


class InterventionError(ValueError):
    """A plan that cannot be carried out, as a sentence for the person who made it."""


@dataclass(frozen=True, order=True)
class HeadRef:
    """One query head. `str(HeadRef(1, 5))` is "L1H5"; `HeadRef(0, 2, site="cross")` is "cross.L0H2".

    layer, head: from 0.
    site: "self" in models with one stack; "enc", "dec" (self-attention) and "cross" in encoder-decoders.
    """

    layer: int
    head: int
    site: str = "self"

    def __post_init__(self) -> None:
        for name, value in (("layer", self.layer), ("head", self.head)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InterventionError(f"{name} is {value!r}; it must be a whole number from 0.")
        if self.site not in SITES:
            raise InterventionError(f"site is {self.site!r}; it must be one of {', '.join(SITES)}.")

    def __str__(self) -> str:
        prefix = "" if self.site == "self" else f"{self.site}."
        return f"{prefix}L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, text: str) -> HeadRef:
        """Read "L1H5", "enc.L0H2", "dec.L0H2" or "cross.L0H2".

        Raises:
            InterventionError: the text is none of these.
        """
        match = _HEAD_PATTERN.match(text) if isinstance(text, str) else None
        if match is None:
            raise InterventionError(
                f"{str(text)[:60]!r} is not a head; write it like L1H5 (layer 1, head 5, both counted from 0), "
                "or enc.L0H2, dec.L0H2, cross.L0H2 in an encoder-decoder."
            )
        site, layer, head = match.groups()
        return cls(int(layer), int(head), (site or "self").lower())
