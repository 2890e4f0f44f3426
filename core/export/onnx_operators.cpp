#include <levin/core/export/onnx_operators.h>

#include <levin/core/export/einsum_equation.h>
#include <levin/core/export/onnx_converter.h>

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Ints = std::vector<int64_t>;

/// To the end, as a slice's end.
constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

// ---- Parts of several conversions

std::string transposed(OnnxNode& node, const std::string& value, Ints order) {
  return node.make("Transpose", {value}, {{"perm", std::move(order)}});
}

/// The order of dimensions in which two have changed places.
Ints swapped(int64_t rank, int64_t a, int64_t b) {
  Ints order(rank);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[a], order[b]);
  return order;
}

Ints counted_from_front(Ints dimensions, int64_t rank) {
  for (int64_t& dimension : dimensions)
    if (dimension < 0) dimension += rank;
  return dimensions;
}

/// Padding as ONNX has it: all beginnings, then all ends.
Ints both_sides(const Ints& padding) {
  Ints pads = padding;
  pads.insert(pads.end(), padding.begin(), padding.end());
  return pads;
}

/// A list of one number stands for the same in every direction.
Ints spread(Ints values, size_t directions) {
  if (values.size() == 1) values.resize(directions, values.front());
  return values;
}

std::string size_of(OnnxNode& node, const std::string& value, int64_t dimension) {
  return node.make("Shape", {value}, {{"start", dimension}, {"end", dimension + 1}});
}

std::string concatenated(OnnxNode& node, const std::vector<std::string>& values, int64_t dimension) {
  return values.size() == 1 ? values.front() : node.make("Concat", values, {{"axis", dimension}});
}

std::string gathered(OnnxNode& node, const std::string& value, int64_t dimension, const std::string& index) {
  return node.make("Squeeze", {node.make("Gather", {value, index}, {{"axis", dimension}}), node.ints({dimension})});
}

bool is_whole(at::ScalarType type) { return c10::isIntegralType(type, /*includeBool=*/false); }

/// A type that holds the values of another and in which ONNX or onnxruntime computes more than in that.
at::ScalarType roomy(at::ScalarType type) {
  const bool is_narrow = type == at::kBool || type == at::kByte || type == at::kChar || type == at::kShort;
  return is_narrow ? at::kInt : type;
}

std::string cast_between(OnnxNode& node, const std::string& value, at::ScalarType from, at::ScalarType to) {
  return from == to ? value : node.cast(value, to);
}

/// A result that was computed in the roomy type, in its own.
void give_narrowed(OnnxNode& node, const std::string& value, size_t output = 0) {
  const at::ScalarType type = node.result_type(output);
  node.give(cast_between(node, value, roomy(type), type), output);
}

/// As the shape says, in which 0 is a size like others and not "as in the input".
std::string reshaped(OnnxNode& node, const std::string& value, const std::string& shape) {
  return node.make("Reshape", {value, shape}, {{"allowzero", int64_t{1}}});
}

/// How many elements lie along dimensions of a tensor, as a vector of one number.
std::string count_along(OnnxNode& node, const std::string& value, const Ints& dimensions) {
  const std::string sizes = node.make("Gather", {node.make("Shape", {value}), node.ints(dimensions)});
  return node.make("ReduceProd", {sizes}, {{"keepdims", int64_t{1}}});
}

// ---- Elementwise

/// The name of an operator, as a parameter of a template.
template <size_t kSize>
struct OperatorName {
  consteval OperatorName(const char (&name)[kSize]) { std::copy_n(name, kSize, letters); }
  char letters[kSize] = {};
};

/// What one operator of ONNX does with one tensor.
template <OperatorName kName>
void unary(OnnxNode& node) {
  node.give(node.make(kName.letters, {node.operand("self", node.result_type())}));
}

void is_nan(OnnxNode& node) {
  const at::ScalarType type = node.type("self");
  node.give(node.make("IsNaN", {c10::isFloatingType(type) ? node.tensor("self") : node.operand("self", at::kFloat)}));
}

/// To whole numbers, which ONNX knows of other than whole numbers alone.
template <OperatorName kName>
void rounded(OnnxNode& node) {
  if (node.has("decimals") && node.integer("decimals") != 0) node.refuse("it is given decimals; valid: 0");
  if (!c10::isFloatingType(node.type("self"))) return node.give(node.tensor("self"));
  unary<kName>(node);
}

void sign(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  const std::string self = node.operand("self", roomy(type));
  const std::string signs = node.make("Sign", {self});
  if (!c10::isFloatingType(type)) return give_narrowed(node, signs);
  node.give(node.make("Where", {node.make("IsNaN", {self}), node.scalar(0, type), signs}));  // that of NaN is 0
}

void relu(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  if (c10::isFloatingType(type)) return unary<"Relu">(node);
  give_narrowed(node, node.make("Max", {node.operand("self", roomy(type)), node.scalar(0, roomy(type))}));
}

void rsqrt(OnnxNode& node) {
  node.give(node.make("Reciprocal", {node.make("Sqrt", {node.operand("self", node.result_type())})}));
}

void silu(OnnxNode& node) {
  node.give(node.make("Mul", {node.tensor("self"), node.make("Sigmoid", {node.tensor("self")})}));
}

void gelu(OnnxNode& node) {
  node.give(node.make("Gelu", {node.tensor("self")}, {{"approximate", node.text("approximate")}}));
}

void leaky_relu(OnnxNode& node) {
  node.give(
      node.make("LeakyRelu", {node.tensor("self")}, {{"alpha", static_cast<float>(node.real("negative_slope"))}}));
}

void elu(OnnxNode& node) {
  if (node.real("scale") != 1 || node.real("input_scale") != 1) node.refuse("its scales are not 1");
  node.give(node.make("Elu", {node.tensor("self")}, {{"alpha", static_cast<float>(node.real("alpha"))}}));
}

void softplus(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  const double beta = node.real("beta");
  const double threshold = node.real("threshold");
  const std::string self = node.tensor("self");
  const std::string scaled = beta == 1 ? self : node.make("Mul", {self, node.scalar(beta, type)});
  std::string result = node.make("Softplus", {scaled});
  if (beta != 1) result = node.make("Div", {result, node.scalar(beta, type)});
  // Above 15 the two do not differ in a float.
  if (threshold < 15 || beta < 0)
    result = node.make("Where", {node.make("Greater", {scaled, node.scalar(threshold, type)}), self, result});
  node.give(result);
}

void hardswish(OnnxNode& node) { node.give(node.make("HardSwish", {node.tensor("self")})); }
void mish(OnnxNode& node) { node.give(node.make("Mish", {node.tensor("self")})); }

void clip(OnnxNode& node, const char* low, const char* high) {
  const at::ScalarType type = roomy(node.result_type());
  std::string value = node.operand("self", type);
  const auto is_tensor = [&](const char* name) { return !node.is_none(name) && !node.is_number(name); };
  if (is_tensor(low) || is_tensor(high)) {
    if (!node.is_none(low)) value = node.make("Max", {value, node.operand(low, type)});
    if (!node.is_none(high)) value = node.make("Min", {value, node.operand(high, type)});
    return give_narrowed(node, value);
  }
  // Without a bound, onnxruntime takes the largest number that is not infinite.
  const double infinity = std::numeric_limits<double>::infinity();
  const auto bound = [&](const char* name, double without) {
    if (!node.is_none(name)) return node.operand(name, type);
    return c10::isFloatingType(type) ? node.scalar(without, type) : std::string();
  };
  give_narrowed(node, node.make("Clip", {value, bound(low, -infinity), bound(high, infinity)}));
}
void clamp(OnnxNode& node) { clip(node, "min", "max"); }
void clamp_min(OnnxNode& node) { clip(node, "min", ""); }
void clamp_max(OnnxNode& node) { clip(node, "", "max"); }
void hardtanh(OnnxNode& node) { clip(node, "min_val", "max_val"); }
void relu6(OnnxNode& node) {
  const at::ScalarType type = roomy(node.result_type());
  give_narrowed(node, node.make("Clip", {node.operand("self", type), node.scalar(0, type), node.scalar(6, type)}));
}

/// Whether the node computes with whole numbers outside of tensors, which are vectors of one element here.
bool is_of_numbers(const OnnxNode& node) { return node.node().output()->type()->kind() == c10::TypeKind::IntType; }

std::string of_numbers(OnnxNode& node, const char* type) {
  return node.make(type, {node.number("a"), node.number("b")});
}

/// The two operands, the second times alpha, of the result's type.
std::pair<std::string, std::string> summands(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  std::string other = node.operand("other", type);
  if (node.has("alpha") && node.real("alpha") != 1)
    other = node.make("Mul", {other, node.scalar(node.number_given("alpha"), type)});
  return {node.operand("self", type), other};
}

void add(OnnxNode& node) {
  if (is_of_numbers(node)) return node.give(of_numbers(node, "Add"));
  const bool are_truths = node.result_type() == at::kBool;
  if (are_truths && node.has("alpha") && node.real("alpha") == 0) node.refuse("alpha is false");
  const auto [self, other] =
      are_truths ? std::pair(node.operand("self", at::kBool), node.operand("other", at::kBool)) : summands(node);
  node.give(node.make(are_truths ? "Or" : "Add", {self, other}));
}

