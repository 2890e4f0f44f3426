#include <levin/core/nn/operator_kinds.h>

#include <algorithm>

namespace levin::detail {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

bool is_element_wise_operator(std::string_view name) {
  return is_one_of(
      name, {"add",         "sub",        "mul",         "div",         "rsub",        "pow",         "neg",
             "abs",         "sign",       "exp",         "exp2",        "expm1",       "log",         "log2",
             "log10",       "log1p",      "sqrt",        "rsqrt",       "square",      "reciprocal",  "sin",
             "cos",         "tan",        "tanh",        "sigmoid",     "erf",         "erfc",        "relu",
             "relu6",       "gelu",       "silu",        "mish",        "elu",         "celu",        "selu",
             "leaky_relu",  "hardtanh",   "hardswish",   "hardsigmoid", "softplus",    "softshrink",  "hardshrink",
             "threshold",   "clamp",      "clamp_min",   "clamp_max",   "clip",        "maximum",     "minimum",
             "where",       "lerp",       "addcmul",     "addcdiv",     "floor",       "ceil",        "round",
             "trunc",       "frac",       "remainder",   "fmod",        "atan2",       "isnan",       "isinf",
             "isfinite",    "eq",         "ne",          "lt",          "le",          "gt",          "ge",
             "logical_and", "logical_or", "logical_xor", "logical_not", "nan_to_num",  "masked_fill", "copy",
             "fill",        "zero",       "log_sigmoid", "bitwise_not", "bitwise_and", "bitwise_or",  "subtract",
             "multiply",    "divide",     "true_divide", "negative",    "greater",     "less",        "not_equal",
             "floor_divide"});
}

bool gives_shape_of_first(std::string_view name) {
  return is_one_of(name, {"detach", "alias", "clone", "to", "_to_copy", "contiguous", "type_as", "zeros_like",
                          "ones_like", "empty_like", "full_like"});
}

bool is_norm_of_features(std::string_view name) {
  return is_one_of(name, {"layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"});
}

bool is_about_the_tensor(std::string_view name) {
  return is_one_of(name, {"requires_grad_", "retain_grad", "record_stream", "is_pinned", "result_type", "new_empty",
                          "new_zeros", "new_ones", "new_full", "_version", "is_leaf", "output_nr"});
}

}  // namespace levin::detail
