# %% [markdown]
# # Train in JAX, and serve the model without Python
#
# A small network learns to tell three spirals apart, by `linear_gelu`, `layer_norm` and `softmax`.
# The ops of this library take JAX's arrays, and are parts of the program that `jax.jit` compiles.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import torch

import cudarelu
import cudarelu.nn
import cudarelu.onnx

WIDTH, CLASSES, STEPS, RATE = 64, 3, 400, 0.1

# %% [markdown]
# ## The data


# %%
def spirals(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on three spirals, and the number of the spiral of each."""
    random = np.random.default_rng(0)
    labels = np.arange(points) % CLASSES
    radius = random.uniform(0.1, 1, points)
    angle = 2 * np.pi * (labels / CLASSES + radius) + random.normal(0, 0.1, points)
    xy = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return xy.astype(np.float32), labels


# %% [markdown]
# ## The network


# %%
def initial(key: jax.Array) -> list[dict[str, jax.Array]]:
    sizes = [(WIDTH, 2), (WIDTH, WIDTH), (CLASSES, WIDTH)]
    keys = jax.random.split(key, len(sizes))
    return [
        {"weight": jax.random.normal(k, shape) / shape[1] ** 0.5, "bias": jnp.zeros(shape[0])}
        for k, shape in zip(keys, sizes, strict=True)
    ]


def probabilities(parameters: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    first, second, last = parameters
    x = cudarelu.layer_norm(cudarelu.linear_gelu(x, **first))
    x = cudarelu.layer_norm(cudarelu.linear_gelu(x, **second))
    return cudarelu.softmax(cudarelu.linear(x, **last))


def loss(parameters: list[dict[str, jax.Array]], x: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(probabilities(parameters, x), labels[:, None], axis=-1)
    return -jnp.log(chosen).mean()


@jax.jit
def step(parameters, x, labels):
    value, gradients = jax.value_and_grad(loss)(parameters, x, labels)
    return jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients), value


def as_module(parameters: list[dict[str, jax.Array]]) -> torch.nn.Module:
    """The same network as a module of PyTorch, which cudarelu.onnx exports."""
    first = cudarelu.nn.LinearGELU(2, WIDTH)
    second, last = cudarelu.nn.LinearGELU(WIDTH, WIDTH), cudarelu.nn.Linear(WIDTH, CLASSES)
    for module, values in zip((first, second, last), parameters, strict=True):
        module.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in values.items()})
    norm = cudarelu.nn.LayerNorm(WIDTH, elementwise_affine=False)
    network = torch.nn.Sequential(first, norm, second, norm, last, cudarelu.nn.Softmax(dim=-1))
    return network.eval()


# %% [markdown]
# ## Training and export

# %%
if __name__ == "__main__":  # other programs import the network
    x, labels = spirals(600)
    parameters = initial(jax.random.key(0))
    for number in range(1, STEPS + 1):
        parameters, value = step(parameters, x, labels)
        if number % 100 == 0:
            print(f"step {number}: loss {value:.3f}")
    found = np.asarray(probabilities(parameters, jnp.asarray(x)))
    print(f"accuracy {np.mean(np.argmax(found, -1) == labels):.3f}")
    names = {"input_names": ["x"], "output_names": ["probabilities"]}
    module, arguments = as_module(parameters), (torch.from_numpy(x),)
    cudarelu.onnx.export(module, arguments, "model.onnx", verbose=False, **names)
    np.save("x.npy", x)
    np.save("probabilities.npy", found)

# %% [markdown]
# The model gives the same outputs without Python:
#
#     ort_infer model.onnx --input x=x.npy --compare probabilities=probabilities.npy
