#include <levin/core/export/onnx_operators.h>

#include <levin/core/export/onnx_converter.h>

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

void is_nan(OnnxNode& node) { node.give(node.make("IsNaN", {node.tensor("self")})); }

void round_half_to_even(OnnxNode& node) {
  if (node.has("decimals") && node.integer("decimals") != 0) node.refuse("it is given decimals; valid: 0");
  unary<"Round">(node);
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
  if (node.real("beta") != 1) node.refuse("beta is not 1");
  node.give(node.make("Softplus", {node.tensor("self")}));
}

void hardswish(OnnxNode& node) { node.give(node.make("HardSwish", {node.tensor("self")})); }
void mish(OnnxNode& node) { node.give(node.make("Mish", {node.tensor("self")})); }

void clip(OnnxNode& node, const char* low, const char* high) {
  const at::ScalarType type = node.result_type();
  const auto bound = [&](const char* name) {
    return node.is_none(name) ? std::string() : node.scalar(node.real(name), type);
  };
  node.give(node.make("Clip", {node.operand("self", type), bound(low), bound(high)}));
}
void clamp(OnnxNode& node) { clip(node, "min", "max"); }
void hardtanh(OnnxNode& node) { clip(node, "min_val", "max_val"); }
void relu6(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  node.give(node.make("Clip", {node.tensor("self"), node.scalar(0, type), node.scalar(6, type)}));
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
    other = node.make("Mul", {other, node.scalar(node.real("alpha"), type)});
  return {node.operand("self", type), other};
}

void add(OnnxNode& node) {
  if (is_of_numbers(node)) return node.give(of_numbers(node, "Add"));
  const auto [self, other] = summands(node);
  node.give(node.make("Add", {self, other}));
}

void sub(OnnxNode& node) {
  if (is_of_numbers(node)) return node.give(of_numbers(node, "Sub"));
  const auto [self, other] = summands(node);
  node.give(node.make("Sub", {self, other}));
}

void rsub(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  if (node.real("alpha") != 1) node.refuse("alpha is not 1");
  node.give(node.make("Sub", {node.operand("other", type), node.operand("self", type)}));
}

template <class Make>
void binary(OnnxNode& node, Make make) {
  const at::ScalarType type = node.result_type();
  node.give(make(node.operand("self", type), node.operand("other", type)));
}

void mul(OnnxNode& node) {
  if (is_of_numbers(node)) return node.give(of_numbers(node, "Mul"));
  if (node.result_type() == at::kBool) {
    return binary(node, [&](const std::string& a, const std::string& b) { return node.make("And", {a, b}); });
  }
  binary(node, [&](const std::string& a, const std::string& b) { return node.make("Mul", {a, b}); });
}

void divide(OnnxNode& node) {
  const bool rounds = !node.is_none("rounding_mode");
  if (rounds && node.text("rounding_mode") != "floor") node.refuse("it rounds towards zero");
  const at::ScalarType type = node.result_type();
  if (rounds && is_whole(type)) node.refuse("it divides whole numbers and rounds down");
  const std::string quotient = node.make("Div", {node.operand("self", type), node.operand("other", type)});
  node.give(rounds ? node.make("Floor", {quotient}) : quotient);
}

void power(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  node.give(node.make("Pow", {node.operand("self", type), node.operand("exponent", type)}));
}

void maximum(OnnxNode& node) {
  binary(node, [&](const std::string& a, const std::string& b) { return node.make("Max", {a, b}); });
}
void minimum(OnnxNode& node) {
  binary(node, [&](const std::string& a, const std::string& b) { return node.make("Min", {a, b}); });
}
void logical_and(OnnxNode& node) {
  node.give(node.make("And", {node.operand("self", at::kBool), node.operand("other", at::kBool)}));
}
void logical_or(OnnxNode& node) {
  node.give(node.make("Or", {node.operand("self", at::kBool), node.operand("other", at::kBool)}));
}

