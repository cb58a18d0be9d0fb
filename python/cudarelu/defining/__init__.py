"""Ops that are defined in Python: `cudarelu.define` and `cudarelu.Library`."""

from .library import DefinedOp, Library, define

__all__ = ["DefinedOp", "Library", "define"]
