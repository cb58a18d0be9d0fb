"""Tests of the ONNX tools know the ops of this library and of `my`, whatever other tests load."""

import pytest

from cudarelu import _table


@pytest.fixture(autouse=True)
def _without_other_modules(monkeypatch):
    known = {name: op for name, op in _table._OPS.items() if op.namespace in ("cudarelu", "my")}
    monkeypatch.setattr(_table, "_OPS", known)