std::string compared(OnnxNode& node, const char* type) {
  // A number takes the tensor's type, unless it has a fraction that whole numbers lack.
  const at::ScalarType of_self = node.type("self");
  const at::ScalarType of_other = node.type("other");
  const bool keeps = node.rank("other") == 0 && (!is_whole(of_self) || is_whole(of_other));
  const at::ScalarType common = keeps ? of_self : c10::promoteTypes(of_self, of_other);
  return node.make(type, {node.operand("self", common), node.operand("other", common)});
}
void equal(OnnxNode& node) { node.give(compared(node, "Equal")); }
void not_equal(OnnxNode& node) { node.give(node.make("Not", {compared(node, "Equal")})); }
void less(OnnxNode& node) { node.give(compared(node, "Less")); }
void less_equal(OnnxNode& node) { node.give(compared(node, "LessOrEqual")); }
void greater(OnnxNode& node) { node.give(compared(node, "Greater")); }
void greater_equal(OnnxNode& node) { node.give(compared(node, "GreaterOrEqual")); }

void where(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  node.give(node.make("Where",
                      {node.operand("condition", at::kBool), node.operand("self", type), node.operand("other", type)}));
}

void masked_fill(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  node.give(node.make("Where", {node.operand("mask", at::kBool), node.operand("value", type), node.tensor("self")}));
}

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
  node.give(node.make("Reshape", {node.tensor("self"), node.shape(node.has("shape") ? "shape" : "size")}));
}

void flatten(OnnxNode& node) {
  const int64_t rank = node.rank("self");
  const int64_t begin = node.dimension("start_dim", rank);
  const int64_t end = node.dimension("end_dim", rank);
  const std::string self = node.tensor("self");
  Ints plain(begin, 0);  // 0: as in the input
  plain.push_back(-1);
  if (end == rank - 1) return node.give(node.make("Reshape", {self, node.ints(plain)}));
  const std::string rest = node.make("Shape", {self}, {{"start", end + 1}, {"end", rank}});
  node.give(node.make("Reshape", {self, concatenated(node, {node.ints(plain), rest}, 0)}));
}

void unflatten(OnnxNode& node) {
  const int64_t rank = node.rank("self");
  const int64_t dimension = node.dimension("dim", rank);
  const std::string self = node.tensor("self");
  std::vector<std::string> parts;
  if (dimension > 0) parts.push_back(node.make("Shape", {self}, {{"start", int64_t{0}}, {"end", dimension}}));
  parts.push_back(node.shape("sizes"));
  if (dimension < rank - 1) parts.push_back(node.make("Shape", {self}, {{"start", dimension + 1}, {"end", rank}}));
  node.give(node.make("Reshape", {self, concatenated(node, parts, 0)}));
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
  Ints wanted;
  if (node.has("dim")) {
    wanted = counted_from_front(node.integers("dim"), static_cast<int64_t>(sizes.size()));
  } else {
    wanted.resize(sizes.size());
    std::iota(wanted.begin(), wanted.end(), 0);
  }
  Ints squeezed;
  for (const int64_t dimension : wanted)
    if (sizes[dimension] == 1) squeezed.push_back(dimension);
  node.give(squeezed.empty() ? node.tensor("self") : node.make("Squeeze", {node.tensor("self"), node.ints(squeezed)}));
}

void expand(OnnxNode& node) {
  // -1, "as it is", is 1 for ONNX, which takes the larger of two sizes.
  if (const auto known = node.constant("size")) {
    Ints sizes = known->toIntVector();
    for (int64_t& size : sizes) size = std::max<int64_t>(size, 1);
    return node.give(node.make("Expand", {node.tensor("self"), node.ints(sizes)}));
  }
  node.give(node.make("Expand", {node.tensor("self"), node.make("Max", {node.shape("size"), node.ints({1})})}));
}

void expand_as(OnnxNode& node) {
  node.give(node.make("Expand", {node.tensor("self"), node.make("Shape", {node.tensor("other")})}));
}

void reshape_as(OnnxNode& node) {
  node.give(node.make("Reshape", {node.tensor("self"), node.make("Shape", {node.tensor("other")})}));
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

void concatenate(OnnxNode& node) {
  node.give(concatenated(node, node.tensors("tensors"), node.dimension("dim", node.result_rank())));
}

void stack(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.result_rank());
  std::vector<std::string> parts;
  for (const std::string& tensor : node.tensors("tensors"))
    parts.push_back(node.make("Unsqueeze", {tensor, node.ints({dimension})}));
  node.give(concatenated(node, parts, dimension));
}

void split_evenly(OnnxNode& node) {
  const int64_t dimension = node.dimension("dim", node.rank("self"));
  const size_t parts = node.list_size();
  const int64_t whole = node.sizes("self").at(dimension);
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
  node.give(node.make("Slice", {node.tensor("self"), node.ints({begin}), node.ints({begin + node.integer("length")}),
                                node.ints({node.dimension("dim", node.rank("self"))})}));
}

