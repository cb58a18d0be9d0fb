"""The elementwise ops of cudarelu once more, from their definitions alone, with their gradients.

Compares the generated kernels with the written ones, and with torch.compile and a copy:

    python -m cudarelu build benchmarks/generated_ops.py -o libgenerated.so
    python -m cudarelu bench --library ./libgenerated.so --suite libraries
"""

import cudarelu

with cudarelu.Library("generated") as library:
    for op in cudarelu.ops():
        is_real = {"float32", "bfloat16"} <= set(op.dtypes)
        if op.elementwise and is_real and not op.name.endswith(("_backward", "_backward2")):
            cudarelu.define(
                op.signature, op.definition, dtypes=("float32", "bfloat16"), summary=op.summary
            )