void sub(OnnxNode& node) {
  if (is_of_numbers(node)) return node.give(of_numbers(node, "Sub"));
  const auto [self, other] = summands(node);
  node.give(node.make("Sub", {self, other}));
}

void rsub(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  std::string self = node.operand("self", type);
  if (node.real("alpha") != 1) self = node.make("Mul", {self, node.scalar(node.number_given("alpha"), type)});
  node.give(node.make("Sub", {node.operand("other", type), self}));
}

/// The product of two tensors of a type.
std::string product(OnnxNode& node, const std::string& a, const std::string& b, at::ScalarType type) {
  return node.make(type == at::kBool ? "And" : "Mul", {a, b});
}

void mul(OnnxNode& node) {
  if (is_of_numbers(node)) return node.give(of_numbers(node, "Mul"));
  const at::ScalarType type = node.result_type();
  node.give(product(node, node.operand("self", type), node.operand("other", type), type));
}

/// self + value · (tensor1 · tensor2), or of their quotient.
void add_of_two(OnnxNode& node, const char* type_of_two) {
  const at::ScalarType type = roomy(node.result_type());
  std::string two = node.make(type_of_two, {node.operand("tensor1", type), node.operand("tensor2", type)});
  if (node.real("value") != 1) two = node.make("Mul", {two, node.scalar(node.number_given("value"), type)});
  give_narrowed(node, node.make("Add", {node.operand("self", type), two}));
}
void addcmul(OnnxNode& node) { add_of_two(node, "Mul"); }
void addcdiv(OnnxNode& node) { add_of_two(node, "Div"); }

void square(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  node.give(product(node, node.operand("self", type), node.operand("self", type), type));
}

/// The product of each element of a vector with each of another.
void outer(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  node.give(product(node, node.make("Unsqueeze", {node.operand("self", type), node.ints({1})}),
                    node.make("Unsqueeze", {node.operand("vec2", type), node.ints({0})}), type));
}

std::string both(OnnxNode& node, const std::string& a, const std::string& b) { return node.make("And", {a, b}); }

std::string has_other_sign(OnnxNode& node, const std::string& a, const std::string& b, const std::string& zero) {
  return node.make("Xor", {node.make("Less", {a, zero}), node.make("Less", {b, zero})});
}

/// The quotient of whole numbers: ONNX's is rounded towards zero.
std::string whole_quotient(OnnxNode& node, const std::string& a, const std::string& b, at::ScalarType type,
                           bool rounds_down) {
  const std::string quotient = node.make("Div", {a, b});
  if (!rounds_down) return quotient;
  const std::string zero = node.scalar(0, type);
  const std::string rest = node.make("Sub", {a, node.make("Mul", {quotient, b})});
  const std::string is_above =
      both(node, node.make("Not", {node.make("Equal", {rest, zero})}), has_other_sign(node, rest, b, zero));
  return node.make("Sub", {quotient, node.cast(is_above, type)});
}

/// The quotient of real numbers, rounded down as LibTorch does it (c10::div_floor_floating): by the remainder, since
/// the quotient itself may be rounded up to a whole number.
std::string floored_quotient(OnnxNode& node, const std::string& a, const std::string& b, at::ScalarType type) {
  const std::string zero = node.scalar(0, type);
  const std::string quotient = node.make("Div", {a, b});
  const std::string rest = node.make("Mod", {a, b}, {{"fmod", int64_t{1}}});
  const std::string is_above =
      both(node, node.make("Not", {node.make("Equal", {rest, zero})}), has_other_sign(node, rest, b, zero));
  const std::string near =
      node.make("Sub", {node.make("Div", {node.make("Sub", {a, rest}), b}), node.cast(is_above, type)});
  const std::string down = node.make("Floor", {near});
  const std::string is_far = node.make("Greater", {node.make("Sub", {near, down}), node.scalar(0.5, type)});
  const std::string whole = node.make("Add", {down, node.cast(is_far, type)});
  return node.make("Where", {node.make("Equal", {b, zero}), quotient, whole});
}

void divide(OnnxNode& node) {
  const std::string rounding = node.is_none("rounding_mode") ? "" : node.text("rounding_mode");
  const at::ScalarType type = roomy(node.result_type());
  const std::string self = node.operand("self", type);
  const std::string other = node.operand("other", type);
  if (is_whole(type)) return give_narrowed(node, whole_quotient(node, self, other, type, rounding == "floor"));
  if (rounding == "floor") return node.give(floored_quotient(node, self, other, type));
  const std::string quotient = node.make("Div", {self, other});
  if (rounding.empty()) return node.give(quotient);
  const std::string is_below = node.make("Less", {quotient, node.scalar(0, type)});
  node.give(node.make("Where", {is_below, node.make("Ceil", {quotient}), node.make("Floor", {quotient})}));
}

void power(OnnxNode& node) {
  const at::ScalarType type = roomy(node.result_type());
  const std::string self = node.operand("self", type);
  // LibTorch takes roots with an exponent of a half, which differ in -inf and -0.
  const bool is_root = c10::isFloatingType(type) && node.constant("exponent") && node.is_number("exponent") &&
                       std::abs(node.real("exponent")) == 0.5;
  if (!is_root) return give_narrowed(node, node.make("Pow", {self, node.operand("exponent", type)}));
  const std::string root = node.make("Sqrt", {self});
  node.give(node.real("exponent") > 0 ? root : node.make("Reciprocal", {root}));
}

/// What ONNX's Max or Min makes of two tensors.
void of_two(OnnxNode& node, const char* name) {
  const at::ScalarType type = roomy(node.result_type());
  give_narrowed(node, node.make(name, {node.operand("self", type), node.operand("other", type)}));
}
void maximum(OnnxNode& node) { of_two(node, "Max"); }
void minimum(OnnxNode& node) { of_two(node, "Min"); }
void logical_and(OnnxNode& node) {
  node.give(node.make("And", {node.operand("self", at::kBool), node.operand("other", at::kBool)}));
}
void logical_or(OnnxNode& node) {
  node.give(node.make("Or", {node.operand("self", at::kBool), node.operand("other", at::kBool)}));
}

std::string compared(OnnxNode& node, const char* type) {
  const at::ScalarType common = node.common_type("self", "other");
  // Truth values and narrow numbers have no order in ONNX, or not in onnxruntime; the other is converted first.
  const auto operand = [&](const char* name) {
    const std::string narrow = node.operand(name, common);
    return cast_between(node, narrow, common, roomy(common));
  };
  return node.make(type, {operand("self"), operand("other")});
}
void equal(OnnxNode& node) { node.give(compared(node, "Equal")); }
void not_equal(OnnxNode& node) { node.give(node.make("Not", {compared(node, "Equal")})); }
void less(OnnxNode& node) { node.give(compared(node, "Less")); }
void less_equal(OnnxNode& node) { node.give(compared(node, "LessOrEqual")); }
void greater(OnnxNode& node) { node.give(compared(node, "Greater")); }
void greater_equal(OnnxNode& node) { node.give(compared(node, "GreaterOrEqual")); }

/// One value or another, by a condition.
void choose(OnnxNode& node, const char* condition, const char* then, const char* otherwise) {
  const at::ScalarType type = roomy(node.result_type());
  give_narrowed(node, node.make("Where", {node.operand(condition, at::kBool), node.operand(then, type),
                                          node.operand(otherwise, type)}));
}
void where(OnnxNode& node) { choose(node, "condition", "self", "other"); }
void masked_fill(OnnxNode& node) { choose(node, "mask", "value", "self"); }

void same(OnnxNode& node) { node.give(node.tensor(node.has("self") ? "self" : node.has("input") ? "input" : "a")); }

void converted(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  node.give(node.operand("self", type));
}

void dropout(OnnxNode& node) {
  if (node.boolean("train")) node.refuse("it drops values in evaluation mode too");
  node.give(node.tensor("input"));
}

// ---- Numbers outside of tensors

void size(OnnxNode& node) { node.give(size_of(node, node.tensor("self"), node.dimension("dim", node.rank("self")))); }

void number_to_tensor(OnnxNode& node) { node.give(node.make("Squeeze", {node.number("a"), node.ints({0})})); }

void number_to_real(OnnxNode& node) { node.give(node.cast(node.number("a"), at::kDouble)); }

void list_construct(OnnxNode& /*node*/) {}  // whoever takes the list takes its elements

void list_unpack(OnnxNode& node) {
  const std::vector<std::string> parts = node.unpacked();
  for (size_t i = 0; i < parts.size(); ++i) node.give(parts[i], i);
}

// ---- Shapes

void reshape(OnnxNode& node) {
  node.give(reshaped(node, node.tensor("self"), node.shape(node.has("shape") ? "shape" : "size")));
}

int64_t product_of(const Ints& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

bool is_known(const Ints& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; });
}

/// Some dimensions of a tensor as those of a shape.
std::string some_sizes(OnnxNode& node, const std::string& self, const Ints& sizes, int64_t begin, int64_t end) {
  const Ints some(sizes.begin() + begin, sizes.begin() + end);
  return is_known(some) ? node.ints(some) : node.make("Shape", {self}, {{"start", begin}, {"end", end}});
}

