#include "symbolic_shapes.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "api.h"
#include "cudarelu/infer.h"
#include "numpy_call.h"
#include "python_arguments.h"

namespace nb = nanobind;

namespace cudarelu {
namespace binding {
namespace {

struct Size {
  nb::object value;

  Size() : value(nb::none()) {}
  explicit Size(nb::handle value) : value(nb::borrow(value)) {}
  explicit Size(std::int64_t number) : value(nb::int_(number)) {}

  bool unknown() const { return value.is_none(); }
};

/// A tensor without data.
struct Type {
  bool present = false;
  DType dtype{};
  std::vector<Size> shape;
};

}  // namespace
}  // namespace binding

/// Sizes are compared by Python. A library that cannot decide raises an exception, or says that
/// they differ. An unknown size may be any.
template <>
struct DimTraits<binding::Size> {
  static bool differ(const binding::Size& a, const binding::Size& b) {
    return !a.unknown() && !b.unknown() && !a.value.equal(b.value);
  }
  static bool is_one(const binding::Size& size) { return !differ(size, binding::Size(1)); }
  static bool is_multiple(const binding::Size& size, const binding::Size& of) {
    if (!nb::isinstance<nb::int_>(size.value) || !nb::isinstance<nb::int_>(of.value)) return true;
    return DimTraits<std::int64_t>::is_multiple(nb::cast<std::int64_t>(size.value),
                                                nb::cast<std::int64_t>(of.value));
  }
  static bool exceeds(const binding::Size& size, std::int64_t limit) {
    return nb::isinstance<nb::int_>(size.value) && nb::cast<std::int64_t>(size.value) > limit;
  }
  static bool is_less(const binding::Size& size, std::int64_t limit) {
    return nb::isinstance<nb::int_>(size.value) && nb::cast<std::int64_t>(size.value) < limit;
  }
  /// Python's operators; for the minimum and the maximum of symbols, which Python would compare,
  /// the library's own functions.
  static std::optional<binding::Size> apply(Term::Kind kind, const binding::Size& a,
                                            const binding::Size& b) {
    if (a.unknown() || b.unknown()) return binding::Size();
    if (nb::isinstance<nb::int_>(a.value) && nb::isinstance<nb::int_>(b.value)) {
      const auto value = DimTraits<std::int64_t>::apply(kind, nb::cast<std::int64_t>(a.value),
                                                        nb::cast<std::int64_t>(b.value));
      return value ? std::optional(binding::Size(*value)) : std::nullopt;
    }
    switch (kind) {
      case Term::Kind::add:
        return binding::Size(a.value + b.value);
      case Term::Kind::subtract:
        return binding::Size(a.value - b.value);
      case Term::Kind::multiply:
        return binding::Size(a.value * b.value);
      case Term::Kind::floor_divide:
        return binding::Size(nb::object(a.value.floor_div(b.value)));
      case Term::Kind::ceil_divide:
        return binding::Size(nb::object(-(-a.value).floor_div(b.value)));
      default: {
        const char* const name = kind == Term::Kind::minimum ? "min_dim" : "max_dim";
        return binding::Size(nb::module_::import_("jax.core").attr(name)(a.value, b.value));
      }
    }
  }
  static std::string text(const binding::Size& size) {
    return size.unknown() ? "?" : nb::str(size.value).c_str();
  }
};

namespace binding {

nb::list infer_types(const Op& op, const nb::sequence& inputs, const nb::sequence& attributes) {
  std::vector<Type> types;
  for (const nb::handle input : inputs) {
    Type& type = types.emplace_back();
    type.present = !input.is_none();
    if (!type.present) continue;
    const auto name = nb::cast<std::string>(input[0]);
    const auto known = std::ranges::find(all_dtypes, name, name_of);
    if (known == all_dtypes.end()) raise_python(unknown_dtype(op, types.size() - 1, name));
    type.dtype = *known;
    for (const nb::handle size : nb::sequence(input[1])) type.shape.emplace_back(size);
  }
  std::vector<Attribute> values;
  for (const nb::handle attribute : attributes) {
    const bool real = op.signature.attributes[values.size()].type == AttributeType::real;
    values.push_back(real ? Attribute(nb::cast<double>(attribute))
                          : Attribute(nb::cast<std::int64_t>(attribute)));
  }
  std::vector<OutputType<Size>> outputs(op.signature.outputs.size());
  raise_python(infer(op, std::span<const Type>(types), values, std::span(outputs)));
  nb::list result;
  for (const OutputType<Size>& output : outputs) {
    nb::list shape;
    for (const Size& size : output.shape.span()) shape.append(size.value);
    result.append(nb::make_tuple(to_str(name_of(output.dtype)), nb::tuple(shape)));
  }
  return result;
}

}  // namespace binding
}  // namespace cudarelu
