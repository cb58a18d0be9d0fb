"""Makes the inputs of a signature for given sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from .._table import OpInfo


class Numbers(Protocol):
    """Makes arrays or tensors for inputs; each user of `draw` implements it."""

    def offsets(self, batches: int, total: int) -> Any:
        """`batches` ascending int32 numbers: the ends of the batches. The last one is `total`."""

    def positive(self, shape: tuple[int, ...]) -> Any:
        """Numbers greater than 0, of the dtype of "T"."""

    def any(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Numbers of the dtype of this name; "T" is the type variable. It may be "bool"."""


def draw(
    op: OpInfo,
    leading: Sequence[int],
    sizes: Mapping[Any, int],
    numbers: Numbers,
    absent: Collection[str] = (),
    broadcast: str = "not",
    choice: int = 0,
) -> dict[str, Any]:
    """The inputs by name; None for an absent input.

    Args:
        op: the op.
        leading: the dimensions for `*`.
        sizes: the sizes of the names in dimensions.
        numbers: makes the arrays.
        absent: the names of the inputs to leave out.
        broadcast: which dimensions are broadcast of inputs that may: "not", "partly", with sizes of
            1, or "leading", which also leaves out dimensions.
        choice: the number of the dtype of inputs and type variables that may have several.
    """
    inputs: dict[str, Any] = {}
    for each in op.inputs:
        if each.name in absent:
            inputs[each.name] = None
            continue
        shape = each.shape(leading, sizes)
        if each.broadcasts and broadcast != "not":
            # Every second dimension from the last but one on is 1.
            shape = tuple(1 if (len(shape) - i) % 2 == 0 else d for i, d in enumerate(shape))
            shape = shape[-1:] if broadcast == "leading" else shape
        if each.offsets_into:
            inputs[each.name] = numbers.offsets(shape[0], sizes[each.offsets_into])
        elif each.positive:
            inputs[each.name] = numbers.positive(shape)
        else:
            dtypes = op.dtypes_of(each)
            inputs[each.name] = numbers.any(shape, dtypes[choice % len(dtypes)])
    return inputs


def equal_batches(batches: int, total: int) -> list[int]:
    """The ends of batches of about equal sizes."""
    return [total * (i + 1) // batches for i in range(batches)]