/// A tensor with dimensions replaced by others.
std::string with_dimensions(OnnxNode& node, const std::string& self, int64_t begin, int64_t end,
                            const std::string& others) {
  const Ints sizes = node.sizes("self");
  const auto rank = static_cast<int64_t>(sizes.size());
  std::vector<std::string> parts;
  if (begin > 0) parts.push_back(some_sizes(node, self, sizes, 0, begin));
  parts.push_back(others);
  if (end < rank) parts.push_back(some_sizes(node, self, sizes, end, rank));
  return reshaped(node, self, concatenated(node, parts, 0));
}

void flatten(OnnxNode& node) {
  const Ints sizes = node.sizes("self");
  const auto rank = static_cast<int64_t>(sizes.size());
  const std::string self = node.tensor("self");
  if (rank == 0) return node.give(node.make("Reshape", {self, node.ints({1})}));
  const int64_t begin = node.dimension("start_dim", rank);
  const int64_t end = node.dimension("end_dim", rank) + 1;
  const Ints merged(sizes.begin() + begin, sizes.begin() + end);
  const Ints behind(sizes.begin() + end, sizes.end());
  Ints shape(begin, 0);  // 0: as in the input
  shape.push_back(product_of(merged));
  shape.insert(shape.end(), behind.begin(), behind.end());
  const bool is_simple = is_known(merged) && is_known(behind) && product_of(merged) * product_of(behind) > 0;
  if (is_simple) return node.give(node.make("Reshape", {self, node.ints(shape)}));
  Ints dimensions(end - begin);
  std::iota(dimensions.begin(), dimensions.end(), begin);
  node.give(with_dimensions(node, self, begin, end,
                            is_known(merged) ? node.ints({product_of(merged)}) : count_along(node, self, dimensions)));
}

void unflatten(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.rank("self"));
  const auto give = [&](const std::string& sizes) {
    node.give(with_dimensions(node, node.tensor("self"), dimension, dimension + 1, sizes));
  };
  const auto known = node.constant("sizes");
  if (!known) return give(node.shape("sizes"));
  // -1 is not for a tensor that may have no elements.
  Ints wanted = known->toIntVector();
  const int64_t whole = node.sizes("self").at(dimension);
  const int64_t others = -product_of(wanted);
  for (int64_t& size : wanted)
    if (size == -1 && whole >= 0 && others > 0) size = whole / others;
  give(node.ints(wanted));
}

void transpose(OnnxNode& node) {
  const int64_t rank = node.rank("self");
  if (rank == 0) return same(node);
  node.give(
      transposed(node, node.tensor("self"), swapped(rank, node.dimension("dim0", rank), node.dimension("dim1", rank))));
}

void transpose_matrix(OnnxNode& node) {
  node.give(node.rank("self") < 2 ? node.tensor("self") : transposed(node, node.tensor("self"), {1, 0}));
}

void permute(OnnxNode& node) {
  node.give(transposed(node, node.tensor("self"), counted_from_front(node.integers("dims"), node.rank("self"))));
}

void unsqueeze(OnnxNode& node) {
  node.give(node.make("Unsqueeze", {node.tensor("self"), node.ints({node.dimension("dim", node.rank("self") + 1)})}));
}

void squeeze(OnnxNode& node) {
  const Ints sizes = node.sizes("self");
  if (sizes.empty()) return node.give(node.tensor("self"));
  Ints wanted;
  if (node.has("dim")) {
    wanted = counted_from_front(node.integers("dim"), static_cast<int64_t>(sizes.size()));
  } else {
    wanted.resize(sizes.size());
    std::iota(wanted.begin(), wanted.end(), 0);
  }
  const auto is_free = [&](int64_t dimension) { return sizes[dimension] == -1; };
  if (std::any_of(wanted.begin(), wanted.end(), is_free)) {
    // One row would be squeezed away, which ONNX does for all sizes or for none.
    if (!node.has("dim")) return node.give(node.make("Squeeze", {node.tensor("self")}));
    node.fixed_size("self", *std::find_if(wanted.begin(), wanted.end(), is_free));
  }
  Ints squeezed;
  for (const int64_t dimension : wanted)
    if (sizes[dimension] == 1) squeezed.push_back(dimension);
  node.give(squeezed.empty() ? node.tensor("self") : node.make("Squeeze", {node.tensor("self"), node.ints(squeezed)}));
}

void expand(OnnxNode& node) {
  // -1, "as it is", is 1 for ONNX, which takes the larger of two sizes.
  const auto wanted = [](int64_t size) { return size == -1 ? 1 : size; };
  if (const auto known = node.constant("size")) {
    Ints sizes = known->toIntVector();
    for (int64_t& size : sizes) size = wanted(size);
    return node.give(node.make("Expand", {node.tensor("self"), node.ints(sizes)}));
  }
  std::vector<std::string> sizes = node.shape_elements("size");
  const auto elements = node.elements("size");
  for (size_t i = 0; i < sizes.size(); ++i)
    if (const auto known = torch::jit::toIValue(elements[i])) sizes[i] = node.ints({wanted(known->toInt())});
  node.give(node.make("Expand", {node.tensor("self"), concatenated(node, sizes, 0)}));
}

void expand_as(OnnxNode& node) {
  node.give(node.make("Expand", {node.tensor("self"), node.make("Shape", {node.tensor("other")})}));
}

void reshape_as(OnnxNode& node) {
  node.give(reshaped(node, node.tensor("self"), node.make("Shape", {node.tensor("other")})));
}

void repeat(OnnxNode& node) {
  const int64_t more = node.result_rank() - node.rank("self");
  std::string self = node.tensor("self");
  if (more > 0) {
    Ints front(more);
    std::iota(front.begin(), front.end(), 0);
    self = node.make("Unsqueeze", {self, node.ints(front)});
  }
  node.give(node.make("Tile", {self, node.shape("repeats")}));
}

/// The tensors of a list in the result's type.
std::vector<std::string> in_result_type(OnnxNode& node, const char* list) {
  if (!node.has_elements(list)) return node.tensors(list);
  std::vector<std::string> tensors;
  for (const torch::jit::Value* element : node.elements(list))
    tensors.push_back(node.operand(*element, node.result_type()));
  return tensors;
}

void concatenate(OnnxNode& node) {
  std::vector<std::string> parts = in_result_type(node, "tensors");
  if (node.has_elements("tensors") && node.result_rank() != 1) {
    // LibTorch passes over those of one dimension and no elements.
    const auto elements = node.elements("tensors");
    for (size_t i = elements.size(); i-- > 0;)
      if (node.sizes(*elements[i]) == Ints{0}) parts.erase(parts.begin() + static_cast<int64_t>(i));
  }
  node.give(concatenated(node, parts, node.dimension("dim", node.result_rank())));
}

void stack(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.result_rank());
  std::vector<std::string> parts = in_result_type(node, "tensors");
  for (std::string& part : parts) part = node.make("Unsqueeze", {part, node.ints({dimension})});
  node.give(concatenated(node, parts, dimension));
}

void split_evenly(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.rank("self"));
  const size_t parts = node.list_size();
  const int64_t whole = node.fixed_size("self", dimension);
  const int64_t part = node.has("split_size") ? node.integer("split_size")
                                              : (whole + node.integer("chunks") - 1) / node.integer("chunks");
  Ints sizes(parts, part);
  sizes.back() = whole - part * static_cast<int64_t>(parts - 1);
  node.give_list(node.make_several("Split", parts, {node.tensor("self"), node.ints(sizes)}, {{"axis", dimension}}));
}

void split_with_sizes(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.rank("self"));
  const Ints sizes = node.integers("split_sizes");
  node.give_list(
      node.make_several("Split", sizes.size(), {node.tensor("self"), node.ints(sizes)}, {{"axis", dimension}}));
}

void unbind(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.rank("self"));
  std::vector<std::string> parts;
  for (size_t i = 0; i < node.list_size(); ++i)
    parts.push_back(gathered(node, node.tensor("self"), dimension, node.ints({static_cast<int64_t>(i)})));
  node.give_list(parts);
}

void select(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.rank("self"));
  node.give(gathered(node, node.tensor("self"), dimension, node.number("index")));
}

void slice(OnnxNode& node) {
  const std::string begin = node.is_none("start") ? node.ints({0}) : node.number("start");
  const std::string end = node.is_none("end") ? node.ints({kEnd}) : node.number("end");
  node.give(node.make("Slice", {node.tensor("self"), begin, end, node.ints({node.dimension("dim", node.rank("self"))}),
                                node.ints({node.integer("step")})}));
}

void narrow(OnnxNode& node) {
  const int64_t begin = node.integer("start");
  const int64_t end = begin + node.integer("length");
  node.give(
      node.make("Slice", {node.tensor("self"), node.ints({begin}), node.ints({begin < 0 && end == 0 ? kEnd : end}),
                          node.ints({node.dimension("dim", node.rank("self"))})}));
}

void flip(OnnxNode& node) {
  const Ints dimensions = counted_from_front(node.integers("dims"), node.rank("self"));
  const auto each = [&](int64_t value) { return node.ints(Ints(dimensions.size(), value)); };
  node.give(node.make("Slice", {node.tensor("self"), each(-1), each(std::numeric_limits<int64_t>::min()),
                                node.ints(dimensions), each(-1)}));
}