void index_select(OnnxNode& node) {
  node.give(node.make("Gather", {node.tensor("self"), node.tensor("index")},
                      {{"axis", node.dimension("dim", node.rank("self"))}}));
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
  node.give(node.make("Trilu", {node.tensor("self"), node.make("Squeeze", {node.number("diagonal"), node.ints({0})})},
                      {{"upper", upper}}));
}
void lower_triangle(OnnxNode& node) { triangle(node, 0); }
void upper_triangle(OnnxNode& node) { triangle(node, 1); }

// ---- Tensors from nothing

std::string filled(OnnxNode& node, const std::string& shape, double value) {
  return node.make("ConstantOfShape", {shape}, {{"value", at::full({1}, value, node.result_type())}});
}
std::string shape_of_self(OnnxNode& node) { return node.make("Shape", {node.tensor("self")}); }

void zeros(OnnxNode& node) { node.give(filled(node, node.shape("size"), 0)); }
void ones(OnnxNode& node) { node.give(filled(node, node.shape("size"), 1)); }
void full(OnnxNode& node) { node.give(filled(node, node.shape("size"), node.real("fill_value"))); }
void zeros_like(OnnxNode& node) { node.give(filled(node, shape_of_self(node), 0)); }
void ones_like(OnnxNode& node) { node.give(filled(node, shape_of_self(node), 1)); }
void full_like(OnnxNode& node) { node.give(filled(node, shape_of_self(node), node.real("fill_value"))); }

