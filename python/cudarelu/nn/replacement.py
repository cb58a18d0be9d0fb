"""Replaces torch's modules in a model by ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from cudarelu.nn.modules import OF_ONE_OP, Sequential, is_pair, unlike_ours
from cudarelu.nn.transformer import (
    MultiheadAttention,
    TransformerEncoderLayer,
    attention_unlike_ours,
)

# For each class of torch: our class, and the reason why a module cannot be of it.
_OURS: dict[type[torch.nn.Module], tuple[type[torch.nn.Module], Callable[..., str | None]]] = {
    **{theirs: (ours, unlike_ours) for theirs, (ours, _) in OF_ONE_OP.items()},
    torch.nn.MultiheadAttention: (MultiheadAttention, attention_unlike_ours),
    torch.nn.TransformerEncoderLayer: (TransformerEncoderLayer, lambda _: None),
}


@dataclass(frozen=True)
class Replacement:
    """What `replace` did. The keys are the qualified names of modules, as in `named_modules`."""

    swapped: dict[str, str]  # the name of the class, such as "ReLU"
    left: dict[str, str]  # the reason

    def __str__(self) -> str:
        lines = []
        for title, modules in (("swapped", self.swapped), ("left", self.left)):
            lines.append(f"{title}: {len(modules)}")
            lines += [f"  {name or '(the model)'}: {text}" for name, text in modules.items()]
        return "\n".join(lines)


def replace(model: torch.nn.Module) -> Replacement:
    """Converts torch's modules in a model, in place, to those of `cudarelu.nn`.

    A Sequential with a Linear followed by a ReLU or GELU becomes our `Sequential`, which runs the
    two as one op. A MultiheadAttention runs our ops only in calls with `need_weights=False`, as all
    those of torch's layers of Transformers are.

    Each module, including the model itself, remains the same object; only its class changes. Hooks,
    the training mode, sharing and references to modules are kept. These modules are not converted:
    instances of subclasses of torch's classes, such as parametrized modules; modules with their own
    `forward`; LayerNorm over several dimensions; Linear and MultiheadAttention with a quantised,
    complex or distributed weight; MultiheadAttention with `add_bias_kv` or `add_zero_attn`; and
    modules with an attribute that the op does not accept, such as a slope that is a bool or a
    tensor, or a negative eps. In eval mode without gradients, a TransformerEncoder makes nested
    tensors of padded batches unless `enable_nested_tensor` is false; its layers pass them to torch.

    A converted module runs torch's own `forward` in each call whose tensors the op has no kernel
    for. Examples are ReLU on a quantised tensor, and LayerNorm with float32 parameters on a
    bfloat16 tensor. torch.compile breaks the graph at such a call.

    If torch.compile has compiled the model before, it compiles it again.

    Args:
        model: the model to change.

    Returns:
        The converted and the unconverted modules. A shared module has an entry for each name.
    """
    swapped: dict[str, str] = {}
    left: dict[str, str] = {}
    classes: dict[torch.nn.Module, type] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found = classes.setdefault(module, type(module))
        if found in _OURS and "forward" in vars(module):
            left[name] = f"{found.__name__} with a forward of its own"
        elif found in _OURS:
            ours, reason_against = _OURS[found]
            if reason := reason_against(module):
                left[name] = reason
            else:
                module.__class__ = ours
                swapped[name] = found.__name__
        elif isinstance(module, tuple(_OURS)) and not _is_known(found):
            left[name] = f"{found.__name__}, a subclass"
        elif isinstance(module, torch.nn.TransformerEncoder) and module.use_nested_tensor:
            left[name] = (
                "TransformerEncoder with enable_nested_tensor, for padded batches in eval mode"
            )
    for name, module in model.named_modules(remove_duplicate=False):
        if classes[module] is not torch.nn.Sequential or "forward" in vars(module):
            continue
        if pairs := _pairs(module):
            module.__class__ = Sequential
            swapped[name] = f"Sequential, with {', '.join(pairs)} fused"
    return Replacement(swapped, left)


def _is_known(found: type[torch.nn.Module]) -> bool:
    """Whether a subclass is ours, or torch's own for a part of a MultiheadAttention."""
    return found.__module__.startswith("cudarelu.nn.") or found is NonDynamicallyQuantizableLinear


def _pairs(sequence: torch.nn.Sequential) -> list[str]:
    """The names of a Sequential's modules that run as one: "0 + 1"."""
    # `named_children` would skip the second occurrence of a module.
    following = itertools.pairwise(sequence._modules.items())
    return [f"{a} + {b}" for (a, first), (b, second) in following if is_pair(first, second)]