void index_select(OnnxNode& node) {
  std::string index = node.tensor("index");
  if (node.rank("index") == 0) index = node.make("Unsqueeze", {index, node.ints({0})});
  node.give(node.make("Gather", {node.tensor("self"), index}, {{"axis", node.dimension("dim", node.rank("self"))}}));
}

/// The elements at places that tensors of whole numbers give: along one dimension, or along the first ones.
void index(OnnxNode& node) {
  std::vector<const torch::jit::Value*> given;
  Ints dimensions;
  const auto indices = node.elements("indices");
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto known = torch::jit::toIValue(indices[i]);
    if (known && known->isNone()) continue;
    if (!is_whole(node.type(*indices[i], "indices")) || node.type(*indices[i], "indices") == at::kByte)
      node.refuse("it chooses by truth values");
    given.push_back(indices[i]);
    dimensions.push_back(static_cast<int64_t>(i));
  }
  const std::string self = node.tensor("self");
  if (given.size() == 1)
    return node.give(node.make("Gather", {self, node.operand(*given[0], at::kLong)}, {{"axis", dimensions[0]}}));
  if (given.empty() || dimensions.back() + 1 != static_cast<int64_t>(given.size()))
    node.refuse("several tensors choose, and not along the first dimensions");
  std::string together = node.operand(*given[0], at::kLong);
  for (size_t i = 1; i < given.size(); ++i) together = node.make("Add", {together, node.operand(*given[i], at::kLong)});
  const std::string shape = node.make("Shape", {together});  // that to which they broadcast
  std::vector<std::string> places;
  for (const torch::jit::Value* places_along : given)
    places.push_back(node.make(
        "Unsqueeze", {node.make("Expand", {node.operand(*places_along, at::kLong), shape}), node.ints({-1})}));
  node.give(node.make("GatherND", {self, concatenated(node, places, -1)}));
}

void index_add(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  const int64_t rank = node.rank("source");
  const int64_t dimension = node.dimension("dim", rank);
  std::string source = node.tensor("source");
  if (node.real("alpha") != 1) source = node.make("Mul", {source, node.scalar(node.number_given("alpha"), type)});
  Ints along(rank, 1);
  along[dimension] = -1;
  const std::string index = node.make("Reshape", {node.tensor("index"), node.ints(along)});
  const std::string places = node.make("Expand", {index, node.make("Shape", {source})});
  node.give(node.make("ScatterElements", {node.tensor("self"), places, source},
                      {{"axis", dimension}, {"reduction", std::string("add")}}));
}

void scatter_add(OnnxNode& node) {
  if (node.sizes("index") != node.sizes("src")) node.refuse("its index has other sizes than its source");
  node.give(node.make("ScatterElements", {node.tensor("self"), node.tensor("index"), node.tensor("src")},
                      {{"axis", node.dimension("dim", node.rank("self"))}, {"reduction", std::string("add")}}));
}

void gather(OnnxNode& node) {
  node.give(node.make("GatherElements", {node.tensor("self"), node.tensor("index")},
                      {{"axis", node.dimension("dim", node.rank("self"))}}));
}

void embedding(OnnxNode& node) {
  node.give(node.make("Gather", {node.tensor("weight"), node.tensor("indices")}, {{"axis", int64_t{0}}}));
}

void pad_with_constant(OnnxNode& node) {
  // LibTorch begins with the last dimension.
  const Ints given = node.integers("pad");
  const int64_t rank = node.rank("self");
  Ints pads(2 * rank, 0);
  for (size_t i = 0; i < given.size() / 2; ++i) {
    pads[rank - 1 - static_cast<int64_t>(i)] = given[2 * i];
    pads[2 * rank - 1 - static_cast<int64_t>(i)] = given[2 * i + 1];
  }
  node.give(node.make("Pad", {node.tensor("self"), node.ints(pads), node.operand("value", node.result_type())}));
}

void triangle(OnnxNode& node, int64_t upper) {
  const std::string self = node.operand("self", roomy(node.result_type()));
  give_narrowed(node, node.make("Trilu", {self, node.make("Squeeze", {node.number("diagonal"), node.ints({0})})},
                                {{"upper", upper}}));
}
void lower_triangle(OnnxNode& node) { triangle(node, 0); }
void upper_triangle(OnnxNode& node) { triangle(node, 1); }

// ---- Tensors from nothing

std::string filled(OnnxNode& node, const std::string& shape, const at::Scalar& value) {
  return node.make("ConstantOfShape", {shape}, {{"value", at::full({1}, value, node.result_type())}});
}
std::string shape_of_self(OnnxNode& node) { return node.make("Shape", {node.tensor("self")}); }

void zeros(OnnxNode& node) { node.give(filled(node, node.shape("size"), 0)); }
void ones(OnnxNode& node) { node.give(filled(node, node.shape("size"), 1)); }
void full(OnnxNode& node) { node.give(filled(node, node.shape("size"), node.number_given("fill_value"))); }
void zeros_like(OnnxNode& node) { node.give(filled(node, shape_of_self(node), 0)); }
void ones_like(OnnxNode& node) { node.give(filled(node, shape_of_self(node), 1)); }
void full_like(OnnxNode& node) { node.give(filled(node, shape_of_self(node), node.number_given("fill_value"))); }

void scalar_tensor(OnnxNode& node) {
  const std::string number = node.operand("s", node.result_type());
  node.give(node.constant("s") ? number : node.make("Squeeze", {number, node.ints({0})}));
}

void fill(OnnxNode& node) {
  node.give(node.make("Expand", {node.operand("value", node.result_type()), shape_of_self(node)}));
}

void arange(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  const auto is_constant = [&](const char* name) { return !node.has(name) || node.constant(name).has_value(); };
  if (c10::isFloatingType(type) && is_constant("start") && is_constant("end") && is_constant("step")) {
    // Range computes how many there are from numbers of this type, and LibTorch from double ones.
    const auto value = [&](const char* name, double otherwise) { return node.has(name) ? node.real(name) : otherwise; };
    return node.give(node.added(at::arange(value("start", 0), value("end", 0), value("step", 1), type)));
  }
  const auto number = [&](const char* name, double otherwise) {
    if (!node.has(name)) return node.scalar(otherwise, type);
    const std::string value = node.operand(name, type);
    return node.constant(name) ? value : node.make("Squeeze", {value, node.ints({0})});
  };
  node.give(node.make("Range", {number("start", 0), number("end", 0), number("step", 1)}));
}

void normal_like(OnnxNode& node) {
  node.give(node.make("RandomNormalLike", {node.tensor("self")}, {{"dtype", int64_t{onnx_type(node.result_type())}}}));
}

// ---- Reductions

