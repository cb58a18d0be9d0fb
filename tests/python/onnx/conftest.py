"""Tests of the ONNX tools know the ops of this library, and those of modules that they load."""

from collections.abc import Iterator

import pytest

from support.op_modules import only_own_module


@pytest.fixture(autouse=True)
def _without_other_modules() -> Iterator[None]:
    with only_own_module():
        yield