void arange(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
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

void reduce(OnnxNode& node, const char* type) {
  const int64_t keeps = node.has("keepdim") && node.boolean("keepdim") ? 1 : 0;
  const std::string self = node.operand("self", node.result_type());
  const bool all = !node.has("dim") || node.is_none("dim") || node.integers("dim").empty();
  node.give(node.make(type, {self, all ? std::string() : node.ints(node.integers("dim"))}, {{"keepdims", keeps}}));
}
void sum(OnnxNode& node) { reduce(node, "ReduceSum"); }
void mean(OnnxNode& node) { reduce(node, "ReduceMean"); }
void amax(OnnxNode& node) { reduce(node, "ReduceMax"); }
void amin(OnnxNode& node) { reduce(node, "ReduceMin"); }

/// The largest or smallest: of everything, of two tensors, or along a dimension with where it is.
void extreme(OnnxNode& node, const char* reduction, const char* argument, const char* of_two) {
  if (node.has("other")) {
    const at::ScalarType type = node.result_type();
    return node.give(node.make(of_two, {node.operand("self", type), node.operand("other", type)}));
  }
  if (!node.has("dim")) return reduce(node, reduction);
  const int64_t keeps = node.boolean("keepdim") ? 1 : 0;
  const int64_t dimension = node.integer("dim");
  node.give(node.make(reduction, {node.tensor("self"), node.ints({dimension})}, {{"keepdims", keeps}}), 0);
  node.give(node.make(argument, {node.tensor("self")}, {{"axis", dimension}, {"keepdims", keeps}}), 1);
}
void largest(OnnxNode& node) { extreme(node, "ReduceMax", "ArgMax", "Max"); }
void smallest(OnnxNode& node) { extreme(node, "ReduceMin", "ArgMin", "Min"); }

void where_extreme(OnnxNode& node, const char* type) {
  if (node.is_none("dim")) {
    const std::string flat = node.make("Reshape", {node.tensor("self"), node.ints({-1})});
    return node.give(node.make(type, {flat}, {{"axis", int64_t{0}}, {"keepdims", int64_t{0}}}));
  }
  node.give(
      node.make(type, {node.tensor("self")},
                {{"axis", node.integer("dim")}, {"keepdims", node.boolean("keepdim") ? int64_t{1} : int64_t{0}}}));
}
void argmax(OnnxNode& node) { where_extreme(node, "ArgMax"); }
void argmin(OnnxNode& node) { where_extreme(node, "ArgMin"); }

void cumulative_sum(OnnxNode& node) {
  node.give(node.make("CumSum", {node.operand("self", node.result_type()), node.ints({node.integer("dim")})}));
}

void topk(OnnxNode& node) {
  const auto parts = node.make_several("TopK", 2, {node.tensor("self"), node.ints({node.integer("k")})},
                                       {{"axis", node.integer("dim")},
                                        {"largest", node.boolean("largest") ? int64_t{1} : int64_t{0}},
                                        {"sorted", node.boolean("sorted") ? int64_t{1} : int64_t{0}}});
  node.give(parts[0], 0);
  node.give(parts[1], 1);
}

void softmax_of(OnnxNode& node, const char* type) {
  node.give(node.make(type, {node.operand("self", node.result_type())}, {{"axis", node.integer("dim")}}));
}
void softmax(OnnxNode& node) { softmax_of(node, "Softmax"); }
void log_softmax(OnnxNode& node) { softmax_of(node, "LogSoftmax"); }

// ---- Products

void matmul(OnnxNode& node) {
  node.give(node.make("MatMul", {node.tensor("self"), node.tensor(node.has("mat2") ? "mat2" : "other")}));
}

void addmm(OnnxNode& node) {
  node.give(
      node.make("Gemm", {node.tensor("mat1"), node.tensor("mat2"), node.tensor("self")},
                {{"alpha", static_cast<float>(node.real("alpha"))}, {"beta", static_cast<float>(node.real("beta"))}}));
}

void baddbmm(OnnxNode& node) {
  const at::ScalarType type = node.result_type();
  std::string product = node.make("MatMul", {node.tensor("batch1"), node.tensor("batch2")});
  if (node.real("alpha") != 1) product = node.make("Mul", {product, node.scalar(node.real("alpha"), type)});
  if (node.real("beta") == 0) return node.give(product);
  std::string self = node.tensor("self");
  if (node.real("beta") != 1) self = node.make("Mul", {self, node.scalar(node.real("beta"), type)});
  node.give(node.make("Add", {self, product}));
}

void linear(OnnxNode& node) {
  const std::string bias = node.is_none("bias") ? "" : node.tensor("bias");
  if (node.rank("input") == 2)
    return node.give(node.make("Gemm", {node.tensor("input"), node.tensor("weight"), bias}, {{"transB", int64_t{1}}}));
  const std::string product =
      node.make("MatMul", {node.tensor("input"), transposed(node, node.tensor("weight"), {1, 0})});
  node.give(bias.empty() ? product : node.make("Add", {product, bias}));
}

void einsum(OnnxNode& node) {
  node.give(node.make("Einsum", node.tensors("tensors"), {{"equation", node.text("equation")}}));
}

void attention(OnnxNode& node) {
  if (node.real("dropout_p") != 0) node.refuse("it drops attention weights in evaluation mode too");
  if (!node.is_none("enable_gqa") && node.boolean("enable_gqa")) node.refuse("groups share keys and values");
  const at::ScalarType type = node.result_type();
  const int64_t rank = node.rank("query");
  const int64_t width = node.sizes("query").back();
  const double scale = node.is_none("scale") ? 1 / std::sqrt(static_cast<double>(width)) : node.real("scale");
  // Both are scaled by half of it, in powers, as LibTorch's does against overflow.
  const std::string root = node.scalar(std::sqrt(scale), type);
  const std::string keys = transposed(node, node.tensor("key"), swapped(rank, rank - 2, rank - 1));
  std::string scores =
      node.make("MatMul", {node.make("Mul", {node.tensor("query"), root}), node.make("Mul", {keys, root})});
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
  const std::string weights = node.make("Softmax", {scores}, {{"axis", int64_t{-1}}});
  node.give(node.make("MatMul", {weights, node.tensor("value")}));
}

// ---- Convolutions and what goes with them

void convolve(OnnxNode& node, bool transposes) {
  const Ints kernel = node.weight("weight").sizes().slice(2).vec();
  const size_t directions = kernel.size();
  if (node.constant("padding") && node.constant("padding")->isString()) node.refuse("its padding is given by a word");
  OnnxAttributes attributes{{"kernel_shape", kernel},
                            {"strides", spread(node.integers("stride"), directions)},
                            {"pads", both_sides(spread(node.integers("padding"), directions))},
                            {"dilations", spread(node.integers("dilation"), directions)},
                            {"group", node.integer("groups")}};
  if (transposes) attributes.push_back({"output_padding", spread(node.integers("output_padding"), directions)});
  const bool batched = node.rank("input") == static_cast<int64_t>(directions) + 2;
  if (!batched) node.refuse("its input has no rows");
  node.give(node.make(transposes ? "ConvTranspose" : "Conv",
                      {node.tensor("input"), node.tensor("weight"), node.is_none("bias") ? "" : node.tensor("bias")},
                      attributes));
}
void convolution(OnnxNode& node) { convolve(node, node.has("transposed") && node.boolean("transposed")); }
void transposed_convolution(OnnxNode& node) { convolve(node, true); }

OnnxAttributes window(const OnnxNode& node) {
  const auto directions = static_cast<size_t>(node.rank("self") - 2);
  const Ints kernel = spread(node.integers("kernel_size"), directions);
  const Ints stride = node.integers("stride");
  return {{"kernel_shape", kernel},
          {"strides", stride.empty() ? kernel : spread(stride, directions)},
          {"pads", both_sides(spread(node.integers("padding"), directions))},
          {"ceil_mode", node.boolean("ceil_mode") ? int64_t{1} : int64_t{0}}};
}

void max_pool(OnnxNode& node) {
  OnnxAttributes attributes = window(node);
  attributes.push_back({"dilations", spread(node.integers("dilation"), static_cast<size_t>(node.rank("self") - 2))});
  node.give(node.make("MaxPool", {node.tensor("self")}, attributes));
}

void average_pool(OnnxNode& node) {
  if (!node.is_none("divisor_override")) node.refuse("it has a divisor of its own");
  OnnxAttributes attributes = window(node);
  attributes.push_back({"count_include_pad", node.boolean("count_include_pad") ? int64_t{1} : int64_t{0}});
  node.give(node.make("AveragePool", {node.tensor("self")}, attributes));
}

void adaptive_average_pool(OnnxNode& node) {
  const Ints wanted = node.integers("output_size");
  if (std::all_of(wanted.begin(), wanted.end(), [](int64_t size) { return size == 1; }))
    return node.give(node.make("GlobalAveragePool", {node.tensor("self")}));
  const Ints sizes = node.sizes("self");
  Ints kernel;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t size = sizes[i + 2];
    if (size % wanted[i] != 0) node.refuse(fmt::format("{} pixels are no multiple of {}", size, wanted[i]));
    kernel.push_back(size / wanted[i]);
  }
  node.give(node.make("AveragePool", {node.tensor("self")}, {{"kernel_shape", kernel}, {"strides", kernel}}));
}