/// The dimensions that a reduction goes over, counted from the front.
Ints reduced_dimensions(OnnxNode& node, int64_t rank) {
  const bool some = node.has("dim") && !node.is_none("dim") && !node.integers("dim").empty();
  if (some) return counted_from_front(node.integers("dim"), std::max<int64_t>(rank, 1));
  Ints all(rank);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int64_t keeps_dimensions(OnnxNode& node) { return node.has("keepdim") && node.boolean("keepdim") ? 1 : 0; }

std::string reduced(OnnxNode& node, const char* type, const std::string& value, const Ints& dimensions) {
  return node.make(type, {value, node.ints(dimensions)}, {{"keepdims", keeps_dimensions(node)}});
}

void sum(OnnxNode& node) {
  const std::string self = node.operand("self", node.result_type());
  const Ints dimensions = reduced_dimensions(node, node.rank("self"));
  node.give(node.rank("self") == 0 ? self : reduced(node, "ReduceSum", self, dimensions));
}

void mean(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  const std::string self = node.operand("self", type);
  const Ints sizes = node.sizes("self");
  if (sizes.empty()) return node.give(self);
  const Ints dimensions = reduced_dimensions(node, static_cast<int64_t>(sizes.size()));
  const bool may_be_none =
      std::any_of(dimensions.begin(), dimensions.end(), [&](int64_t dimension) { return sizes[dimension] <= 0; });
  if (!may_be_none) return node.give(reduced(node, "ReduceMean", self, dimensions));
  // The mean of nothing is NaN, where onnxruntime's is 0.
  const std::string count = node.make("Squeeze", {count_along(node, self, dimensions), node.ints({0})});
  node.give(node.make("Div", {reduced(node, "ReduceSum", self, dimensions), node.cast(count, type)}));
}

/// The largest or smallest along dimensions: NaN where one is, which onnxruntime passes over.
std::string extreme_value(OnnxNode& node, const char* type, const std::string& self, at::ScalarType self_type,
                          const Ints& dimensions) {
  const std::string value = reduced(node, type, self, dimensions);
  if (!c10::isFloatingType(self_type)) return value;
  const std::string nans = node.make("Where", {node.make("IsNaN", {self}), self, node.scalar(0, self_type)});
  return node.make("Add", {value, reduced(node, "ReduceSum", nans, dimensions)});
}

/// Where the largest or smallest along a dimension is: the first NaN where one is.
std::string extreme_place(OnnxNode& node, const char* type, const std::string& self, at::ScalarType self_type,
                          int64_t dimension, int64_t keeps) {
  const auto place = [&](const char* name, const std::string& value) {
    return node.make(name, {value}, {{"axis", dimension}, {"keepdims", keeps}});
  };
  if (!c10::isFloatingType(self_type)) return place(type, cast_between(node, self, self_type, roomy(self_type)));
  const std::string nans = node.cast(node.make("IsNaN", {self}), at::kFloat);
  const std::string any = node.make("ReduceMax", {nans, node.ints({dimension})}, {{"keepdims", keeps}});
  return node.make("Where", {node.cast(any, at::kBool), place("ArgMax", nans), place(type, self)});
}

void reduce_extreme(OnnxNode& node, const char* type) {
  const std::string self = node.tensor("self");
  const int64_t rank = node.rank("self");
  node.give(rank == 0 ? self : extreme_value(node, type, self, node.type("self"), reduced_dimensions(node, rank)));
}
void amax(OnnxNode& node) { reduce_extreme(node, "ReduceMax"); }
void amin(OnnxNode& node) { reduce_extreme(node, "ReduceMin"); }

/// The largest or smallest: of everything, of two tensors, or along a dimension with where it is.
void extreme(OnnxNode& node, const char* reduction, const char* argument, const char* pairwise) {
  if (node.has("other")) return of_two(node, pairwise);
  reduce_extreme(node, reduction);
  if (!node.has("dim")) return;
  const int64_t rank = node.rank("self");
  node.give(rank == 0 ? node.scalar(0, at::kLong)
                      : extreme_place(node, argument, node.tensor("self"), node.type("self"),
                                      node.dimension("dim", rank), keeps_dimensions(node)),
            1);
}
void largest(OnnxNode& node) { extreme(node, "ReduceMax", "ArgMax", "Max"); }
void smallest(OnnxNode& node) { extreme(node, "ReduceMin", "ArgMin", "Min"); }

void where_extreme(OnnxNode& node, const char* type) {
  const int64_t rank = node.rank("self");
  const bool all = node.is_none("dim") || rank == 0;
  const std::string self = all ? node.make("Reshape", {node.tensor("self"), node.ints({-1})}) : node.tensor("self");
  const int64_t dimension = all ? 0 : node.dimension("dim", rank);
  const std::string place =
      extreme_place(node, type, self, node.type("self"), dimension, all ? 0 : keeps_dimensions(node));
  const bool keeps_all = all && rank > 0 && keeps_dimensions(node) == 1;
  node.give(keeps_all ? node.make("Reshape", {place, node.ints(Ints(rank, 1))}) : place);
}
void argmax(OnnxNode& node) { where_extreme(node, "ArgMax"); }
void argmin(OnnxNode& node) { where_extreme(node, "ArgMin"); }

/// Vector norms of order 2, 1 and infinity.
void norm(OnnxNode& node, const char* order) {
  const double p = node.is_none(order) ? 2 : node.real(order);
  if (p != 1 && p != 2 && !(std::isinf(p) && p > 0)) node.refuse("it is of another order than 1, 2 and infinity");
  const at::ScalarType type = node.result_type();
  const int64_t rank = node.rank("self");
  const Ints dimensions = reduced_dimensions(node, rank);
  const std::string size = node.make("Abs", {node.operand("self", type)});
  if (rank == 0) return node.give(size);
  if (std::isinf(p)) return node.give(extreme_value(node, "ReduceMax", size, type, dimensions));
  if (p == 1) return node.give(reduced(node, "ReduceSum", size, dimensions));
  node.give(node.make("Sqrt", {reduced(node, "ReduceSum", node.make("Mul", {size, size}), dimensions)}));
}
void power_norm(OnnxNode& node) { norm(node, "p"); }
void vector_norm(OnnxNode& node) { norm(node, "ord"); }

void cumulative_sum(OnnxNode& node) {
  const std::string self = node.operand("self", node.result_type());
  const int64_t rank = node.rank("self");
  node.give(rank == 0 ? self : node.make("CumSum", {self, node.ints({node.dimension("dim", rank)})}));
}

void topk(OnnxNode& node) {
  const at::ScalarType type = node.result_type(0);
  const auto parts = node.make_several("TopK", 2, {node.operand("self", roomy(type)), node.ints({node.integer("k")})},
                                       {{"axis", node.integer("dim")},
                                        {"largest", node.boolean("largest") ? int64_t{1} : int64_t{0}},
                                        {"sorted", node.boolean("sorted") ? int64_t{1} : int64_t{0}}});
  give_narrowed(node, parts[0], 0);
  node.give(parts[1], 1);
}

void softmax_of(OnnxNode& node, const char* type) {
  const std::string self = node.operand("self", node.result_type());
  if (node.rank("self") > 0) return node.give(node.make(type, {self}, {{"axis", node.integer("dim")}}));
  const std::string row = node.make("Unsqueeze", {self, node.ints({0})});
  node.give(node.make("Squeeze", {node.make(type, {row}, {{"axis", int64_t{0}}}), node.ints({0})}));
}
void softmax(OnnxNode& node) { softmax_of(node, "Softmax"); }
void log_softmax(OnnxNode& node) { softmax_of(node, "LogSoftmax"); }

// ---- Products

void matmul(OnnxNode& node) {
  for (const char* other : {"other", "mat2", "vec", "tensor"})
    if (node.has(other)) return node.give(node.make("MatMul", {node.tensor("self"), node.tensor(other)}));
}

/// A product of matrices times alpha, and a tensor times beta, which counts for nothing where beta is 0.
void scaled_sum(OnnxNode& node, const char* a, const char* b) {
  const at::ScalarType type = node.result_type();
  const auto scaled = [&](const std::string& value, const char* factor) {
    return node.real(factor) == 1 ? value : node.make("Mul", {value, node.scalar(node.number_given(factor), type)});
  };
  const std::string product = scaled(node.make("MatMul", {node.tensor(a), node.tensor(b)}), "alpha");
  node.give(node.real("beta") == 0 ? product : node.make("Add", {scaled(node.tensor("self"), "beta"), product}));
}

void addmm(OnnxNode& node) {
  if (!c10::isFloatingType(node.result_type())) return scaled_sum(node, "mat1", "mat2");  // onnxruntime's Gemm
  const auto beta = static_cast<float>(node.real("beta"));
  node.give(node.make("Gemm", {node.tensor("mat1"), node.tensor("mat2"), beta == 0 ? "" : node.tensor("self")},
                      {{"alpha", static_cast<float>(node.real("alpha"))}, {"beta", beta}}));
}

void baddbmm(OnnxNode& node) { scaled_sum(node, "batch1", "batch2"); }

void linear(OnnxNode& node) {
  const std::string bias = node.is_none("bias") ? "" : node.tensor("bias");
  if (node.rank("input") == 2 && node.rank("weight") == 2)
    return node.give(node.make("Gemm", {node.tensor("input"), node.tensor("weight"), bias}, {{"transB", int64_t{1}}}));
  const std::string weight =
      node.rank("weight") == 2 ? transposed(node, node.tensor("weight"), {1, 0}) : node.tensor("weight");
  const std::string product = node.make("MatMul", {node.tensor("input"), weight});
  node.give(bias.empty() ? product : node.make("Add", {product, bias}));
}

void einsum(OnnxNode& node) {
  std::vector<Ints> sizes;
  for (const torch::jit::Value* operand : node.elements("tensors")) sizes.push_back(node.sizes(*operand));
  const EinsumEquation equation = explicit_einsum(node.text("equation"), sizes);
  if (equation.text.empty()) node.refuse("it has more dimensions than there are letters");
  std::vector<std::string> operands = node.tensors("tensors");
  for (size_t i = 0; i < operands.size(); ++i)
    if (!equation.squeezed[i].empty())
      operands[i] = node.make("Squeeze", {operands[i], node.ints(equation.squeezed[i])});
  node.give(node.make("Einsum", operands, {{"equation", equation.text}}));
}

/// Keys or values, each head as often as groups of queries share it.
std::string of_query_heads(OnnxNode& node, const char* argument) {
  if (node.is_none("enable_gqa") || !node.boolean("enable_gqa")) return node.tensor(argument);
  const int64_t dimension = node.rank("query") - 3;
  const int64_t heads = node.fixed_size("query", dimension);
  const int64_t own = node.fixed_size(argument, dimension);
  if (heads == own) return node.tensor(argument);
  Ints shared(static_cast<size_t>(heads));
  for (int64_t head = 0; head < heads; ++head) shared[static_cast<size_t>(head)] = head * own / heads;
  return node.make("Gather", {node.tensor(argument), node.ints(shared)}, {{"axis", dimension}});
}

void attention(OnnxNode& node) {
  if (node.real("dropout_p") != 0) node.refuse("it drops attention weights in evaluation mode too");
  const at::ScalarType type = node.result_type();
  const int64_t rank = node.rank("query");
  const int64_t width = node.fixed_size("query", rank - 1);
  const double scale = node.is_none("scale") ? 1 / std::sqrt(static_cast<double>(width)) : node.real("scale");
  // Both are scaled by half of it, in powers, as LibTorch's does against overflow.
  const double root = std::sqrt(std::abs(scale));
  const auto scaled = [&](const std::string& value, double factor) {
    return node.make("Mul", {value, node.scalar(factor, type)});
  };
  const std::string keys = transposed(node, of_query_heads(node, "key"), swapped(rank, rank - 2, rank - 1));
  std::string scores =
      node.make("MatMul", {scaled(node.tensor("query"), scale < 0 ? -root : root), scaled(keys, root)});
  const double infinity = std::numeric_limits<double>::infinity();
  if (!node.is_none("attn_mask")) {
    std::string mask = node.tensor("attn_mask");
    if (node.type("attn_mask") == at::kBool)
      mask = node.make("Where", {mask, node.scalar(0, type), node.scalar(-infinity, type)});
    scores = node.make("Add", {scores, mask});
  }
  if (node.boolean("is_causal")) {
    const std::string sizes = concatenated(
        node, {size_of(node, node.tensor("query"), rank - 2), size_of(node, node.tensor("key"), rank - 2)}, 0);
    const std::string hidden = node.make("ConstantOfShape", {sizes}, {{"value", at::full({1}, -infinity, type)}});
    const std::string mask = node.make("Trilu", {hidden, node.scalar(1, at::kLong)}, {{"upper", int64_t{1}}});
    scores = node.make("Add", {scores, mask});
  }
  std::string weights = node.make("Softmax", {scores}, {{"axis", int64_t{-1}}});
  if (!node.is_none("attn_mask")) {
    // A query that sees no key gets 0, where a softmax gives NaN.
    const std::string is_hidden = node.cast(node.make("Equal", {scores, node.scalar(-infinity, type)}), type);
    const std::string sees_none = node.make("ReduceMin", {is_hidden, node.ints({-1})}, {{"keepdims", int64_t{1}}});
    weights = node.make("Where", {node.cast(sees_none, at::kBool), node.scalar(0, type), weights});
  }
  node.give(node.make("MatMul", {weights, of_query_heads(node, "value")}));
}

// ---- Convolutions and what goes with them

/// The argument with a first dimension of rows, of which LibTorch needs none.
std::string batched(OnnxNode& node, const char* argument, size_t directions) {
  const bool has_rows = node.rank(argument) == static_cast<int64_t>(directions) + 2;
  return has_rows ? node.tensor(argument) : node.make("Unsqueeze", {node.tensor(argument), node.ints({0})});
}

/// Gives a result that has rows, without them where the argument had none.
void give_rows(OnnxNode& node, const std::string& result, const char* argument, size_t directions) {
  const bool has_rows = node.rank(argument) == static_cast<int64_t>(directions) + 2;
  node.give(has_rows ? result : node.make("Squeeze", {result, node.ints({0})}));
}

void convolution(OnnxNode& node) {
  const Ints kernel = node.weight("weight").sizes().slice(2).vec();
  const size_t directions = kernel.size();
  const bool transposes = node.boolean("transposed");
  OnnxAttributes attributes{{"kernel_shape", kernel},
                            {"strides", spread(node.integers("stride"), directions)},
                            {"pads", both_sides(spread(node.integers("padding"), directions))},
                            {"dilations", spread(node.integers("dilation"), directions)},
                            {"group", node.integer("groups")}};
  if (transposes) attributes.push_back({"output_padding", spread(node.integers("output_padding"), directions)});
  const std::string bias = node.is_none("bias") ? "" : node.tensor("bias");
  give_rows(node,
            node.make(transposes ? "ConvTranspose" : "Conv",
                      {batched(node, "input", directions), node.tensor("weight"), bias}, attributes),
            "input", directions);
}

/// In how many directions a window moves: the digit at the end of the operator's name says it.
size_t directions_of(const OnnxNode& node) {
  const std::string name = node.node().kind().toUnqualString();
  return static_cast<size_t>(name.at(name.size() - 2) - '0');
}

/// How a window moves over each direction.
struct Window {
  Ints kernel;
  Ints stride;
  Ints padding;
  Ints dilation;
  Ints more;  ///< padding at the end, beside that at both, of windows that begin before it and reach beyond
};

Window window_of(const OnnxNode& node) {
  const size_t directions = directions_of(node);
  Window window{.kernel = spread(node.integers("kernel_size"), directions),
                .stride = node.integers("stride"),
                .padding = spread(node.integers("padding"), directions),
                .dilation = node.has("dilation") ? spread(node.integers("dilation"), directions) : Ints(directions, 1),
                .more = Ints(directions, 0)};
  window.stride = window.stride.empty() ? window.kernel : spread(window.stride, directions);
  if (!node.boolean("ceil_mode")) return window;
  // Runtimes differ in how many windows they count, so that the padding says it.
  const Ints sizes = node.sizes("self");
  const Ints results = node.result_sizes();
  for (size_t i = 0; i < directions; ++i) {
    const int64_t size = sizes[sizes.size() - directions + i];
    const int64_t windows = results[results.size() - directions + i];
    if (size < 0 || windows < 0) node.refuse("ceil_mode is true and its number of pixels changes with the batch");
    const int64_t end = (windows - 1) * window.stride[i] + window.dilation[i] * (window.kernel[i] - 1) + 1;
    window.more[i] = std::max<int64_t>(end - size - 2 * window.padding[i], 0);
  }
  return window;
}

/// Padding with `before` at the beginnings and `after` more than that at the ends.
Ints padded(const Ints& before, const Ints& after) {
  Ints pads = both_sides(before);
  for (size_t i = 0; i < after.size(); ++i) pads[before.size() + i] += after[i];
  return pads;
}

void pool(OnnxNode& node, const char* type, const std::string& value, const OnnxAttributes& attributes) {
  give_rows(node, node.make(type, {value}, attributes), "self", directions_of(node));
}

void max_pool(OnnxNode& node) {
  const Window window = window_of(node);
  for (size_t i = 0; i < window.more.size(); ++i)
    if (window.padding[i] + window.more[i] >= window.kernel[i])
      node.refuse("ceil_mode with this dilation pads as much as a window is wide, which runtimes refuse");
  pool(node, "MaxPool", batched(node, "self", directions_of(node)),
       {{"kernel_shape", window.kernel},
        {"strides", window.stride},
        {"pads", padded(window.padding, window.more)},
        {"dilations", window.dilation}});
}

void average_pool(OnnxNode& node) {
  if (!node.is_none("divisor_override")) node.refuse("it has a divisor of its own");
  Window window = window_of(node);
  std::string value = batched(node, "self", directions_of(node));
  int64_t counts_padding = node.boolean("count_include_pad") ? 1 : 0;
  const bool has_more = std::any_of(window.more.begin(), window.more.end(), [](int64_t more) { return more > 0; });
  if (has_more && counts_padding == 1) {
    // What is padded for the last window alone does not count: the rest becomes a part of the input.
    Ints around(2, 0);
    around.insert(around.end(), window.padding.begin(), window.padding.end());
    value = node.make("Pad", {value, node.ints(both_sides(around)), node.scalar(0, node.result_type())});
    window.padding.assign(window.padding.size(), 0);
    counts_padding = 0;
  }
  pool(node, "AveragePool", value,
       {{"kernel_shape", window.kernel},
        {"strides", window.stride},
        {"pads", padded(window.padding, window.more)},
        {"count_include_pad", counts_padding}});
}

void adaptive_average_pool(OnnxNode& node) {
  const Ints wanted = node.integers("output_size");
  if (std::all_of(wanted.begin(), wanted.end(), [](int64_t size) { return size == 1; }))
    return pool(node, "GlobalAveragePool", batched(node, "self", directions_of(node)), {});
  const int64_t before = node.rank("self") - static_cast<int64_t>(wanted.size());
  Ints kernel;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t size = node.fixed_size("self", before + static_cast<int64_t>(i));
    if (size % wanted[i] != 0) node.refuse(fmt::format("{} pixels are no multiple of {}", size, wanted[i]));
    kernel.push_back(size / wanted[i]);
  }
  pool(node, "AveragePool", batched(node, "self", directions_of(node)),
       {{"kernel_shape", kernel}, {"strides", kernel}});
}

