#include <levin/core/export/batch_size.h>

#include <levin/core/base/error.h>
#include <levin/core/export/traced_unit.h>

#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

namespace levin {
namespace {

namespace jit = torch::jit;

std::string text_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.numel() == 1 ? fmt::format("{}", tensor.item<double>())
                               : fmt::format("a tensor of {} values", tensor.numel());
  }
  std::ostringstream out;
  out << value;
  return out.str();
}

/// The operator that a constant is given to.
std::string user_of(const jit::Node& constant) {
  const jit::Node* node = &constant;
  while (!node->output()->uses().empty()) {
    node = node->output()->uses().front().user;
    if (node->kind() != c10::prim::ListConstruct || node->outputs().size() != 1) break;
  }
  return fmt::format("{} of {}", node->kind().toQualString(), unit_of(*node));
}

bool are_equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return at::equal(a, b) || (a.is_floating_point() && at::allclose(a, b, 0, 0, /*equal_nan=*/true));
}

/// Whether two constants are the same, a NaN being the same as another.
bool are_equal(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) return are_equal(a.toTensor(), b.toTensor());
  if (a.isDouble() && b.isDouble()) return are_equal(a.toDouble(), b.toDouble());
  if (a.isDoubleList() && b.isDoubleList())
    return std::ranges::equal(a.toDoubleVector(), b.toDoubleVector(),
                              [](double of_a, double of_b) { return are_equal(of_a, of_b); });
  return a == b;
}

/// Leaves open, in what the graph says of a value, the sizes that another trace has otherwise.
void leave_open_what_differs(jit::Value& value, const jit::Value& other) {
  const auto type = value.type()->cast<c10::TensorType>();
  const auto of_other = other.type()->cast<c10::TensorType>();
  if (type == nullptr || of_other == nullptr) return;
  const auto sizes = type->sizes().concrete_sizes();
  const auto other_sizes = of_other->sizes().concrete_sizes();
  if (!sizes || !other_sizes || sizes->size() != other_sizes->size() || *sizes == *other_sizes) return;
  std::vector<std::optional<int64_t>> common(sizes->begin(), sizes->end());
  for (size_t i = 0; i < common.size(); ++i)
    if ((*sizes)[i] != (*other_sizes)[i]) common[i] = std::nullopt;
  value.setType(type->withSymbolicShapes(c10::SymbolicShape(common)));
}

class BatchSizeFreer {
 public:
  explicit BatchSizeFreer(const TracePair& traces) : traces_(traces) {}

  std::vector<std::string> run() {
    auto nodes = traces_.graph.nodes();
    auto node = nodes.begin();
    auto others = traces_.other.nodes();
    auto other = others.begin();
    for (size_t i = 0; i < traces_.graph.inputs().size(); ++i)
      leave_open_what_differs(*traces_.graph.inputs()[i], *traces_.other.inputs()[i]);
    for (; node != nodes.end() && other != others.end(); ++node, ++other) {
      if (!is_same_step(**node, **other)) return {*problem_};
      for (size_t i = 0; i < (*node)->outputs().size(); ++i)
        leave_open_what_differs(*(*node)->outputs()[i], *(*other)->outputs()[i]);
      if ((*node)->kind() == c10::prim::Constant) compare_constants(**node, **other);
    }
    if (node != nodes.end() || other != others.end())
      return {fmt::format("the number of operators depends on the batch size: one more is {}",
                          (node != nodes.end() ? *node : *other)->kind().toQualString())};
    jit::EliminateDeadCode(traces_.graph.block());
    return fixed_;
  }

 private:
  bool is_same_step(const jit::Node& node, const jit::Node& other) {
    if (node.kind() == other.kind() && node.inputs().size() == other.inputs().size() &&
        node.outputs().size() == other.outputs().size())
      return true;
    problem_ = fmt::format("which operators run depends on the batch size: {} of {} with {} rows, {} with {}",
                           node.kind().toQualString(), unit_of(node), rows_in_words(&FreeSize::rows),
                           other.kind().toQualString(), rows_in_words(&FreeSize::other_rows));
    return false;
  }

