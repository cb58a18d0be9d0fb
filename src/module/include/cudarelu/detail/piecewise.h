// Odd functions of float32 by polynomials in pieces, whose coefficients the permutations of AVX2
// and AVX-512 look up (cpu/piecewise.h). Every CPU gives the same numbers.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cudarelu/transcendental.h"

namespace cudarelu::math {

/// The pieces of a function. |x| is in the piece that the exponent and the first three bits of the
/// mantissa of 1 + |x| name: [0, 1/8), [1/8, 1/4) ... [1, 5/4) ... [3, 7/2) ... [14, 15). With
/// r = |x| - center, the function is start + r (c1 + r (c2 + ... + r c5)), where start is |x|
/// itself in the first pieces, and a constant in the others.
struct PiecewisePolynomial {
  static constexpr std::size_t count = 32;
  static constexpr int shift = 20;           // of the bits of 1 + |x|
  static constexpr std::size_t columns = 7;  // center, start, c1, ..., c5

  using Row = std::array<float, columns>;
  struct alignas(64) Column : std::array<float, count> {};

  float limit;  // where the function is constant, and before the end of the last row
  float near;   // 1 + |x| is less in the pieces that start with |x|
  std::array<Column, columns> table{};

  /// Rows of pieces from 0 on.
  template <std::size_t rows>
  consteval PiecewisePolynomial(float limit, std::size_t near_rows,
                                const std::array<Row, rows>& values)
      : limit(limit), near(1 + static_cast<float>(near_rows) / 8) {
    const std::size_t first = number_of(1);
    if (rows > count || number_of(1 + limit) >= first + rows) throw "no piece has the limit";
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t column = 0; column < columns; ++column) {
        table[column][(first + row) % count] = values[row][column];
      }
    }
  }

  float operator()(float x) const {
    const float size = std::abs(x);
    const float a = limit < size ? limit : size;  // NaN stays
    const float sum = 1 + a;
    const std::size_t piece = number_of(sum) % count;
    const float r = a - table[0][piece];
    float slope = table[columns - 1][piece];
    for (std::size_t i = columns - 2; i >= 2; --i) {
      slope = multiply_add(slope, r, table[i][piece]);
    }
    const float start = sum < near ? a : table[1][piece];
    const float result = multiply_add(slope, r, start);
    return std::signbit(x) ? -result : result;
  }

 private:
  static constexpr std::size_t number_of(float sum) {
    return std::bit_cast<std::uint32_t>(sum) >> shift;
  }
};

/// tanh with an error of up to 0.61 units in the last place. The polynomials have the least
/// relative errors of their degree, at most 5e-9, and 3e-8 for the constant from 9 on; centers are
/// where tanh and its slope are nearly float32 numbers.
inline constexpr PiecewisePolynomial tanh_piecewise(
    9.5f, 3,
    std::array<PiecewisePolynomial::Row, 27>{{
        {0, 0, 0, 0, -0.333342671f, 0.00031062332f, 0.130616948f},
        {0, 0, -9.23096104e-06f, 0.000252029422f, -0.335984915f, 0.013062899f, 0.1064514f},
        {0, 0, -0.000180987452f, 0.00287794671f, -0.351201028f, 0.0527096651f, 0.0672312304f},
        {0.437490225f, 0.411561936f, 0.830616772f, -0.341849685f, -0.13617982f, 0.169628829f,
         -0.00596264983f},
        {0.562487066f, 0.509820402f, 0.740083158f, -0.37730968f, -0.0543349423f, 0.153371841f,
         -0.0433615148f},
        {0.687470496f, 0.596354544f, 0.644361258f, -0.384267241f, 0.0143727008f, 0.119339883f,
         -0.0616574436f},
        {0.812341571f, 0.67087996f, 0.549920082f, -0.36893031f, 0.0641991124f, 0.0799189135f,
         -0.062358465f},
        {0.937563539f, 0.734100819f, 0.461095989f, -0.338491619f, 0.0947873592f, 0.043483559f,
         -0.0529571436f},
        {1.12491763f, 0.809272647f, 0.345077783f, -0.279263973f, 0.110974006f, 0.00368326437f,
         -0.0320709534f},
        {1.37501752f, 0.879830658f, 0.225898013f, -0.198753178f, 0.0995697305f, -0.0211132169f,
         -0.00951925293f},
        {1.62499523f, 0.92534554f, 0.143735632f, -0.133005574f, 0.0751642883f, -0.0251276307f,
         0.00139654602f},
        {1.87493336f, 0.954039276f, 0.0898090601f, -0.0856813565f, 0.0518072359f, -0.0208563283f,
         0.00460217288f},
        {2.12461543f, 0.971851408f, 0.0555048399f, -0.0539424121f, 0.0339225084f, -0.0149981864f,
         0.00448150421f},
        {2.37487149f, 0.982840657f, 0.0340242423f, -0.0334402956f, 0.0215251651f, -0.0100273974f,
         0.00341925956f},
        {2.62506127f, 0.989561021f, 0.0207689852f, -0.0205521248f, 0.0134146241f, -0.00643701432f,
         0.00234946306f},
        {2.87487078f, 0.993652999f, 0.0126537168f, -0.0125733633f, 0.00827568024f, -0.00404153205f,
         0.00153142866f},
        {3.24991369f, 0.996997118f, 0.00599674694f, -0.00597833423f, 0.00396170933f,
         -0.00197812938f, 0.000770175364f},
        {3.75008559f, 0.998894632f, 0.00220951438f, -0.00220691296f, 0.00146806252f,
         -0.000739080482f, 0.000292421726f},
        {4.24999094f, 0.999593139f, 0.000813557126f, -0.000813167542f, 0.000541683752f,
         -0.000273508544f, 0.000108848581f},
        {4.74988508f, 0.999850273f, 0.000299431296f, -0.000299363746f, 0.000199522241f,
         -0.000100867182f, 4.02122059e-05f},
        {5.24996996f, 0.999944925f, 0.000110146349f, -0.000110132009f, 7.341522e-05f,
         -3.71283459e-05f, 1.48171084e-05f},
        {5.74986172f, 0.999979734f, 4.05307619e-05f, -4.05273968e-05f, 2.70175642e-05f,
         -1.36588496e-05f, 5.45472358e-06f},
        {6.2501812f, 0.999992549f, 1.49011003e-05f, -1.48997024e-05f, 9.93334834e-06f,
         -5.0268095e-06f, 2.0065097e-06f},
        {6.7500186f, 0.999997258f, 5.48361731e-06f, -5.48310936e-06f, 3.65553819e-06f,
         -1.85018655e-06f, 7.38284768e-07f},
        {7.51304722f, 0.999999404f, 1.19209221e-06f, -1.19074411e-06f, 7.93391337e-07f,
         -4.15589852e-07f, 1.69129606e-07f},
        {8.31776619f, 0.999999881f, 2.38418536e-07f, -2.38504583e-07f, 1.59786964e-07f,
         -7.90640655e-08f, 2.36708377e-08f},
        {9, 1},
    }});

}  // namespace cudarelu::math