/// Enlarges or shrinks to sizes that the trace has.
void resize(OnnxNode& node, const char* mode, const char* coordinates, const char* rounding) {
  const auto type = node.node().output()->type()->expect<c10::TensorType>();
  const auto sizes = type->sizes().concrete_sizes();
  if (!sizes) node.refuse("the sizes of its result are not known");
  const std::string front = node.make("Shape", {node.tensor("self")}, {{"start", int64_t{0}}, {"end", int64_t{2}}});
  const std::string back = node.ints(Ints(sizes->begin() + 2, sizes->end()));
  node.give(node.make("Resize", {node.tensor("self"), "", "", concatenated(node, {front, back}, 0)},
                      {{"mode", std::string(mode)},
                       {"coordinate_transformation_mode", std::string(coordinates)},
                       {"nearest_mode", std::string(rounding)}}));
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
  resize(node, "nearest", "asymmetric", "floor");
}
void resize_linear(OnnxNode& node) {
  if (!node.is_none("scales_h") || !node.is_none("scale_factors")) node.refuse("it is given factors; valid: sizes");
  resize(node, "linear", node.boolean("align_corners") ? "align_corners" : "half_pixel", "round_prefer_floor");
}

// ---- Normalisation

void batch_norm(OnnxNode& node) {
  if (node.boolean("training")) node.refuse("it takes the statistics of the batch in evaluation mode too");
  const at::ScalarType type = node.result_type();
  const int64_t channels = node.sizes("input").at(1);
  const auto or_filled = [&](const char* name, double value) {
    return node.is_none(name) ? node.make("Expand", {node.scalar(value, type), node.ints({channels})})
                              : node.tensor(name);
  };
  node.give(node.make("BatchNormalization",
                      {node.tensor("input"), or_filled("weight", 1), or_filled("bias", 0), node.tensor("running_mean"),
                       node.tensor("running_var")},
                      {{"epsilon", static_cast<float>(node.real("eps"))}}));
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
  const int64_t channels = node.sizes("input").at(1);
  const std::string grouped = node.make("Reshape", {node.tensor("input"), node.ints({0, groups, -1})});
  const std::string normal = node.make("InstanceNormalization",
                                       {grouped, node.make("Expand", {node.scalar(1, type), node.ints({groups})}),
                                        node.make("Expand", {node.scalar(0, type), node.ints({groups})})},
                                       {{"epsilon", static_cast<float>(node.real("eps"))}});
  std::string result = node.make("Reshape", {normal, node.make("Shape", {node.tensor("input")})});
  Ints by_channel(rank - 1, 1);
  by_channel.front() = channels;
  const auto shaped = [&](const char* name) {
    return node.make("Reshape", {node.tensor(name), node.ints(by_channel)});
  };
  if (!node.is_none("weight")) result = node.make("Mul", {result, shaped("weight")});
  if (!node.is_none("bias")) result = node.make("Add", {result, shaped("bias")});
  node.give(result);
}

