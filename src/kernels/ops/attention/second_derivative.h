// The second derivative of attention as text: the definitions, and the gradients of the ops of the
// first derivative, which call it.
#pragma once

#include "ops/attention/scores.h"

namespace cudarelu::ops::attention {

/// Defines the second derivative of the scores and what its sums need, after gradients_text. The
/// gradients of grad_q, grad_k, grad_v and grad_mask meet in `tangent`, the gradient of
/// grad_scores.
inline constexpr std::string_view second_text = R"(
    q_flat = Reshape<allowzero = 1>(q, q_shape)
    grad_grad_q_flat = Reshape<allowzero = 1>(grad_grad_q, q_shape)
    grad_grad_k_flat = Reshape<allowzero = 1>(grad_grad_k, k_shape)
    grad_grad_v_flat = Reshape<allowzero = 1>(grad_grad_v, v_shape)
    scaled_grad_grad_q = Mul(grad_grad_q_flat, factor)
    products_with_k = MatMul(scaled_grad_grad_q, k_turned)
    grad_grad_k_turned = Transpose<perm = [0, 2, 1]>(grad_grad_k_flat)
    products_with_q = MatMul(scaled_flat, grad_grad_k_turned)
    tangent_of_products_flat = Add(products_with_k, products_with_q)
    tangent_of_products = Reshape<allowzero = 1>(tangent_of_products_flat, scores_shape)
    tangent = Add(tangent_of_products, grad_grad_mask)
    grad_grad_v_turned = Transpose<perm = [0, 2, 1]>(grad_grad_v_flat)
    tangent_of_weights_flat = MatMul(grad_flat, grad_grad_v_turned)
    tangent_of_weights = Reshape<allowzero = 1>(tangent_of_weights_flat, scores_shape)
    grad_by_tangent = Mul(grad_centred, tangent)
    second_of_weights = Add(grad_by_tangent, tangent_of_weights)
    second = Mul(weights, second_of_weights))";

/// Defines the gradients of attention_backward in all inputs but the mask.
inline constexpr std::string_view second_inputs_text = R"(
    weighted = Mul(weights, tangent)
    weighted_flat = Reshape<allowzero = 1>(weighted, flat_shape)
    weights_flat = Reshape<allowzero = 1>(weights, flat_shape)
    second_products = Mul(second, factor)
    second_flat = Reshape<allowzero = 1>(second_products, flat_shape)
    grad_products = Mul(grad_scores, factor)
    products_grad_flat = Reshape<allowzero = 1>(grad_products, flat_shape)
    level = ReduceSum<keepdims = 1>(weighted, last)
    sum_of_v = MatMul(weighted_flat, v_flat)
    sum_of_grad_grad_v = MatMul(weights_flat, grad_grad_v_flat)
    sums_flat = Add(sum_of_v, sum_of_grad_grad_v)
    own_y_shape = Shape(y)
    sums = Reshape<allowzero = 1>(sums_flat, own_y_shape)
    level_of_y = Mul(level, y)
    of_grad_y = Sub(sums, level_of_y)
    sum_of_k = MatMul(second_flat, k_flat)
    sum_of_grad_grad_k = MatMul(products_grad_flat, grad_grad_k_flat)
    of_q_flat = Add(sum_of_k, sum_of_grad_grad_k)
    own_q_shape = Shape(q)
    of_q = Reshape<allowzero = 1>(of_q_flat, own_q_shape)
    second_turned = Transpose<perm = [0, 2, 1]>(second_flat)
    sum_of_q = MatMul(second_turned, q_flat)
    products_grad_turned = Transpose<perm = [0, 2, 1]>(products_grad_flat)
    sum_of_grad_grad_q = MatMul(products_grad_turned, grad_grad_q_flat)
    of_k_flat = Add(sum_of_q, sum_of_grad_grad_q)
    own_k_shape = Shape(k)
    of_k = Reshape<allowzero = 1>(of_k_flat, own_k_shape)
    weighted_turned = Transpose<perm = [0, 2, 1]>(weighted_flat)
    of_v_flat = MatMul(weighted_turned, grad_flat)
    own_v_shape = Shape(v)
    of_v = Reshape<allowzero = 1>(of_v_flat, own_v_shape)
    level_of_grad_y = Mul(level, grad_y)
    of_y = Neg(level_of_grad_y)
    second_sum = ReduceSum<keepdims = 1>(second, last)
    of_lse_column = Neg(second_sum)
    of_lse_t = Reshape<allowzero = 1>(of_lse_column, rows_shape)
    of_lse = Cast<to = 1>(of_lse_t)
    of_grad_lse_t = Reshape<allowzero = 1>(level, rows_shape)
    of_grad_lse = Cast<to = 1>(of_grad_lse_t))";

/// Defines the gradient of attention_backward in the mask.
inline constexpr std::string_view second_mask_text = R"(
    of_mask = Identity(second))";

inline constexpr std::string_view before_grad_y = "grad_y = attention_second_derivative";
inline constexpr std::string_view before_q = ".of_grad_y; q = attention_second_derivative";
inline constexpr std::string_view before_k = ".of_q; k = attention_second_derivative";
inline constexpr std::string_view before_v = ".of_k; v = attention_second_derivative";
inline constexpr std::string_view before_y = ".of_v; y = attention_second_derivative";
inline constexpr std::string_view before_lse = ".of_y; lse = attention_second_derivative";
inline constexpr std::string_view before_grad_lse =
    ".of_lse; grad_lse = attention_second_derivative";
inline constexpr std::string_view before_mask =
    ".of_grad_lse; attn_mask = attention_mask_second_derivative";

// NOLINTBEGIN(readability-redundant-parentheses): of the template arguments, which have none
/// The gradients of an op of the first derivative, by calls with these arguments.
template <const std::string_view& arguments>
inline constexpr std::string_view calls_of_second_derivative =
    joined<before_grad_y, arguments, before_q, arguments, before_k, arguments, before_v, arguments,
           before_y, arguments, before_lse, arguments, before_grad_lse, arguments, before_mask,
           arguments>;
// NOLINTEND(readability-redundant-parentheses)

inline constexpr std::string_view arguments_for_inputs =
    "(grad_y, q, k, v, y, lse, grad_lse, grad_grad_q, grad_grad_k, grad_grad_v, none, attn_mask, "
    "is_causal, scale)";
inline constexpr std::string_view arguments_for_mask =
    "(grad_y, q, k, v, y, lse, grad_lse, none, none, none, grad_grad_mask, attn_mask, is_causal, "
    "scale)";

}  // namespace cudarelu::ops::attention
