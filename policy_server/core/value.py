"""`value`: a frozen dataclass whose freezing the type checker holds, not the run time.

To mypy it is `dataclasses.dataclass`. At run time it leaves `frozen` out, for a frozen dataclass
sets each field through `object.__setattr__`: 2 µs instead of .5 for a `Request`. It is for the few
values that are made for every request; everything else is an ordinary frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen: bool, slots: bool):
        """`dataclass(frozen=True, slots=True)`, compared and hashed by its fields."""
        return dataclass(slots=slots, unsafe_hash=frozen)