  void compare_constants(jit::Node& node, const jit::Node& other) {
    const c10::IValue value = jit::toIValue(node.output()).value();
    const c10::IValue of_other = jit::toIValue(other.output()).value();
    if (are_equal(value, of_other)) return;
    if (!replace(node, value, of_other))
      fixed_.push_back(fmt::format("{} is given {} with {} rows and {} with {}", user_of(node), text_of(value),
                                   rows_in_words(&FreeSize::rows), text_of(of_other),
                                   rows_in_words(&FreeSize::other_rows)));
  }

  std::string rows_in_words(int64_t FreeSize::*which) const {
    std::vector<std::string> numbers;
    for (const FreeSize& size : traces_.sizes) numbers.push_back(std::to_string(size.*which));
    return join(numbers, " and ");
  }

  /// Replaces a number that is a multiple of the rows.
  bool replace(jit::Node& node, const c10::IValue& value, const c10::IValue& of_other) {
    std::optional<int64_t> factor;
    size_t which = 0;
    for (size_t i = 0; i < traces_.sizes.size(); ++i) {
      const auto found = common_factor(traces_.sizes[i], value, of_other);
      if (!found || (factor && std::abs(*factor) <= std::abs(*found))) continue;
      factor = found;
      which = i;
    }
    if (!factor) return false;
    jit::Value* rows = size_of_batch(which);
    const jit::WithInsertPoint here(&node);
    jit::Graph& graph = traces_.graph;
    if (*factor != 1) rows = graph.insert(c10::aten::mul, {rows, graph.insertConstant(*factor)});
    if (value.isTensor()) {
      if (value.toTensor().scalar_type() != at::kLong) rows = graph.insert(c10::aten::Float, {rows});
      rows = graph.insertNode(graph.createNumToTensor(rows))->output();
    } else if (value.isDouble()) {
      rows = graph.insert(c10::aten::Float, {rows});
    }
    node.output()->replaceAllUsesWith(rows);
    return true;
  }

  /// How many times a size both values are.
  static std::optional<int64_t> common_factor(const FreeSize& size, const c10::IValue& value,
                                              const c10::IValue& of_other) {
    const auto of = number(value);
    const auto other = number(of_other);
    if (!of || !other || *of % size.rows != 0 || *other % size.other_rows != 0) return std::nullopt;
    const int64_t factor = *of / size.rows;
    return factor == *other / size.other_rows ? std::optional(factor) : std::nullopt;
  }

  /// A whole number; a tensor's only where it is one that LibTorch made of a number.
  static std::optional<int64_t> number(const c10::IValue& value) {
    if (value.isInt()) return value.toInt();
    double real = 0.5;
    if (value.isDouble()) real = value.toDouble();
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      const bool is_number =
          tensor.dim() == 0 && (tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kDouble);
      if (!is_number) return std::nullopt;
      real = tensor.item<double>();
    }
    constexpr double kWhole = 9007199254740992;  // 2^53: above it, not every whole number is a double
    const bool is_whole = std::abs(real) <= kWhole && real == std::floor(real);
    return is_whole ? std::optional(static_cast<int64_t>(real)) : std::nullopt;
  }

  /// A size of an input, asked for once at the graph's beginning.
  jit::Value* size_of_batch(size_t which) {
    jit::Value*& size = sizes_[which];
    if (size != nullptr) return size;
    jit::Graph& graph = traces_.graph;
    const jit::WithInsertPoint at_the_beginning(*graph.nodes().begin());
    size = graph.insert(c10::aten::size, {graph.inputs().at(traces_.sizes[which].input), graph.insertConstant(0)});
    return size;
  }

  TracePair traces_;
  std::map<size_t, jit::Value*> sizes_;  ///< those of `traces_.sizes` that the graph has asked for
  std::optional<std::string> problem_;
  std::vector<std::string> fixed_;
};

}  // namespace

std::vector<std::string> free_batch_size(const TracePair& traces) { return BatchSizeFreer(traces).run(); }

}  // namespace levin
