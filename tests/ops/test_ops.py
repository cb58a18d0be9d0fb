"""The test matrix of cudarelu.testing, for the ops of this library and of a second module."""

from __future__ import annotations

import pytest

import cudarelu
from support.op_modules import LIBRARY, my

(OWN, *_) = cudarelu.modules()


@pytest.fixture(scope="module", autouse=True)
def _second_module():
    my()


@pytest.mark.cudarelu_library(OWN.path, LIBRARY)
def test_op(op_check):
    op_check.run()
