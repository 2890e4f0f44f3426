#pragma once

#include <ATen/core/Tensor.h>
#include <protozero/pbf_writer.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace levin {

using OnnxAttribute =
    std::pair<std::string_view,
              std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<std::string>, at::Tensor>>;
using OnnxAttributes = std::vector<OnnxAttribute>;

/// A tensor that goes into or out of the graph. A size below 0 is free: -1 has the first of the names, and so on; one
/// that is beyond them has none.
struct OnnxValue {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> sizes;
  std::vector<std::string> size_names = {};
};

/// Where the weights of a model go.
enum class OnnxWeights {
  kInside,   ///< into the model
  kOutside,  ///< into a file beside it, of which the model has name, offset and length
  kAsInputs  ///< nowhere: the model takes them as inputs, for a check of all the rest
};

/// A graph of ONNX under construction. Values go by name.
class OnnxGraph {
 public:
  /// Appends a node and returns the name of its output. `place` leads the node's name; an empty input is one left out.
  std::string node(std::string_view place, std::string_view type, const std::vector<std::string>& inputs,
                   const OnnxAttributes& attributes = {});
  /// Appends a node with so many outputs.
  std::vector<std::string> node_with_outputs(std::string_view place, std::string_view type, size_t outputs,
                                             const std::vector<std::string>& inputs,
                                             const OnnxAttributes& attributes = {});
  /// Appends a node that gives a value another name.
  void rename_into(std::string_view place, const std::string& value, const std::string& name);
  /// Adds a weight under its own name, once for each tensor, and returns the name.
  std::string weight(const std::string& name, const at::Tensor& tensor);
  /// Adds a constant and returns its name.
  std::string constant(const at::Tensor& tensor);
  /// Adds a vector of whole numbers, once for each, and returns its name.
  std::string ints(const std::vector<int64_t>& values);

  void add_input(const OnnxValue& value) { inputs_.push_back(value); }
  void add_output(const OnnxValue& value) { outputs_.push_back(value); }
  /// Says what the nodes come of that are appended from now on.
  void set_origin(std::string origin) { origin_ = std::move(origin); }
  /// What the node of this name comes of; empty where there is no such node.
  std::string origin(const std::string& node) const;
  /// Keeps a name from being given to anything else.
  void reserve(const std::string& name) { names_.insert(name); }

  /// The bytes of all weights and constants.
  uint64_t weight_bytes() const;
  /// Weights in the order in which they lie outside: each begins at a multiple of 4096 bytes.
  std::vector<std::pair<uint64_t, at::Tensor>> outside_weights() const;
  /// The model as protocol-buffer bytes (onnx.proto3, ModelProto). `outside`: name of the file with the weights.
  std::string model(OnnxWeights weights, const std::string& outside) const;

 private:
  struct Weight {
    std::string name;
    at::Tensor tensor;
    uint64_t offset;  ///< in the file outside
  };

  std::string fresh_name(const std::string& wanted);
  void add_node(const std::string& name, std::string_view type, const std::vector<std::string>& inputs,
                const std::vector<std::string>& outputs, const OnnxAttributes& attributes);
  void add_weight(const std::string& name, const at::Tensor& tensor);
  void add_graph(protozero::pbf_writer& model, OnnxWeights weights, const std::string& outside) const;

  std::vector<std::string> nodes_;  ///< messages NodeProto
  std::string origin_;
  std::map<std::string, std::string> origins_;  ///< by the names of nodes
  std::vector<Weight> weights_;
  uint64_t outside_bytes_ = 0;
  std::vector<OnnxValue> inputs_;
  std::vector<OnnxValue> outputs_;
  std::map<const void*, std::string> named_weights_;
  std::map<std::vector<int64_t>, std::string> vectors_;
  std::set<std::string> names_;
  std::map<std::string, int64_t> uses_;  ///< of names that were wanted more than once
};

/// The number of an element type in onnx.proto3's TensorProto.DataType. Throws levin::Error for one that ONNX lacks.
int32_t onnx_type(at::ScalarType type);

}  // namespace levin
