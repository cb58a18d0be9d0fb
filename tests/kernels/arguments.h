// Random arguments for any op of the table, generated from its signature.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cudarelu/host.h"
#include "cudarelu/infer.h"
#include "cudarelu/op.h"
#include "cudarelu/types.h"

namespace cudarelu::testing {

inline std::span<const Op> op_table() { return own_module().ops; }

inline const Op* find_own(std::string_view name) { return own_module().find(name); }

using Sizes = std::vector<std::int64_t>;

/// The sizes for *, and the size of every named dimension.
struct Dimensions {
  Sizes leading;
  std::int64_t other;
};

/// The element types that the type variable of an op may stand for.
inline std::vector<DType> dtypes_of(const Op& op) {
  std::vector<DType> dtypes;
  for (const DType dtype : all_dtypes) {
    if (op.spec.dtypes.contains(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

/// A tensor between two canaries, by which a test detects writes outside of the tensor. The data
/// begins `offset` elements after a 64-byte boundary.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, Sizes shape, std::size_t offset)
      : dtype_(dtype), shape_(std::move(shape)), begin_(canary + offset * size_of(dtype)) {
    TensorView view{nullptr, dtype_, shape_};
    length_ = static_cast<std::size_t>(view.size()) * size_of(dtype_);
    blocks_.resize((begin_ + length_ + canary) / sizeof(Block) + 1);
    std::ranges::fill(whole(), fill);
  }

  TensorView view() { return {whole().data() + begin_, dtype_, shape_}; }
  std::span<std::uint8_t> data() { return whole().subspan(begin_, length_); }
  std::span<std::uint8_t> whole() {
    return {reinterpret_cast<std::uint8_t*>(blocks_.data()), blocks_.size() * sizeof(Block)};
  }
  std::size_t begin() const { return begin_; }
  bool intact() {
    const auto all = whole();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool inside = i >= begin_ && i < begin_ + length_;
      if (!inside && all[i] != fill) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t canary = 256;
  static constexpr std::uint8_t fill = 0xa5;

  struct alignas(64) Block {
    std::uint8_t bytes[64];
  };

  DType dtype_ = DType::float32;
  Sizes shape_;
  std::size_t begin_ = 0;
  std::size_t length_ = 0;
  std::vector<Block> blocks_;
};

/// The inputs, attributes and outputs of one call.
struct Arguments {
  std::vector<GuardedTensor> inputs;
  std::vector<GuardedTensor> outputs;
  std::vector<Attribute> attributes;
};

/// The number of dimensions that the inputs have beside those for *.
inline std::size_t named_dimensions(const Op& op) {
  std::set<std::string_view> names;
  for (const Parameter& input : op.signature.inputs) {
    for (const Dimension& dim : input.dims) names.insert(dim.name);
  }
  return names.size();
}

inline Sizes shape_of(const Parameter& parameter, const Dimensions& dimensions) {
  Sizes shape;
  for (const Dimension& dim : parameter.dims) {
    shape.push_back(dim.name.empty() ? dim.size : dimensions.other);
  }
  if (parameter.has_star()) {
    shape.insert(shape.begin() + parameter.star, dimensions.leading.begin(),
                 dimensions.leading.end());
  }
  return shape;
}

/// Fills a tensor: offsets end batches of equal size; positive tensors get 1, 2, ...; others get
/// small multiples of 1/4, whose sums and products are exact in float32. Those of type f32 are
/// logarithms of sums of exponentials, which are at least about as large as the terms.
inline void fill_random(GuardedTensor& tensor, const Parameter& parameter, std::int64_t size,
                        std::mt19937& random) {
  const TensorView view = tensor.view();
  std::uniform_int_distribution<int> values(-12, 12);
  for (std::int64_t i = 0; i < view.size(); ++i) {
    if (parameter.type.is_offsets()) {
      static_cast<std::int32_t*>(view.data)[i] =
          static_cast<std::int32_t>((i + 1) * size / view.size());
      continue;
    }
    (void)visit_dtype<real_types>(view.dtype, [&]<class T>(TypeTag<T>) {
      const bool is_float32 = parameter.type.is_single() && parameter.dtype({}) == DType::float32;
      const float base = is_float32 ? 16.0f : 0.0f;
      const float value = parameter.positive ? static_cast<float>(i + 1)
                                             : base + static_cast<float>(values(random)) / 4.0f;
      static_cast<T*>(view.data)[i] = store<T>(static_cast<Compute<T>>(value));
      return Status();
    });
  }
}

inline Arguments make_arguments(const Op& op, DType dtype, const Dimensions& dimensions,
                                std::size_t offset, std::mt19937& random) {
  Arguments arguments;
  for (const Parameter& input : op.signature.inputs) {
    arguments.inputs.emplace_back(input.dtype({dtype}), shape_of(input, dimensions), offset);
    fill_random(arguments.inputs.back(), input, dimensions.other, random);
  }
  for (const AttributeSpec& spec : op.signature.attributes) {
    Attribute value = default_of(spec);
    if (spec.required) value = to_attribute(spec.type, spec.type == AttributeType::real ? 0.75 : 2);
    arguments.attributes.push_back(value);
  }
  std::vector<OutputType<std::int64_t>> types(op.signature.outputs.size());
  std::vector<TensorView> views;
  for (GuardedTensor& input : arguments.inputs) views.push_back(input.view());
  if (Status status = infer<std::int64_t, TensorView>(op, views, arguments.attributes, types);
      !status.ok()) {
    throw std::invalid_argument(status.message());
  }
  for (const auto& type : types) {
    arguments.outputs.emplace_back(
        type.dtype, Sizes(type.shape.span().begin(), type.shape.span().end()), offset);
  }
  return arguments;
}

/// Runs on the calling thread, in parts of the given size; 0 means a single part.
class SerialExecution : public Execution {
 public:
  explicit SerialExecution(std::int64_t part, DeviceType device = DeviceType::cpu)
      : Execution(device, 0, nullptr), part_(part) {}
  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t, std::int64_t)> body) override {
    const std::int64_t step = part_ > 0 ? part_ : std::max(grain, n);
    for (std::int64_t begin = 0; begin < n; begin += step) body(begin, std::min(n, begin + step));
  }
  void* allocate(std::size_t bytes) override {
    return workspace_.emplace_back(bytes / sizeof(std::max_align_t) + 1).data();
  }
  Status matmul(const Gemm& gemm) override {
    return visit_dtype<DTypeSet::of({DType::float32, DType::float64})>(gemm.dtype,
                                                                       [&]<class T>(TypeTag<T>) {
                                                                         multiply<T>(gemm);
                                                                         return Status();
                                                                       });
  }

 private:
  template <class T>
  static void multiply(const Gemm& gemm) {
    for (std::int64_t i = 0; i < gemm.batch * gemm.m; ++i) {
      const std::int64_t matrix = i / gemm.m;
      const T* const a = static_cast<const T*>(gemm.a) + matrix * gemm.m * gemm.k;
      const T* const b = static_cast<const T*>(gemm.b) + matrix * gemm.k * gemm.n;
      T* const d = static_cast<T*>(gemm.d) + i * gemm.n;
      for (std::int64_t j = 0; j < gemm.n; ++j) {
        d[j] = gemm.bias == nullptr ? T(0) : static_cast<const T*>(gemm.bias)[j];
      }
      const std::int64_t row = i % gemm.m;
      for (std::int64_t k = 0; k < gemm.k; ++k) {
        const T factor = gemm.a_transposed ? a[k * gemm.m + row] : a[row * gemm.k + k];
        for (std::int64_t j = 0; j < gemm.n; ++j) {
          d[j] += factor * (gemm.b_transposed ? b[j * gemm.k + k] : b[k * gemm.n + j]);
        }
      }
    }
  }

  std::int64_t part_;
  std::vector<std::vector<std::max_align_t>> workspace_;
};

inline Status run_arguments(const Op& op, Arguments& arguments, Execution& execution) {
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  for (GuardedTensor& input : arguments.inputs) inputs.push_back(input.view());
  for (GuardedTensor& output : arguments.outputs) outputs.push_back(output.view());
  return run(op, inputs, outputs, arguments.attributes, execution);
}

/// Shapes at the limits of the engines: empty, one element, around the size of a vector, odd,
/// longer than a warp's row. Matrix products, and ops with more sizes than these, get only small
/// ones.
inline std::vector<Dimensions> edge_dimensions(const Op& op) {
  std::vector<Dimensions> all{{{0}, 3},    {{2}, 0},    {{}, 1},   {{1}, 1},
                              {{3, 5}, 7}, {{2}, 1025}, {{2}, 130}};
  for (const std::int64_t n : {2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257}) {
    all.push_back({{n}, n});
  }
  all.push_back({{1000, 37}, 40});
  const bool has_scores = op.signature.inputs[0].dims.size() > 2;  // for each pair of elements
  if (op.uses_gemm || has_scores) {
    std::erase_if(all, [&](const Dimensions& dimensions) {
      const std::int64_t n = dimensions.other;
      std::int64_t products = has_scores ? n * n * n * n : n * n * n;
      for (const std::int64_t dim : dimensions.leading) products *= dim;
      return products > 5'000'000;
    });
  }
  return all;
}

inline std::string describe(const Op& op, DType dtype, const Dimensions& dimensions) {
  std::string text = std::string(op.name) + " " + std::string(name_of(dtype)) + " [";
  for (const std::int64_t dim : dimensions.leading) text += std::to_string(dim) + " ";
  return text + "] " + std::to_string(dimensions.other);
}

}  // namespace cudarelu::testing
