"""Every op in every host, in every dtype and at edge cases, against its definition in float64."""

import pytest

import my_ops


@pytest.mark.cudarelu_library(my_ops.LIBRARY)
def test_ops(op_check):
    op_check.run()
