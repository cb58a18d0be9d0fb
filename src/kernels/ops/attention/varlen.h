// The definitions of attention over packed sequences, as text: the sequences are padded to the
// length of the longest one, attended to, and packed again.
#pragma once

#include "cudarelu/op_spec.h"
#include "ops/attention/scores.h"

namespace cudarelu::ops::attention {

struct Replacement {
  std::string_view from;
  std::string_view to;
};

/// Calls add(character) for each of a text in which words, or characters that no word has, have
/// been replaced.
template <class F>
constexpr void replace(std::string_view text, const auto& replacements, const F& add) {
  const auto in_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (in_word(text[i])) {
      while (end < text.size() && in_word(text[end])) ++end;
    }
    std::string_view token = text.substr(i, end - i);
    for (const Replacement& each : replacements) {
      if (token == each.from) {
        token = each.to;
        break;
      }
    }
    for (const char c : token) add(c);
    i = end;
  }
}

// NOLINTBEGIN(readability-redundant-parentheses): of the template arguments, which have none
template <const std::string_view& text, const auto& replacements>
inline constexpr std::size_t replaced_size = [] {
  std::size_t size = 0;
  replace(text, replacements, [&](char) { ++size; });
  return size;
}();

template <const std::string_view& text, const auto& replacements>
inline constexpr auto replaced_text = [] {
  std::array<char, replaced_size<text, replacements> + 1> result{};
  std::size_t size = 0;
  replace(text, replacements, [&](char c) { result[size++] = c; });
  return result;
}();

template <const std::string_view& text, const auto& replacements>
inline constexpr std::string_view replaced{replaced_text<text, replacements>.data(),
                                           replaced_size<text, replacements>};

/// A text of attention for the padded tensors.
inline constexpr std::array<Replacement, 10> to_padded{{{"q", "padded_q"},
                                                        {"k", "padded_k"},
                                                        {"v", "padded_v"},
                                                        {"y", "padded_y"},
                                                        {"lse", "padded_lse"},
                                                        {"grad_y", "padded_grad_y"},
                                                        {"grad_lse", "padded_grad_lse"},
                                                        {"grad_q", "padded_grad_q"},
                                                        {"grad_k", "padded_grad_k"},
                                                        {"grad_v", "padded_grad_v"}}};
template <const std::string_view& text>
inline constexpr std::string_view of_padded = replaced<text, to_padded>;
// NOLINTEND(readability-redundant-parentheses)

// In the texts below, % stands for the name of a tensor, $ for q or k, with whose rows it goes, and
// & for the permutation that swaps its rows and heads.

/// Defines constants, and the number of sequences.
inline constexpr std::string_view sequences_text = R"(
    axis0 = Constant<value_ints = [0]>()
    axis1 = Constant<value_ints = [1]>()
    begin = Constant<value_int = 0>()
    step = Constant<value_int = 1>()
    nothing = Constant<value_float = 0.0>()
    infinity_below = Log(nothing)
    sequences = Shape(q_offsets))";

/// Defines which row of $ each padded row is; where there is none, it is the one past the last.
inline constexpr std::string_view offsets_text = R"(
    $_ends = Cast<to = 7>($_offsets)
    $_bounds = Concat<axis = 0>(axis0, $_ends)
    $_begins = Slice($_bounds, axis0, sequences)
    $_lengths = Sub($_ends, $_begins)
    $_lengths_and_0 = Concat<axis = 0>(axis0, $_lengths)
    $_longest = ReduceMax<keepdims = 0>($_lengths_and_0)
    $_places = Range(begin, $_longest, step)
    $_begins_column = Unsqueeze($_begins, axis1)
    $_lengths_column = Unsqueeze($_lengths, axis1)
    $_inside = Less($_places, $_lengths_column)
    $_in_order = Add($_begins_column, $_places)
    $_count = Shape<start = 0, end = 1>($)
    $_from = Where($_inside, $_in_order, $_count))";

/// Defines which padded row each row of $ is; past the last offset, it is the one past the last.
inline constexpr std::string_view places_text = R"(
    $_count_0 = Squeeze($_count)
    $_rows = Range(begin, $_count_0, step)
    $_rows_column = Unsqueeze($_rows, axis1)
    $_is_past = GreaterOrEqual($_rows_column, $_ends)
    $_ends_before = Cast<to = 7>($_is_past)
    $_sequence = ReduceSum<keepdims = 0>($_ends_before, axis1)
    $_begin = Gather($_bounds, $_sequence)
    $_place = Sub($_rows, $_begin)
    $_start = Mul($_sequence, $_longest)
    $_padded_place = Add($_start, $_place)
    $_padded_count = Mul(sequences, $_longest)
    $_to = Min($_padded_place, $_padded_count))";

