"""A second op module, `my`, which tests/my_ops declares."""

from __future__ import annotations

import cudarelu
from support.ort_infer import BUILD

LIBRARY = BUILD / "libmy_ops.so"


def my() -> cudarelu.OpModule:
    """The module, with an op `swish` that has an attribute `beta`."""
    return cudarelu.load_library(LIBRARY)
