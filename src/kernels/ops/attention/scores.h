// The part of the definitions of attention that computes the scores, as text.
#pragma once

#include <string_view>

namespace cudarelu::ops::attention {

/// Defines `scores` [*, h, s, t]: q k^T scale + attn_mask, and -inf (`low`) where a key is hidden
/// from a query. Also the shapes and flattened tensors that the rest of a definition uses: for each
/// head of k, the rows of all heads of q that share it are the rows of one matrix.
///
/// A mask of bool and one of numbers need different operators, of which both are computed: 2 cast
/// to bool is 1.
inline constexpr std::string_view scores_text = R"(
    unit = Constant<value_ints = [1]>()
    last = Constant<value_ints = [-1]>()
    zero_f = Constant<value_float = 0.0>()
    one_f = Constant<value_float = 1.0>()
    two_f = Constant<value_float = 2.0>()
    zero = CastLike(zero_f, q)
    low = Log(zero)
    rows_shape = Shape<end = -1>(q)
    rows_1 = Concat<axis = 0>(unit, rows_shape)
    rows = ReduceProd<keepdims = 1>(rows_1)
    heads_shape = Shape<end = -2>(k)
    heads_1 = Concat<axis = 0>(unit, heads_shape)
    heads = ReduceProd<keepdims = 1>(heads_1)
    heads_or_1 = Max(heads, unit)
    group = Div(rows, heads_or_1)
    d = Shape<start = -1>(q)
    t = Shape<start = -2, end = -1>(k)
    e = Shape<start = -1>(v)
    given_f = Constant<value_float: float = @scale>()
    given = Cast<to = 11>(given_f)
    no_scale = IsNaN(given)
    d_exact = Cast<to = 11>(d)
    root = Sqrt(d_exact)
    usual = Reciprocal(root)
    factor_exact = Where(no_scale, usual, given)
    factor = CastLike(factor_exact, q)
    scaled_q = Mul(q, factor)
    q_shape = Concat<axis = 0>(heads, group, d)
    k_shape = Concat<axis = 0>(heads, t, d)
    v_shape = Concat<axis = 0>(heads, t, e)
    flat_shape = Concat<axis = 0>(heads, group, t)
    scores_shape = Concat<axis = 0>(rows_shape, t)
    scaled_flat = Reshape<allowzero = 1>(scaled_q, q_shape)
    k_flat = Reshape<allowzero = 1>(k, k_shape)
    v_flat = Reshape<allowzero = 1>(v, v_shape)
    k_turned = Transpose<perm = [0, 2, 1]>(k_flat)
    products_flat = MatMul(scaled_flat, k_turned)
    products = Reshape<allowzero = 1>(products_flat, scores_shape)
    two = CastLike(two_f, attn_mask)
    two_back = Cast<to = 1>(two)
    is_bool = Equal(two_back, one_f)
    mask_exact = Cast<to = 11>(attn_mask)
    of_bool = Log(mask_exact)
    bias_exact = Where(is_bool, of_bool, mask_exact)
    bias = CastLike(bias_exact, q)
    biased = Add(products, bias)
    s_1 = Shape<start = -2, end = -1>(q)
    s = Squeeze(s_1)
    t_0 = Squeeze(t)
    none = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    queries = Range(none, s, one)
    keys = Range(none, t_0, one)
    queries_column = Unsqueeze(queries, unit)
    is_later = Greater(keys, queries_column)
    causal_int = Constant<value_int: int = @is_causal>()
    causal = Cast<to = 9>(causal_int)
    hidden_by_order = And(causal, is_later)
    hidden_by_mask = Equal(bias, low)
    hidden = Or(hidden_by_mask, hidden_by_order)
    scores = Where(hidden, low, biased))";

/// Defines `y` from the scores, and `lse`. A row whose scores are all -inf gives zeros.
inline constexpr std::string_view outputs_text = R"(
    edge_shape = Concat<axis = 0>(rows_shape, unit)
    edge = Expand(low, edge_shape)
    scores_and_edge = Concat<axis = -1>(scores, edge)
    largest = ReduceMax<keepdims = 1>(scores_and_edge, last)
    is_empty = Equal(largest, low)
    base = Where(is_empty, zero, largest)
    centred = Sub(scores, base)
    powers = Exp(centred)
    total = ReduceSum<keepdims = 1>(powers, last)
    has_none = Equal(total, zero)
    one_t = CastLike(one_f, q)
    divisor = Where(has_none, one_t, total)
    weights = Div(powers, divisor)
    weights_flat = Reshape<allowzero = 1>(weights, flat_shape)
    y_flat = MatMul(weights_flat, v_flat)
    y_shape = Concat<axis = 0>(rows_shape, e)
    y = Reshape<allowzero = 1>(y_flat, y_shape))";

/// Defines the weights and the gradient of the scores from lse and y.
inline constexpr std::string_view gradients_text = R"(
    lse_column = Unsqueeze(lse, last)
    lse_t = CastLike(lse_column, q)
    is_empty = Equal(lse_t, low)
    base = Where(is_empty, zero, lse_t)
    centred = Sub(scores, base)
    weights = Exp(centred)
    grad_shape = Concat<axis = 0>(heads, group, e)
    grad_flat = Reshape<allowzero = 1>(grad_y, grad_shape)
    v_turned = Transpose<perm = [0, 2, 1]>(v_flat)
    grad_weights_flat = MatMul(grad_flat, v_turned)
    grad_weights = Reshape<allowzero = 1>(grad_weights_flat, scores_shape)
    grads_of_y = Mul(grad_y, y)
    slope_of_y = ReduceSum<keepdims = 1>(grads_of_y, last)
    grad_lse_column = Unsqueeze(grad_lse, last)
    slope_of_lse = CastLike(grad_lse_column, q)
    slope = Sub(slope_of_y, slope_of_lse)
    grad_centred = Sub(grad_weights, slope)
    grad_scores = Mul(weights, grad_centred))";

/// Defines `lse` beside `y`.
inline constexpr std::string_view lse_text = R"(
    log_total = Log(total)
    lse_column = Add(base, log_total)
    lse_t = Reshape<allowzero = 1>(lse_column, rows_shape)
    lse = Cast<to = 1>(lse_t))";

/// Defines the gradients of q, k and v.
inline constexpr std::string_view inputs_text = R"(
    grad_products = Mul(grad_scores, factor)
    products_grad_flat = Reshape<allowzero = 1>(grad_products, flat_shape)
    grad_q_flat = MatMul(products_grad_flat, k_flat)
    own_q_shape = Shape(q)
    grad_q = Reshape<allowzero = 1>(grad_q_flat, own_q_shape)
    products_grad_turned = Transpose<perm = [0, 2, 1]>(products_grad_flat)
    q_flat = Reshape<allowzero = 1>(q, q_shape)
    grad_k_flat = MatMul(products_grad_turned, q_flat)
    own_k_shape = Shape(k)
    grad_k = Reshape<allowzero = 1>(grad_k_flat, own_k_shape)
    weights_flat = Reshape<allowzero = 1>(weights, flat_shape)
    weights_turned = Transpose<perm = [0, 2, 1]>(weights_flat)
    grad_v_flat = MatMul(weights_turned, grad_flat)
    own_v_shape = Shape(v)
    grad_v = Reshape<allowzero = 1>(grad_v_flat, own_v_shape))";

/// Defines the gradient of the mask.
inline constexpr std::string_view mask_text = R"(
    grad_mask = Identity(grad_scores))";

}  // namespace cudarelu::ops::attention