/// Enlarges or shrinks to sizes that the trace has.
void resize(OnnxNode& node, const char* mode, const char* coordinates, const char* rounding) {
  const Ints sizes = node.result_sizes();
  const std::string front = node.make("Shape", {node.tensor("self")}, {{"start", int64_t{0}}, {"end", int64_t{2}}});
  const Ints pixels(sizes.begin() + 2, sizes.end());
  if (!is_known(pixels)) node.refuse("its number of pixels changes with the batch");
  node.give(node.make("Resize", {node.tensor("self"), "", "", concatenated(node, {front, node.ints(pixels)}, 0)},
                      {{"mode", std::string(mode)},
                       {"coordinate_transformation_mode", std::string(coordinates)},
                       {"nearest_mode", std::string(rounding)}}));
}
/// The pixels that LibTorch takes along a dimension, rounded as it does.
Ints nearest_pixels(int64_t from, int64_t to, std::optional<double> factor) {
  const float step = factor ? static_cast<float>(1.0 / *factor) : static_cast<float>(from) / static_cast<float>(to);
  Ints pixels;
  for (int64_t i = 0; i < to; ++i)
    pixels.push_back(std::min(static_cast<int64_t>(std::floor(static_cast<float>(i) * step)), from - 1));
  return pixels;
}

