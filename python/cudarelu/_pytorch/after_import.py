"""Runs actions after another package's module is imported."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


def after_import(name: str, action: Callable[[], object]) -> None:
    """Calls `action` once: now if the module `name` is imported, else right after its import.

    Actions of one module are called in the order of the calls of this function.
    """
    waiting = (each for each in sys.meta_path if isinstance(each, _Finder) and each.name == name)
    if finder := next(waiting, None):
        finder.actions.append(action)
    elif name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, [action]))


class _Finder(MetaPathFinder):
    """Finds one module as Python would, and runs the actions after the module's code."""

    def __init__(self, name: str, actions: list[Callable[[], object]]) -> None:
        self.name = name
        self.actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_then_act(module: ModuleType) -> None:
                run(module)
                sys.meta_path.remove(self)
                for action in self.actions:
                    action()

            spec.loader.exec_module = run_then_act  # type: ignore[method-assign]
        return spec
