#pragma once

#include <levin/core/export/onnx_graph.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin {

/// Turns a traced graph into one of ONNX, node by node.
///
/// Whole numbers that are known at run time alone, such as the size of the batch, are vectors of one element in ONNX.
class OnnxConverter {
 public:
  /// `script`: the graph's first input. `inputs`: the names of the others.
  OnnxConverter(OnnxGraph& graph, const torch::jit::Module& script, const torch::jit::Graph& traced,
                const std::vector<std::string>& inputs);

  /// Converts every node. Throws levin::Error naming what has no counterpart, with its units.
  void run();
  /// The name of a value's counterpart.
  std::string name_of(const torch::jit::Value& value);

 private:
  void resolve_attribute(const torch::jit::Node& node);
  void check_operators() const;
  /// Throws levin::Error for a write into a tensor that something else sees.
  void check_writes() const;

  friend class OnnxNode;

  OnnxGraph& graph_;
  const torch::jit::Graph& traced_;
  std::unordered_map<const torch::jit::Value*, std::string> names_;
  /// Elements of lists and tuples.
  std::unordered_map<const torch::jit::Value*, std::vector<std::string>> lists_;
  /// The script's modules and tensors, with their dotted names.
  std::unordered_map<const torch::jit::Value*, std::pair<std::string, c10::IValue>> attributes_;
};

/// A node under conversion: its arguments by the names of the operator's schema.
class OnnxNode {
 public:
  OnnxNode(OnnxConverter& converter, const torch::jit::Node& node);

  const torch::jit::Node& node() const { return node_; }
  bool has(std::string_view argument) const;
  /// Whether an optional argument is None, or the operator has none of the name.
  bool is_none(std::string_view argument) const;

  // What is known when the model is exported. Each throws levin::Error for what is computed at run time.
  int64_t integer(std::string_view argument) const;
  double real(std::string_view argument) const;
  at::Scalar number_given(std::string_view argument) const;
  bool boolean(std::string_view argument) const;
  std::string text(std::string_view argument) const;
  std::vector<int64_t> integers(std::string_view argument) const;
  std::vector<double> reals(std::string_view argument) const;
  std::optional<c10::IValue> constant(std::string_view argument) const;
  at::Tensor weight(std::string_view argument) const;
  std::vector<at::Tensor> weights(std::string_view argument) const;

  // What the trace says of a tensor. A size of -1 changes with the batch.
  int64_t rank(std::string_view argument) const;
  at::ScalarType type(std::string_view argument) const;
  at::ScalarType type(const torch::jit::Value& value, std::string_view argument) const;
  std::vector<int64_t> sizes(std::string_view argument) const;
  std::vector<int64_t> sizes(const torch::jit::Value& value) const;
  /// One size. Throws levin::Error where it changes with the batch.
  int64_t fixed_size(std::string_view argument, int64_t dimension) const;
  at::ScalarType result_type(size_t output = 0) const;
  std::vector<int64_t> result_sizes() const;
  int64_t result_rank() const;
  /// The type in which LibTorch compares two arguments, of which the second may be a number.
  at::ScalarType common_type(std::string_view a, std::string_view b) const;
  /// Whether an argument is a number, not a tensor.
  bool is_number(std::string_view argument) const;
  /// The argument as a dimension of a tensor, counted from the front.
  int64_t dimension(std::string_view argument, int64_t rank) const;

  // Names of values.
  std::string tensor(std::string_view argument) const;
  /// A tensor or a number, as a tensor of a type.
  std::string operand(std::string_view argument, at::ScalarType type) const;
  std::string operand(const torch::jit::Value& value, at::ScalarType type) const;
  /// A number as a vector of one whole number.
  std::string number(std::string_view argument) const;
  /// A list of numbers as a vector.
  std::string shape(std::string_view argument) const;
  /// A list of numbers, each as a vector of one element.
  std::vector<std::string> shape_elements(std::string_view argument) const;
  /// A list of tensors.
  std::vector<std::string> tensors(std::string_view argument) const;
  /// Whether the graph makes the list of single values.
  bool has_elements(std::string_view argument) const;
  std::vector<const torch::jit::Value*> elements(std::string_view argument) const;

  std::string make(std::string_view type, const std::vector<std::string>& inputs,
                   const OnnxAttributes& attributes = {});
  std::vector<std::string> make_several(std::string_view type, size_t outputs, const std::vector<std::string>& inputs,
                                        const OnnxAttributes& attributes = {});
  std::string cast(const std::string& value, at::ScalarType type) const;
  std::string scalar(const at::Scalar& value, at::ScalarType type) const;
  std::string ints(const std::vector<int64_t>& values) const;
  /// Adds a tensor that was made of weights.
  std::string added(const at::Tensor& tensor) const;

  void give(const std::string& name, size_t output = 0);
  void give_list(std::vector<std::string> names);
  /// The names of the elements of a list that the node takes apart.
  std::vector<std::string> unpacked() const;
  /// Of a list that the node gives, how many elements the graph takes.
  size_t list_size() const;

  /// Ends the export: the operator cannot be converted as it is used here.
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const torch::jit::Value* find(std::string_view argument) const;
  const torch::jit::Value& value(std::string_view argument) const;
  std::optional<c10::IValue> constant(const torch::jit::Value& value) const;

  OnnxConverter& converter_;
  const torch::jit::Node& node_;
  std::string place_;
};

}  // namespace levin