void resize_nearest(OnnxNode& node) {
  // With factors that give no whole number of pixels LibTorch takes others than with the sizes that they give.
  std::vector<double> factors;
  if (!node.is_none("scale_factors")) factors = node.reals("scale_factors");
  for (const char* name : {"scales", "scales_d", "scales_h", "scales_w"})
    if (!node.is_none(name)) factors.push_back(node.real(name));
  const Ints sizes = node.sizes("self");
  for (size_t i = 0; i < factors.size(); ++i) {
    const double pixels = static_cast<double>(sizes.at(sizes.size() - factors.size() + i)) * factors[i];
    if (pixels != std::floor(pixels))
      node.refuse(fmt::format("its factor {} gives {} pixels; valid: a whole number, or a size", factors[i], pixels));
  }
  const Ints wanted = node.result_sizes();
  if (!is_known(Ints(wanted.begin() + 2, wanted.end()))) node.refuse("its number of pixels changes with the batch");
  std::vector<Ints> pixels;
  bool repeats = true;
  for (size_t axis = 2; axis < wanted.size(); ++axis) {
    const int64_t from = node.fixed_size("self", static_cast<int64_t>(axis));
    const int64_t to = wanted[axis];
    const bool is_exact = to == from || to == 2 * from || factors.empty();
    pixels.push_back(nearest_pixels(from, to, is_exact ? std::nullopt : std::optional(factors[axis - 2])));
    for (int64_t i = 0; i < to; ++i)
      repeats = repeats && to % from == 0 && pixels.back()[static_cast<size_t>(i)] == i / (to / from);
  }
  if (repeats) return resize(node, "nearest", "asymmetric", "floor");
  // Resize multiplies by another rounded number, and takes other pixels where a product is nearly a whole one.
  std::string value = node.tensor("self");
  for (size_t i = 0; i < pixels.size(); ++i)
    value = node.make("Gather", {value, node.ints(pixels[i])}, {{"axis", static_cast<int64_t>(i + 2)}});
  node.give(value);
}
void resize_linear(OnnxNode& node) {
  if (!node.is_none("scales_h") || !node.is_none("scale_factors")) node.refuse("it is given factors; valid: sizes");
  resize(node, "linear", node.boolean("align_corners") ? "align_corners" : "half_pixel", "round_prefer_floor");
}

// ---- Normalisation

/// A normalisation's weight or bias, or where it has none a number for each channel.
std::string by_channel(OnnxNode& node, const char* name, double otherwise) {
  if (!node.is_none(name)) return node.tensor(name);
  return node.added(at::full({node.fixed_size("input", 1)}, otherwise, node.result_type()));
}

void normalize_by_running_statistics(OnnxNode& node) {
  node.give(node.make("BatchNormalization",
                      {node.tensor("input"), by_channel(node, "weight", 1), by_channel(node, "bias", 0),
                       node.tensor("running_mean"), node.tensor("running_var")},
                      {{"epsilon", static_cast<float>(node.real("eps"))}}));
}

void batch_norm(OnnxNode& node) {
  if (node.boolean("training")) node.refuse("it takes the statistics of the batch in evaluation mode too");
  normalize_by_running_statistics(node);
}

void rms_norm(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  const Ints shape = node.integers("normalized_shape");
  Ints last(shape.size());
  std::iota(last.begin(), last.end(), -static_cast<int64_t>(shape.size()));
  const double smallest = type == at::kDouble ? std::numeric_limits<double>::epsilon()
                                              : static_cast<double>(std::numeric_limits<float>::epsilon());
  if (node.is_none("eps") && type != at::kDouble && type != at::kFloat) node.refuse("it is given no eps");
  const std::string input = node.tensor("input");
  const std::string squares =
      node.make("ReduceMean", {node.make("Mul", {input, input}), node.ints(last)}, {{"keepdims", int64_t{1}}});
  const std::string eps = node.scalar(node.is_none("eps") ? smallest : node.real("eps"), type);
  std::string result = node.make("Div", {input, node.make("Sqrt", {node.make("Add", {squares, eps})})});
  if (!node.is_none("weight")) result = node.make("Mul", {result, node.operand("weight", type)});
  node.give(result);
}

void layer_norm(OnnxNode& node) {
  const Ints shape = node.integers("normalized_shape");
  const std::string weight = node.is_none("weight")
                                 ? node.make("Expand", {node.scalar(1, node.result_type()), node.ints(shape)})
                                 : node.tensor("weight");
  node.give(
      node.make("LayerNormalization", {node.tensor("input"), weight, node.is_none("bias") ? "" : node.tensor("bias")},
                {{"axis", -static_cast<int64_t>(shape.size())}, {"epsilon", static_cast<float>(node.real("eps"))}}));
}

/// Normalises each group of channels of each row; in ONNX groups are channels of InstanceNormalization.
void group_norm(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  const int64_t groups = node.integer("num_groups");
  const int64_t rank = node.rank("input");
  const int64_t channels = node.fixed_size("input", 1);
  const Ints sizes = node.sizes("input");
  // -1 is not for a tensor that may have no rows.
  const Ints inner(sizes.begin() + 1, sizes.end());
  const int64_t members = is_known(inner) ? product_of(inner) / groups : -1;
  const std::string grouped = node.make("Reshape", {node.tensor("input"), node.ints({0, groups, members})});
  const std::string normal = node.make("InstanceNormalization",
                                       {grouped, node.make("Expand", {node.scalar(1, type), node.ints({groups})}),
                                        node.make("Expand", {node.scalar(0, type), node.ints({groups})})},
                                       {{"epsilon", static_cast<float>(node.real("eps"))}});
  std::string result = node.make("Reshape", {normal, node.make("Shape", {node.tensor("input")})});
  Ints channel_shape(rank - 1, 1);
  channel_shape.front() = channels;
  const auto shaped = [&](const char* name) {
    return node.make("Reshape", {node.tensor(name), node.ints(channel_shape)});
  };
  if (!node.is_none("weight")) result = node.make("Mul", {result, shaped("weight")});
  if (!node.is_none("bias")) result = node.make("Add", {result, shaped("bias")});
  node.give(result);
}

void instance_norm(OnnxNode& node) {
  if (!node.boolean("use_input_stats")) return normalize_by_running_statistics(node);
  node.give(node.make("InstanceNormalization",
                      {node.tensor("input"), by_channel(node, "weight", 1), by_channel(node, "bias", 0)},
                      {{"epsilon", static_cast<float>(node.real("eps"))}}));
}

// ---- Recurrent networks

/// What a recurrent operator of LibTorch is made of: layers, in one direction or two, with their weights in order.
struct Recurrent {
  const char* type;      ///< "LSTM", "GRU"
  Ints gates;            ///< ONNX's order of the gates, as indices of LibTorch's
  bool has_cells;        ///< a second state
  OnnxAttributes extra;  ///< attributes of each layer
};

void recurrent(OnnxNode& node, const Recurrent& kind) {
  if (node.has("data")) node.refuse("its input is packed");
  if (node.boolean("train") && node.real("dropout") != 0) node.refuse("it drops values in evaluation mode too");
  const std::vector<at::Tensor> tensors = node.weights("params");
  const bool has_biases = node.boolean("has_biases");
  const bool both_ways = node.boolean("bidirectional");
  const bool rows_first = node.boolean("batch_first");
  const int64_t layers = node.integer("num_layers");
  const int64_t directions = both_ways ? 2 : 1;
  const int64_t per_direction = has_biases ? 4 : 2;
  if (static_cast<int64_t>(tensors.size()) != layers * directions * per_direction) node.refuse("it projects its state");
  if (node.rank("input") != 3) node.refuse("its input has no rows");
  const int64_t hidden = tensors[1].size(1);

  const auto reordered = [&](const at::Tensor& tensor) {
    const auto gates = tensor.detach().chunk(static_cast<int64_t>(kind.gates.size()), 0);
    std::vector<at::Tensor> ordered;
    for (const int64_t gate : kind.gates) ordered.push_back(gates[gate]);
    return at::cat(ordered, 0);
  };
  const auto by_layer = [&](const std::string& state) {
    if (layers == 1) return std::vector<std::string>{state};
    return node.make_several("Split", static_cast<size_t>(layers), {state, node.ints(Ints(layers, directions))},
                             {{"axis", int64_t{0}}});
  };
  const std::vector<std::string> states = kind.has_cells ? node.tensors("hx") : std::vector{node.tensor("hx")};
  const auto first_states = by_layer(states[0]);
  const auto first_cells = kind.has_cells ? by_layer(states[1]) : std::vector<std::string>(layers);

  std::string x = node.tensor("input");
  if (rows_first) x = transposed(node, x, {1, 0, 2});
  std::vector<std::string> last_states;
  std::vector<std::string> last_cells;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> of_input, of_state, biases;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const at::Tensor* own = &tensors[(layer * directions + direction) * per_direction];
      of_input.push_back(reordered(own[0]));
      of_state.push_back(reordered(own[1]));
      if (has_biases) biases.push_back(at::cat({reordered(own[2]), reordered(own[3])}));
    }
    OnnxAttributes attributes = kind.extra;
    attributes.push_back({"hidden_size", hidden});
    attributes.push_back({"direction", std::string(both_ways ? "bidirectional" : "forward")});
    std::vector<std::string> inputs{x,
                                    node.added(at::stack(of_input)),
                                    node.added(at::stack(of_state)),
                                    has_biases ? node.added(at::stack(biases)) : "",
                                    "",
                                    first_states[layer]};
    if (kind.has_cells) inputs.push_back(first_cells[layer]);
    const auto results = node.make_several(kind.type, kind.has_cells ? 3 : 2, inputs, attributes);
    // [steps, directions, rows, hidden] becomes [steps, rows, directions * hidden].
    x = node.make("Reshape", {transposed(node, results[0], {0, 2, 1, 3}), node.ints({0, 0, directions * hidden})});
    last_states.push_back(results[1]);
    if (kind.has_cells) last_cells.push_back(results[2]);
  }
  if (rows_first) x = transposed(node, x, {1, 0, 2});
  node.give(x, 0);
  node.give(concatenated(node, last_states, 0), 1);
  if (kind.has_cells) node.give(concatenated(node, last_cells, 0), 2);
}

