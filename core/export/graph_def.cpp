#include <levin/core/export/graph_def.h>

#include <levin/core/export/model_trace.h>

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <protozero/pbf_writer.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace levin {
namespace {

namespace jit = torch::jit;

// Field numbers of the messages in tensorflow/core/framework/{graph,node_def,attr_value,tensor_shape,versions}.proto.
struct GraphField {
  static constexpr protozero::pbf_tag_type kNode = 1, kVersions = 4, kProducer = 1;
};
struct NodeField {
  static constexpr protozero::pbf_tag_type kName = 1, kOperator = 2, kInput = 3, kDevice = 4, kAttribute = 5;
};
struct AttributeField {
  static constexpr protozero::pbf_tag_type kKey = 1, kValue = 2, kList = 1, kShape = 7, kDimension = 2, kSize = 1;
};
constexpr int32_t kProducer = 22;  // what PyTorch's own writer says

/// "net.0" as the groups net/0.
std::string as_path(std::string dotted) {
  std::replace(dotted.begin(), dotted.end(), '.', '/');
  return dotted;
}

std::string unit_path(const jit::Node& node) {
  const jit::ScopePtr scope = const_cast<jit::Node&>(node).scope();
  if (scope == nullptr || scope->isRoot()) return {};
  return as_path(scope->name().toUnqualString()) + "/";
}

/// What a picture says of a value.
struct ValueDescription {
  std::optional<at::Device> device;
  std::optional<std::vector<int64_t>> sizes;
};

ValueDescription described(const jit::Value& value) {
  const auto type = value.type()->cast<c10::TensorType>();
  if (type == nullptr) return {};
  return {.device = type->device(), .sizes = type->sizes().concrete_sizes()};
}

/// Writes the nodes of a graph, whose first input is the module.
class GraphWriter {
 public:
  GraphWriter(const torch::nn::Module& module, const EvaluationTrace& trace, std::string& out)
      : trace_(trace), graph_(out) {
    for (const auto& item : module.named_parameters()) add_tensor(item.key(), item.value());
    for (const auto& item : module.named_buffers()) add_tensor(item.key(), item.value());
  }

  void write() {
    const auto inputs = trace_.graph->inputs();
    modules_[inputs.front()] = "";
    for (size_t i = 1; i < inputs.size(); ++i)
      if (inputs[i]->hasUses())
        add(*inputs[i], "input/" + as_path(trace_.inputs[i - 1]), "Input", {}, described(*inputs[i]));
    for (const jit::Node* node : trace_.graph->nodes()) write_node(*node);
    for (size_t i = 0; i < trace_.graph->outputs().size(); ++i) {
      const jit::Value& value = *trace_.graph->outputs()[i];
      write_message("output/" + as_path(trace_.outputs[i]), "Output", {&value}, described(value));
    }
    protozero::pbf_writer versions(graph_, GraphField::kVersions);
    versions.add_int32(GraphField::kProducer, kProducer);
  }

 private:
  void add_tensor(const std::string& name, const at::Tensor& tensor) {
    tensors_[as_path(name)] = {.device = tensor.device(), .sizes = tensor.sizes().vec()};
  }

  void write_node(const jit::Node& node) {
    if (node.kind() == c10::prim::GetAttr) {
      const std::string name = modules_.at(node.input()) + node.s(c10::attr::name);
      if (const auto tensor = tensors_.find(name); tensor != tensors_.end())
        add(*node.output(), name, "Parameter", {}, tensor->second);
      else
        modules_[node.output()] = name + "/";
      return;
    }
    // Numbers, lists of them and the like are no nodes of the picture.
    for (const jit::Value* output : node.outputs())
      if (has_tensors(*output))
        add(*output, unit_path(node) + node.kind().toUnqualString(), node.kind().toQualString(),
            {node.inputs().begin(), node.inputs().end()}, described(*output));
  }

  static bool has_tensors(const jit::Value& value) {
    const auto list = value.type()->cast<c10::ListType>();
    const c10::Type& element = list != nullptr ? *list->getElementType() : *value.type();
    return element.isSubtypeOf(*c10::TensorType::get()) || element.kind() == c10::TypeKind::TupleType;
  }

  /// Adds the node that gives a value, by a name like this one that no other has.
  void add(const jit::Value& value, const std::string& name, const std::string& kind,
           const std::vector<const jit::Value*>& inputs, const ValueDescription& description) {
    std::string unique = name;
    for (int i = 1; !taken_.insert(unique).second; ++i) unique = fmt::format("{}_{}", name, i);
    names_[&value] = unique;
    write_message(unique, kind, inputs, description);
  }

  void write_message(const std::string& name, const std::string& kind, const std::vector<const jit::Value*>& inputs,
                     const ValueDescription& description) {
    protozero::pbf_writer node(graph_, GraphField::kNode);
    node.add_string(NodeField::kName, name);
    node.add_string(NodeField::kOperator, kind);
    for (const jit::Value* input : inputs)
      if (const auto given = names_.find(input); given != names_.end())
        node.add_string(NodeField::kInput, given->second);
    if (const auto& device = description.device)
      node.add_string(NodeField::kDevice, fmt::format("/device:{}:{}", c10::DeviceTypeName(device->type()),
                                                      std::max<int>(device->index(), 0)));
    if (!description.sizes) return;
    protozero::pbf_writer entry(node, NodeField::kAttribute);
    entry.add_string(AttributeField::kKey, "_output_shapes");
    protozero::pbf_writer attribute(entry, AttributeField::kValue);
    protozero::pbf_writer list(attribute, AttributeField::kList);
    protozero::pbf_writer shape(list, AttributeField::kShape);
    for (const int64_t size : *description.sizes) {
      protozero::pbf_writer dimension(shape, AttributeField::kDimension);
      dimension.add_int64(AttributeField::kSize, size);
    }
  }

  const EvaluationTrace& trace_;
  protozero::pbf_writer graph_;
  std::map<std::string, ValueDescription> tensors_;   ///< of the module, by path
  std::map<const jit::Value*, std::string> names_;    ///< of the nodes that give values
  std::map<const jit::Value*, std::string> modules_;  ///< parts of the module, with a "/" at the end
  std::set<std::string> taken_;
};

}  // namespace

std::string graph_def(torch::nn::Module& module, const ExportedFunction& function, const Batch& example) {
  const EvaluationTrace trace = trace_evaluation(module, function, example);
  std::string bytes;
  GraphWriter(module, trace, bytes).write();
  return bytes;
}

}  // namespace levin
