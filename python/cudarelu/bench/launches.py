"""Which CUDA kernels a call of ours launches, by PyTorch's profiler.

A profiler may slow down what is timed after it in the process."""

from __future__ import annotations

import re

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from .cases import Case
from .contenders import CONTENDERS


def short_name(name: str) -> str:
    """Returns a kernel's name without return type, namespaces and parameters.

    "void a::scale<a::Half, (a::Kind)2, 8ul>(a::Half*)" becomes "scale<Half, 2, 8>".
    """
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    name = re.sub(r"\([\w:]+\)(?=-?\d)", "", name)  # the type of an enumerator
    depth = 0
    for end, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:end]
            break
    name = re.sub(r"(?:\w+::)+", "", name)
    return re.sub(r"\b(\d+)u?l*\b", r"\1", name).replace(" >", ">").strip()


def kernels(case: Case) -> list[str]:
    """Returns the short names of the kernels that our call launches, in order, and of its memory
    operations. The list is empty if the call or the profiler fails."""
    try:
        torch.cuda.empty_cache()
        bind = CONTENDERS["cudarelu"](case)
        assert bind
        call = bind(case.inputs())
        call()  # loads the kernels
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            call()
            torch.cuda.synchronize()
        events = [each for each in profiled.events() if each.device_type == DeviceType.CUDA]
    except Exception:  # such as a CUPTI that does not fit the driver
        return []
    events.sort(key=lambda each: each.time_range.start)
    return [short_name(each.name) for each in events]