void lstm(OnnxNode& node) { recurrent(node, {.type = "LSTM", .gates = {0, 3, 1, 2}, .has_cells = true}); }
void gru(OnnxNode& node) {
  recurrent(node,
            {.type = "GRU", .gates = {1, 0, 2}, .has_cells = false, .extra = {{"linear_before_reset", int64_t{1}}}});
}
void rnn_tanh(OnnxNode& node) { recurrent(node, {.type = "RNN", .gates = {0}, .has_cells = false}); }
void rnn_relu(OnnxNode& node) {
  const std::vector<std::string> activations(node.boolean("bidirectional") ? 2 : 1, "Relu");
  recurrent(node, {.type = "RNN", .gates = {0}, .has_cells = false, .extra = {{"activations", activations}}});
}

/// By the names that LibTorch's tracer writes: it records `conv2d`, `concat` and the like as what they are made of.
const std::unordered_map<std::string_view, OnnxConversion>& conversions() {
  static const std::unordered_map<std::string_view, OnnxConversion> table = {
      {"prim::ListConstruct", list_construct},
      {"prim::ListUnpack", list_unpack},
      {"prim::NumToTensor", number_to_tensor},
      {"aten::Float", number_to_real},
      {"aten::size", size},
      {"aten::_convolution", convolution},
      {"aten::abs", unary<"Abs">},
      {"aten::adaptive_avg_pool1d", adaptive_average_pool},
      {"aten::adaptive_avg_pool2d", adaptive_average_pool},
      {"aten::adaptive_avg_pool3d", adaptive_average_pool},
      {"aten::add", add},
      {"aten::addcdiv", addcdiv},
      {"aten::addcmul", addcmul},
      {"aten::addmm", addmm},
      {"aten::alias", same},
      {"aten::amax", amax},
      {"aten::amin", amin},
      {"aten::arange", arange},
      {"aten::argmax", argmax},
      {"aten::argmin", argmin},
      {"aten::avg_pool1d", average_pool},
      {"aten::avg_pool2d", average_pool},
      {"aten::avg_pool3d", average_pool},
      {"aten::baddbmm", baddbmm},
      {"aten::batch_norm", batch_norm},
      {"aten::bmm", matmul},
      {"aten::cat", concatenate},
      {"aten::ceil", rounded<"Ceil">},
      {"aten::chunk", split_evenly},
      {"aten::clamp", clamp},
      {"aten::clamp_max", clamp_max},
      {"aten::clamp_min", clamp_min},
      {"aten::clone", same},
      {"aten::constant_pad_nd", pad_with_constant},
      {"aten::contiguous", same},
      {"aten::cos", unary<"Cos">},
      {"aten::cumsum", cumulative_sum},
      {"aten::detach", same},
      {"aten::div", divide},
      {"aten::dot", matmul},
      {"aten::dropout", dropout},
      {"aten::einsum", einsum},
      {"aten::elu", elu},
      {"aten::embedding", embedding},
      {"aten::empty_like", zeros_like},
      {"aten::eq", equal},
      {"aten::erf", unary<"Erf">},
      {"aten::exp", unary<"Exp">},
      {"aten::expand", expand},
      {"aten::expand_as", expand_as},
      {"aten::feature_dropout", dropout},
      {"aten::fill", fill},
      {"aten::flatten", flatten},
      {"aten::flip", flip},
      {"aten::floor", rounded<"Floor">},
      {"aten::full", full},
      {"aten::full_like", full_like},
      {"aten::gather", gather},
      {"aten::ge", greater_equal},
      {"aten::gelu", gelu},
      {"aten::group_norm", group_norm},
      {"aten::gru", gru},
      {"aten::gt", greater},
      {"aten::hardswish", hardswish},
      {"aten::hardtanh", hardtanh},
      {"aten::index", index},
      {"aten::index_add", index_add},
      {"aten::index_select", index_select},
      {"aten::instance_norm", instance_norm},
      {"aten::isnan", is_nan},
      {"aten::layer_norm", layer_norm},
      {"aten::le", less_equal},
      {"aten::leaky_relu", leaky_relu},
      {"aten::linalg_vector_norm", vector_norm},
      {"aten::linear", linear},
      {"aten::log", unary<"Log">},
      {"aten::log_softmax", log_softmax},
      {"aten::logical_and", logical_and},
      {"aten::logical_not", unary<"Not">},
      {"aten::logical_or", logical_or},
      {"aten::lstm", lstm},
      {"aten::lt", less},
      {"aten::masked_fill", masked_fill},
      {"aten::matmul", matmul},
      {"aten::max", largest},
      {"aten::max_pool1d", max_pool},
      {"aten::max_pool2d", max_pool},
      {"aten::max_pool3d", max_pool},
      {"aten::maximum", maximum},
      {"aten::mean", mean},
      {"aten::min", smallest},
      {"aten::minimum", minimum},
      {"aten::mish", mish},
      {"aten::mm", matmul},
      {"aten::mul", mul},
      {"aten::mv", matmul},
      {"aten::narrow", narrow},
      {"aten::ne", not_equal},
      {"aten::neg", unary<"Neg">},
      {"aten::norm", power_norm},
      {"aten::ones", ones},
      {"aten::ones_like", ones_like},
      {"aten::outer", outer},
      {"aten::permute", permute},
      {"aten::pow", power},
      {"aten::randn_like", normal_like},
      {"aten::reciprocal", unary<"Reciprocal">},
      {"aten::relu", relu},
      {"aten::relu6", relu6},
      {"aten::repeat", repeat},
      {"aten::reshape", reshape},
      {"aten::reshape_as", reshape_as},
      {"aten::rms_norm", rms_norm},
      {"aten::rnn_relu", rnn_relu},
      {"aten::rnn_tanh", rnn_tanh},
      {"aten::round", rounded<"Round">},
      {"aten::rsqrt", rsqrt},
      {"aten::rsub", rsub},
      {"aten::scalar_tensor", scalar_tensor},
      {"aten::scaled_dot_product_attention", attention},
      {"aten::scatter_add", scatter_add},
      {"aten::select", select},
      {"aten::sigmoid", unary<"Sigmoid">},
      {"aten::sign", sign},
      {"aten::silu", silu},
      {"aten::sin", unary<"Sin">},
      {"aten::slice", slice},
      {"aten::softmax", softmax},
      {"aten::softplus", softplus},
      {"aten::split", split_evenly},
      {"aten::split_with_sizes", split_with_sizes},
      {"aten::sqrt", unary<"Sqrt">},
      {"aten::square", square},
      {"aten::squeeze", squeeze},
      {"aten::stack", stack},
      {"aten::sub", sub},
      {"aten::sum", sum},
      {"aten::t", transpose_matrix},
      {"aten::tanh", unary<"Tanh">},
      {"aten::to", converted},
      {"aten::topk", topk},
      {"aten::transpose", transpose},
      {"aten::tril", lower_triangle},
      {"aten::triu", upper_triangle},
      {"aten::type_as", converted},
      {"aten::unbind", unbind},
      {"aten::unflatten", unflatten},
      {"aten::unsafe_chunk", split_evenly},
      {"aten::unsafe_split", split_evenly},
      {"aten::unsafe_split_with_sizes", split_with_sizes},
      {"aten::unsqueeze", unsqueeze},
      {"aten::upsample_bilinear2d", resize_linear},
      {"aten::upsample_nearest2d", resize_nearest},
      {"aten::view", reshape},
      {"aten::view_as", reshape_as},
      {"aten::where", where},
      {"aten::zeros", zeros},
      {"aten::zeros_like", zeros_like},
  };
  return table;
}

}  // namespace

OnnxConversion find_onnx_conversion(std::string_view op) {
  const auto found = conversions().find(op);
  return found == conversions().end() ? nullptr : found->second;
}

std::vector<std::string_view> onnx_operators() {
  std::vector<std::string_view> names;
  for (const auto& [name, conversion] : conversions()) names.push_back(name);
  return names;
}

}  // namespace levin
