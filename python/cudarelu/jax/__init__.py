"""The ops on JAX's arrays: under jit, grad, jvp, vmap, scan, shard_map and jax.export.

The functions of the ops take JAX's arrays and tracers as they take other arrays::

    @jax.jit
    def loss(x, weight, bias):
        return jnp.mean(cudarelu.linear_gelu(x, weight, bias) ** 2)

    jax.grad(loss)(x, weight, bias)

The kernels run on XLA's stream and with its memory. This module is imported when both JAX and
cudarelu are; its import registers the handlers of all modules with XLA, which a program of
``jax.export`` needs. An export names them: ``disabled_checks=cudarelu.jax.export_checks()``.
"""

from __future__ import annotations

import jax

if jax.__version_info__ < (0, 10):
    raise ImportError(
        f"in programs of JAX, the ops need JAX 0.10 or later; this is JAX {jax.__version__}"
    )

from cudarelu.jax.primitives import export_checks, in_place

__all__ = ["export_checks", "in_place"]
