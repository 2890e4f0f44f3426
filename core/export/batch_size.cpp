#include <levin/core/export/batch_size.h>

#include <levin/core/export/traced_unit.h>

#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

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

bool are_equal(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor())
    return a.toTensor().sizes() == b.toTensor().sizes() && a.toTensor().scalar_type() == b.toTensor().scalar_type() &&
           at::equal(a.toTensor(), b.toTensor());
  return a == b;
}

class BatchSizeFreer {
 public:
  explicit BatchSizeFreer(const TracePair& traces) : traces_(traces) {}

  std::vector<std::string> run() {
    auto nodes = traces_.graph.nodes();
    auto node = nodes.begin();
    auto others = traces_.other.nodes();
    auto other = others.begin();
    for (; node != nodes.end() && other != others.end(); ++node, ++other) {
      if (!is_same_step(**node, **other)) return {*problem_};
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
                           node.kind().toQualString(), unit_of(node), traces_.rows, other.kind().toQualString(),
                           traces_.other_rows);
    return false;
  }

  void compare_constants(jit::Node& node, const jit::Node& other) {
    const c10::IValue value = jit::toIValue(node.output()).value();
    const c10::IValue of_other = jit::toIValue(other.output()).value();
    if (are_equal(value, of_other)) return;
    if (!replace(node, value, of_other))
      fixed_.push_back(fmt::format("{} is given {} with {} rows and {} with {}", user_of(node), text_of(value),
                                   traces_.rows, text_of(of_other), traces_.other_rows));
  }

  /// Replaces a number that is a multiple of the rows.
  bool replace(jit::Node& node, const c10::IValue& value, const c10::IValue& of_other) {
    const auto factor = common_factor(value, of_other);
    if (!factor) return false;
    const jit::WithInsertPoint here(&node);
    jit::Graph& graph = traces_.graph;
    jit::Value* rows = batch_size();
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

  /// How many times the rows both values are.
  std::optional<int64_t> common_factor(const c10::IValue& value, const c10::IValue& of_other) const {
    const auto of = number(value);
    const auto other = number(of_other);
    if (!of || !other || *of % traces_.rows != 0 || *other % traces_.other_rows != 0) return std::nullopt;
    const int64_t factor = *of / traces_.rows;
    return factor == *other / traces_.other_rows ? std::optional(factor) : std::nullopt;
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
    return real == static_cast<double>(static_cast<int64_t>(real)) ? std::optional(static_cast<int64_t>(real))
                                                                   : std::nullopt;
  }

  /// The rows of the input, asked for once at the graph's beginning.
  jit::Value* batch_size() {
    if (batch_size_ != nullptr) return batch_size_;
    jit::Graph& graph = traces_.graph;
    const jit::WithInsertPoint at_the_beginning(*graph.nodes().begin());
    batch_size_ = graph.insert(c10::aten::size, {graph.inputs().at(traces_.input), graph.insertConstant(0)});
    return batch_size_;
  }

  TracePair traces_;
  jit::Value* batch_size_ = nullptr;
  std::optional<std::string> problem_;
  std::vector<std::string> fixed_;
};

}  // namespace

std::vector<std::string> free_batch_size(const TracePair& traces) { return BatchSizeFreer(traces).run(); }

}  // namespace levin
