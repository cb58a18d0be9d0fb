"""A result on the CPU does not depend on what else is in the batch."""

import pytest
import torch

import cudarelu
from cudarelu._pytorch.functions import overload_of
from cudarelu.testing.inputs import draw

# Matrix products take the rows of a batch together.
OPS = [op for op in cudarelu.ops() if not op.product and any(each.leads for each in op.inputs)]
# Long rows may be computed in groups.
CASES = [(op, 67) for op in OPS] + [(op, 2115) for op in OPS if len(op.named_dimensions) == 1]
SAMPLES = 5


class Normal:
    """Random tensors. Those of attention are small, so that its gradients are."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(1)

    def any(self, shape, dtype):
        x = torch.randn(shape, generator=self.generator)
        return x if dtype == "float32" else x.to(self.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "size"), CASES, ids=lambda each: getattr(each, "name", str(each)))
def test_each_sample_alone_has_the_same_bits(op, size, dtype):
    sizes = op.with_multiples(dict.fromkeys(op.named_dimensions, size) | {"g": 1, "h": 2})
    inputs = draw(op, (SAMPLES,), sizes, Normal(dtype))
    attributes = {each.name: 0.75 for each in op.attributes if each.required}
    together = overload_of(op)(*inputs.values(), **attributes)
    leading = [each.leads for each in op.outputs]
    for sample in range(SAMPLES):
        alone = overload_of(op)(
            *(
                x[sample : sample + 1] if each.leads else x
                for each, x in zip(op.inputs, inputs.values(), strict=True)
            ),
            **attributes,
        )
        for y, ys, leads in zip(outputs(alone), outputs(together), leading, strict=True):
            if leads:
                assert torch.equal(bits(y[0]), bits(ys[sample]))


def outputs(results):
    return [results] if isinstance(results, torch.Tensor) else results


def bits(x):
    """Of which NaN are equal to NaN, and -0 is not equal to 0."""
    return x.contiguous().view(torch.int16 if x.dtype.itemsize == 2 else torch.int32)
