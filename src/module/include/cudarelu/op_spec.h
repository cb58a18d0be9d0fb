// The declaration of an op, which every runtime reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cudarelu/detail/dtype.h"

namespace cudarelu {

struct OnnxName {
  std::string_view domain;
  std::string_view op_type;
};

/// A second name under which models call an op, with inputs of its own.
struct OnnxAlias {
  std::string_view domain;
  std::string_view op_type;
  /// The inputs of a node, in order: "k, x, y". They are all inputs of the op, and attributes that
  /// the node has as tensors of one element. By default, they are the inputs of the op.
  std::string_view inputs = {};
};

/// How PyTorch's autocast converts an op's inputs of float32 and half precision.
enum class Autocast : std::uint8_t {
  promote,  // all become float32 if one of them is
  float32,  // all become float32: the op sums many numbers
  lower,    // all become autocast's dtype of half precision: the op is a matrix product
};

namespace detail {

/// Texts one after the other, with a NUL at the end.
template <const std::string_view&... texts>
inline constexpr auto joined_texts = [] {
  std::array<char, (texts.size() + ... + 1)> all{};
  std::size_t size = 0;
  const auto add = [&](std::string_view text) {
    for (const char c : text) all[size++] = c;
  };
  (add(texts), ...);
  return all;
}();

}  // namespace detail

/// The text of several constants, for definitions that have a part in common.
template <const std::string_view&... texts>
inline constexpr std::string_view joined{detail::joined_texts<texts...>.data(),
                                         (texts.size() + ...)};

/// The texts are literals, or joined ones.
struct OpSpec {
  std::string_view signature;      // names, dtypes, shapes, attributes: see signature.h
  std::string_view summary;        // one line for a reader
  DTypeSet dtypes;                 // what T may be
  std::string_view in_place = {};  // "y = x": output y may overwrite input x
  std::string_view gradient = {};  // "x = relu_backward(grad_y, y); ...": see gradient.h
  Autocast autocast = Autocast::promote;
  bool strided = false;         // the kernels read Call::strides, so that views need no copy
  OnnxAlias onnx_alias = {};    // a second name in models
  std::string_view definition;  // the meaning: the body of an ONNX function
  std::string_view equivalent_forms =
      {};  // the same as models contain it; empty lines divide forms
};

}  // namespace cudarelu
