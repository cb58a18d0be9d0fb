"""Declarations as authors of published ops write them pass every check of the first tier."""

from __future__ import annotations

import pytest
import torch

import cudarelu
from cudarelu.testing import checks

HEADER = """
#pragma once
#include "cudarelu/kernel.h"

namespace published {
using namespace cudarelu;

struct SumAndDifference {
  static constexpr OpSpec spec{
      .signature = "sum_and_difference(x: T[*], z: T[*]) -> (sum: T[*], difference: T[*])",
      .summary = "x + z and x - z.",
      .dtypes = floating_types,
      .in_place = "sum = x",
      .definition = "sum = Add(x, z)\\n difference = Sub(x, z)",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

struct WeightedEight {
  static constexpr OpSpec spec{
      .signature = "weighted_eight(x: T[*, 8], weight: T[8]) -> y: T[*]",
      .summary = "The sum of x weight; only x has a gradient.",
      .dtypes = floating_types,
      .gradient = "x = weighted_eight_backward(grad_y, weight)",
      .definition = "axis = Constant<value_ints = [-1]>()\\n product = Mul(x, weight)\\n"
                    "y = ReduceSum<keepdims = 0>(product, axis)",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

struct WeightedEightBackward {
  static constexpr OpSpec spec{
      .signature = "weighted_eight_backward(grad_y: T[*], weight: T[8]) -> grad_x: T[*, 8]",
      .summary = "The gradient of weighted_eight with respect to x.",
      .dtypes = floating_types,
      .definition = "axis = Constant<value_ints = [-1]>()\\n column = Unsqueeze(grad_y, axis)\\n"
                    "grad_x = Mul(column, weight)",
  };
  static Status cpu(const Call& call);
  static Status cuda(const Call& call);
};

}  // namespace published
"""
KERNELS = """
#include "published.h"

namespace published {
namespace {

template <class T, class F>
Status run(const Call& call, const F& f) {
  const auto* a = static_cast<const T*>(call.inputs[0].data);
  const auto* b = static_cast<const T*>(call.inputs[1].data);
  f(a, b, static_cast<T*>(call.outputs[0].data));
  return {};
}

}  // namespace

Status SumAndDifference::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return run<T>(call, [&](const T* x, const T* z, T* sum) {
      auto* difference = static_cast<T*>(call.outputs[1].data);
      for (std::int64_t i = 0; i < call.inputs[0].size(); ++i) {
        const auto first = load(x[i]), second = load(z[i]);
        sum[i] = store<T>(first + second);
        difference[i] = store<T>(first - second);
      }
    });
  });
}

Status WeightedEight::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return run<T>(call, [&](const T* x, const T* weight, T* y) {
      for (std::int64_t i = 0; i < call.outputs[0].size(); ++i) {
        Compute<T> sum{};
        for (int j = 0; j < 8; ++j) sum += load(x[8 * i + j]) * load(weight[j]);
        y[i] = store<T>(sum);
      }
    });
  });
}

Status WeightedEightBackward::cpu(const Call& call) {
  return visit_dtype<spec.dtypes>(call.inputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return run<T>(call, [&](const T* grad_y, const T* weight, T* grad_x) {
      for (std::int64_t i = 0; i < call.outputs[0].size(); ++i) {
        grad_x[i] = store<T>(load(grad_y[i / 8]) * load(weight[i % 8]));
      }
    });
  });
}

}  // namespace published
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> cudarelu.OpModule:
    folder = tmp_path_factory.mktemp("published")
    sources = {"published.h": HEADER, "published.cpp": KERNELS}
    for name, text in sources.items():
        (folder / name).write_text(text)
    return cudarelu.load("published", [folder / name for name in sources], cuda=False)


@pytest.mark.xdist_group("published")
@pytest.mark.parametrize("name", ["odd", "gradients", "compile"])
def test_checks(published, name):
    every = [each for each in checks(published.ops()) if each.name == name and not each.slow]
    run = [each for each in every if each.host.name == "torch-cpu"]
    assert run
    for each in run:
        each.run()


@pytest.mark.xdist_group("published")
def test_one_of_two_outputs_in_place(published):
    """There is no op for it in PyTorch, which could not say which output is returned."""
    assert not hasattr(torch.ops.published, "sum_and_difference_")
    total, difference = torch.vmap(published.sum_and_difference)(torch.ones(2, 3), torch.ones(2, 3))
    assert total.tolist() == [[2, 2, 2]] * 2
    assert difference.tolist() == [[0, 0, 0]] * 2