/// Defines padded_% [b, heads, rows, columns] with zeros where there is no row.
inline constexpr std::string_view padding_text = R"(
    %_row_shape = Shape<start = 1>(%)
    %_one_row = Concat<axis = 0>(axis1, %_row_shape)
    %_zero = CastLike(nothing, %)
    %_zeros = Expand(%_zero, %_one_row)
    %_and_zeros = Concat<axis = 0>(%, %_zeros)
    %_padded_rows = Gather(%_and_zeros, $_from)
    padded_% = Transpose<perm = [&]>(%_padded_rows))";

/// Defines % from padded_%.
inline constexpr std::string_view packing_text = R"(
    %_padded_rows = Transpose<perm = [&]>(padded_%)
    %_row_shape = Shape<start = 2>(%_padded_rows)
    %_all_rows = Concat<axis = 0>($_padded_count, %_row_shape)
    %_rows = Reshape<allowzero = 1>(%_padded_rows, %_all_rows)
    %_one_row = Concat<axis = 0>(axis1, %_row_shape)
    %_rest_value = CastLike(nothing, padded_%)
    %_rest = Expand(%_rest_value, %_one_row)
    %_and_rest = Concat<axis = 0>(%_rows, %_rest)
    % = Gather(%_and_rest, $_to))";

/// Defines the mask of the padded tensors.
inline constexpr std::string_view inside_text = R"(
    axes_of_q = Constant<value_ints = [1, 3]>()
    axes_of_k = Constant<value_ints = [1, 2]>()
    q_is_inside = Unsqueeze(q_inside, axes_of_q)
    k_is_inside = Unsqueeze(k_inside, axes_of_k)
    attn_mask = And(q_is_inside, k_is_inside))";

/// Defines the gradient of the scores, which is 0 for hidden ones, whatever they are.
inline constexpr std::string_view hidden_gradients_text = R"(
    grad_scores = Where(hidden, zero, all_grad_scores))";

inline constexpr std::array<Replacement, 1> for_q_rows{{{"$", "q"}}};
inline constexpr std::array<Replacement, 1> for_k_rows{{{"$", "k"}}};

/// The replacements of a tensor [rows, heads, columns].
constexpr std::array<Replacement, 3> tensor(std::string_view name, std::string_view rows) {
  return {{{"%", name}, {"$", rows}, {"&", "0, 2, 1, 3"}}};
}
/// Of numbers [rows, heads], which are `rest` past the last offset.
constexpr std::array<Replacement, 4> numbers(std::string_view name, std::string_view rest) {
  return {{{"%", name}, {"$", "q"}, {"&", "0, 2, 1"}, {"nothing", rest}}};
}
inline constexpr auto for_q = tensor("q", "q");
inline constexpr auto for_k = tensor("k", "k");
inline constexpr auto for_v = tensor("v", "k");
inline constexpr auto for_y = tensor("y", "q");
inline constexpr auto for_grad_y = tensor("grad_y", "q");
inline constexpr auto for_grad_q = tensor("grad_q", "q");
inline constexpr auto for_grad_k = tensor("grad_k", "k");
inline constexpr auto for_grad_v = tensor("grad_v", "k");
inline constexpr auto for_lse_input = numbers("lse", "nothing");
inline constexpr auto for_grad_lse = numbers("grad_lse", "nothing");
inline constexpr auto for_lse_output = numbers("lse", "infinity_below");
inline constexpr std::array<Replacement, 1> before_hiding{{{"grad_scores", "all_grad_scores"}}};

/// Defines the scores of the padded tensors.
inline constexpr std::string_view varlen_scores_text =
    joined<sequences_text, replaced<offsets_text, for_q_rows>, replaced<offsets_text, for_k_rows>,
           replaced<places_text, for_q_rows>, replaced<padding_text, for_q>,
           replaced<padding_text, for_k>, replaced<padding_text, for_v>, inside_text,
           of_padded<scores_text>>;

/// Defines y, after varlen_scores_text.
inline constexpr std::string_view varlen_outputs_text =
    joined<of_padded<outputs_text>, replaced<packing_text, for_y>>;

/// Defines lse beside y.
inline constexpr std::string_view varlen_lse_text =
    joined<of_padded<lse_text>, replaced<packing_text, for_lse_output>>;

/// Defines the gradients of q, k and v, after varlen_scores_text.
inline constexpr std::string_view varlen_gradients_text =
    joined<replaced<padding_text, for_grad_y>, replaced<padding_text, for_y>,
           replaced<padding_text, for_lse_input>, replaced<padding_text, for_grad_lse>,
           replaced<of_padded<gradients_text>, before_hiding>, hidden_gradients_text,
           of_padded<inputs_text>, replaced<places_text, for_k_rows>,
           replaced<packing_text, for_grad_q>, replaced<packing_text, for_grad_k>,
           replaced<packing_text, for_grad_v>>;

}  // namespace cudarelu::ops::attention
