"""The test matrix of cudarelu.testing, for the ops of this library and of a second module."""

from __future__ import annotations

import pytest

import cudarelu
from support.op_modules import LIBRARY

(OWN, *_) = cudarelu.modules()


@pytest.mark.cudarelu_library(OWN.path, LIBRARY)
def test_op(op_check):
    op_check.run()