void instance_norm(OnnxNode& node) {
  if (!node.boolean("use_input_stats")) return batch_norm(node);
  const at::ScalarType type = node.result_type();
  const int64_t channels = node.sizes("input").at(1);
  const auto or_filled = [&](const char* name, double value) {
    return node.is_none(name) ? node.make("Expand", {node.scalar(value, type), node.ints({channels})})
                              : node.tensor(name);
  };
  node.give(node.make("InstanceNormalization", {node.tensor("input"), or_filled("weight", 1), or_filled("bias", 0)},
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
      {"aten::ceil", unary<"Ceil">},
      {"aten::chunk", split_evenly},
      {"aten::clamp", clamp},
      {"aten::clone", same},
      {"aten::concat", concatenate},
      {"aten::constant_pad_nd", pad_with_constant},
      {"aten::contiguous", same},
      {"aten::conv1d", convolution},
      {"aten::conv2d", convolution},
      {"aten::conv3d", convolution},
      {"aten::conv_transpose1d", transposed_convolution},
      {"aten::conv_transpose2d", transposed_convolution},
      {"aten::conv_transpose3d", transposed_convolution},
      {"aten::convolution", convolution},
      {"aten::cos", unary<"Cos">},
      {"aten::cumsum", cumulative_sum},
      {"aten::detach", same},
      {"aten::div", divide},
      {"aten::dropout", dropout},
      {"aten::einsum", einsum},
      {"aten::elu", elu},
      {"aten::embedding", embedding},
      {"aten::eq", equal},
      {"aten::erf", unary<"Erf">},
      {"aten::exp", unary<"Exp">},
      {"aten::expand", expand},
      {"aten::expand_as", expand_as},
      {"aten::feature_dropout", dropout},
      {"aten::flatten", flatten},
      {"aten::floor", unary<"Floor">},
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
      {"aten::index_select", index_select},
      {"aten::instance_norm", instance_norm},
      {"aten::isnan", is_nan},
      {"aten::layer_norm", layer_norm},
      {"aten::le", less_equal},
      {"aten::leaky_relu", leaky_relu},
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
      {"aten::narrow", narrow},
      {"aten::ne", not_equal},
      {"aten::neg", unary<"Neg">},
      {"aten::ones", ones},
      {"aten::ones_like", ones_like},
      {"aten::permute", permute},
      {"aten::pow", power},
      {"aten::randn_like", normal_like},
      {"aten::reciprocal", unary<"Reciprocal">},
      {"aten::relu", unary<"Relu">},
      {"aten::relu6", relu6},
      {"aten::repeat", repeat},
      {"aten::reshape", reshape},
      {"aten::reshape_as", reshape_as},
      {"aten::rnn_tanh", rnn_tanh},
      {"aten::round", round_half_to_even},
      {"aten::rsqrt", rsqrt},
      {"aten::rsub", rsub},
      {"aten::scaled_dot_product_attention", attention},
      {"aten::select", select},
      {"aten::sigmoid", unary<"Sigmoid">},
      {"aten::sign", unary<"Sign">},
      {"aten::silu", silu},
      {"aten::sin", unary<"Sin">},
      {"aten::slice", slice},
      {"aten::softmax", softmax},
      {"aten::softplus", softplus},
      {"aten::split", split_evenly},
      {"aten::split_with_sizes", split_with_sizes},
      {"aten::sqrt", unary<"Sqrt">},
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

}  // namespace levin
