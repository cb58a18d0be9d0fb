"""Ops that are defined in Python: `cudarelu.define`, `triton_op` and `Library`."""

from .library import DefinedOp, Library, define
from .triton_op import triton_op

__all__ = ["DefinedOp", "Library", "define", "triton_op"]
