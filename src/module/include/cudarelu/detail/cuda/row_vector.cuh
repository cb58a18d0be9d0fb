// The elements of rows in registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cudarelu/types.h"

namespace cudarelu::gpu {

/// The `count` row-wise inputs of an op, which have one shape, and `shared` inputs of one row,
/// which apply to every row, such as the weight and the bias of layer_norm.
template <class T, int count, int shared = 0>
struct RowInputs {
  const T* data[count + shared];  // nullptr: an absent shared row, every element of which is
  T absent[shared];               // this number
  unsigned* tickets = nullptr;    // see StagedRows
};
template <class T, int count>
struct RowInputs<T, count, 0> {
  const T* data[count];
  unsigned* tickets = nullptr;
};

/// `width` elements in registers; elements of two bytes share a register in pairs.
template <class T, int width_>
struct alignas(sizeof(T) * width_) RowVector {
  static constexpr int width = width_;
  using Word = std::conditional_t<sizeof(T) * width % 4 == 0, unsigned, std::uint16_t>;
  static constexpr int per_word = sizeof(T) < sizeof(Word) ? sizeof(Word) / sizeof(T) : 1;

  Word words[sizeof(T) * width / sizeof(Word)];

  __device__ T operator[](int i) const {
    if constexpr (sizeof(T) == 8) {
      return __hiloint2double(words[2 * i + 1], words[2 * i]);
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[i]);
    } else {
      return {static_cast<std::uint16_t>(words[i / per_word] >> 16 * (i % per_word))};
    }
  }

  /// Sets element i. The elements of a word must be set in ascending order.
  __device__ void set(int i, T x) {
    if constexpr (sizeof(T) == 8) {
      words[2 * i] = __double2loint(x);
      words[2 * i + 1] = __double2hiint(x);
    } else if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(x);
    } else if (i % per_word == 0) {
      words[i / per_word] = x.bits;
    } else {
      words[i / per_word] |= static_cast<Word>(x.bits) << 16;
    }
  }

  __device__ void fill(T x) {
#pragma unroll
    for (int i = 0; i < width; ++i) set(i, x);
  }

  /// Writes all elements at once. The compiler would merge a plain assignment with the stores of
  /// single elements for rows that end within a vector, and store only single elements.
  __device__ void write_to(T* to) const {
    if constexpr (sizeof(words) == 16) {
      __stwb(reinterpret_cast<uint4*>(to), {words[0], words[1], words[2], words[3]});
    } else {
      *reinterpret_cast<RowVector*>(to) = *this;
    }
  }

  /// Called between two passes: keeps the compiler from holding two-byte elements as float.
  __device__ void stay_packed() {
    if constexpr (per_word > 1) {
#pragma unroll
      for (Word& word : words) asm volatile("" : "+r"(word));
    }
  }
};

/// The bits of elements [first, last) of a vector.
__device__ __forceinline__ unsigned element_bits(int first, int last) {
  return first < last ? (1u << last) - (1u << first) : 0;
}

/// A thread's part of a row: `vectors` vectors from each of `count` inputs.
template <class T, int count, int vectors, int width_>
struct RowPart {
  static constexpr int width = width_;
  static constexpr int size = vectors * width;
  static constexpr unsigned all = (1u << width) - 1;

  RowVector<T, width> data[count][vectors];
  unsigned inside[vectors];  // bit j: element j of the vector belongs to the row
  Compute<T> mark;           // a number that an op keeps for a part that it has changed

  /// Element i of an input.
  __device__ Compute<T> operator()(int input, int i) const {
    return load(data[input][i / width][i % width]);
  }

  __device__ void stay_packed() {
#pragma unroll
    for (auto& input : data) {
#pragma unroll
      for (auto& vector : input) vector.stay_packed();
    }
  }

  /// Vector v of the results: value(i) is the result for element i.
  template <class Value>
  __device__ static RowVector<T, width> results(int v, const Value& value) {
    RowVector<T, width> vector;
#pragma unroll
    for (int j = 0; j < width; ++j) vector.set(j, store<T>(value(v * width + j)));
    return vector;
  }
};

/// For ops that do not change the parts of rows after reading them.
struct Unchanged {
  __device__ void operator()(auto& /*part*/) const {}
};

/// Reads vector v of the shared rows, which begins at column `first`, into the part.
template <class T, int inputs, int shared, class Part, class Column>
__device__ __forceinline__ void load_shared_rows(Part& part,
                                                 const RowInputs<T, inputs, shared>& rows, int v,
                                                 Column first) {
  if constexpr (shared > 0) {
#pragma unroll
    for (int input = inputs; input < inputs + shared; ++input) {
      auto& vector = part.data[input][v];
      using Vector = std::remove_cvref_t<decltype(vector)>;
      const T* const row = rows.data[input];
      if (row == nullptr) {
        vector.fill(rows.absent[input - inputs]);
      } else if (part.inside[v] == Part::all &&
                 reinterpret_cast<std::uintptr_t>(row + first) % sizeof(Vector) == 0) {
        vector = *reinterpret_cast<const Vector*>(row + first);
      } else {
#pragma unroll
        for (int j = 0; j < Vector::width; ++j) {
          vector.set(j, part.inside[v] >> j & 1u ? row[first + j] : T{});
        }
      }
    }
  }
}

/// Combines the values of `lanes` neighbours in a warp; each gets the result.
template <int lanes = 32, class C, class Combine>
__device__ C reduce_in_warp(C value, const Combine& combine) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

template <int lanes = 32, class C>
__device__ C sum_in_warp(C value) {
  return reduce_in_warp<lanes>(value, [](C a, C b) { return a + b; });
}

}  // namespace cudarelu::gpu
