#include <levin/core/export/onnx_graph.h>

#include <levin/build_info.h>
#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <bit>

namespace levin {
namespace {

// Field numbers of the messages in onnx/onnx.proto3.
struct ModelField {
  static constexpr protozero::pbf_tag_type kIrVersion = 1, kProducerName = 2, kProducerVersion = 3, kGraph = 7,
                                           kOpsetImport = 8;
};
struct OpsetField {
  static constexpr protozero::pbf_tag_type kDomain = 1, kVersion = 2;
};
struct OnnxGraphField {
  static constexpr protozero::pbf_tag_type kNode = 1, kName = 2, kInitializer = 5, kInput = 11, kOutput = 12;
};
struct OnnxNodeField {
  static constexpr protozero::pbf_tag_type kInput = 1, kOutput = 2, kName = 3, kOpType = 4, kAttribute = 5;
};
struct OnnxAttributeField {
  static constexpr protozero::pbf_tag_type kName = 1, kFloat = 2, kInt = 3, kString = 4, kTensor = 5, kInts = 8,
                                           kStrings = 9, kType = 20;
};
struct TensorField {
  static constexpr protozero::pbf_tag_type kDims = 1, kDataType = 2, kName = 8, kRawData = 9, kExternalData = 13,
                                           kDataLocation = 14;
};
struct EntryField {
  static constexpr protozero::pbf_tag_type kKey = 1, kValue = 2;
};
struct ValueField {
  static constexpr protozero::pbf_tag_type kName = 1, kType = 2;
};
struct TypeField {
  static constexpr protozero::pbf_tag_type kTensor = 1, kElement = 1, kShape = 2, kDim = 1, kDimValue = 1,
                                           kDimParameter = 2;
};
constexpr int64_t kIrVersion = 9;  // that of opset 20
constexpr int64_t kOpset = 20;
constexpr int32_t kFloatAttribute = 1, kIntAttribute = 2, kStringAttribute = 3, kTensorAttribute = 4,
                  kIntsAttribute = 7, kStringsAttribute = 8;
constexpr int32_t kExternalLocation = 1;
constexpr uint64_t kAlignment = 4096;  // so that the file can be mapped

static_assert(std::endian::native == std::endian::little, "raw_data is little-endian and written as it lies in memory");

/// Others are shapes and the like, which are needed to read the model.
bool is_large(const at::Tensor& tensor) { return tensor.nbytes() >= kAlignment; }

at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

void add_entry(protozero::pbf_writer& tensor, const std::string& key, const std::string& value) {
  protozero::pbf_writer entry(tensor, TensorField::kExternalData);
  entry.add_string(EntryField::kKey, key);
  entry.add_string(EntryField::kValue, value);
}

void add_facts(protozero::pbf_writer& message, const at::Tensor& tensor, const std::string& name) {
  for (const int64_t size : tensor.sizes()) message.add_int64(TensorField::kDims, size);
  message.add_int32(TensorField::kDataType, onnx_type(tensor.scalar_type()));
  if (!name.empty()) message.add_string(TensorField::kName, name);
}

void add_tensor(protozero::pbf_writer& message, const at::Tensor& tensor, const std::string& name) {
  add_facts(message, tensor, name);
  const at::Tensor host = on_host(tensor);
  message.add_bytes(TensorField::kRawData, static_cast<const char*>(host.data_ptr()), host.nbytes());
}

void add_attribute(protozero::pbf_writer& node, const OnnxAttribute& attribute) {
  protozero::pbf_writer message(node, OnnxNodeField::kAttribute);
  message.add_string(OnnxAttributeField::kName, attribute.first.data(), attribute.first.size());
  int32_t type = 0;
  if (const auto* integer = std::get_if<int64_t>(&attribute.second)) {
    message.add_int64(OnnxAttributeField::kInt, *integer);
    type = kIntAttribute;
  } else if (const auto* real = std::get_if<float>(&attribute.second)) {
    message.add_float(OnnxAttributeField::kFloat, *real);
    type = kFloatAttribute;
  } else if (const auto* text = std::get_if<std::string>(&attribute.second)) {
    message.add_bytes(OnnxAttributeField::kString, *text);
    type = kStringAttribute;
  } else if (const auto* list = std::get_if<std::vector<int64_t>>(&attribute.second)) {
    for (const int64_t value : *list) message.add_int64(OnnxAttributeField::kInts, value);
    type = kIntsAttribute;
  } else if (const auto* words = std::get_if<std::vector<std::string>>(&attribute.second)) {
    for (const std::string& word : *words) message.add_bytes(OnnxAttributeField::kStrings, word);
    type = kStringsAttribute;
  } else {
    protozero::pbf_writer tensor(message, OnnxAttributeField::kTensor);
    add_tensor(tensor, std::get<at::Tensor>(attribute.second), "");
    type = kTensorAttribute;
  }
  message.add_int32(OnnxAttributeField::kType, type);
}

void add_value(protozero::pbf_writer& graph, protozero::pbf_tag_type field, const OnnxValue& value) {
  protozero::pbf_writer message(graph, field);
  message.add_string(ValueField::kName, value.name);
  protozero::pbf_writer type(message, ValueField::kType);
  protozero::pbf_writer tensor(type, TypeField::kTensor);
  tensor.add_int32(TypeField::kElement, onnx_type(value.type));
  // A writer inside another leaves out a message that is empty, as that of a number's shape is.
  std::string dimensions;
  protozero::pbf_writer shape(dimensions);
  for (const int64_t size : value.sizes) {
    const auto name = static_cast<size_t>(-1 - size);
    if (size < 0 && name >= value.size_names.size()) {
      shape.add_message(TypeField::kDim, std::string());
      continue;
    }
    protozero::pbf_writer dimension(shape, TypeField::kDim);
    if (size < 0)
      dimension.add_string(TypeField::kDimParameter, value.size_names[name]);
    else
      dimension.add_int64(TypeField::kDimValue, size);
  }
  tensor.add_message(TypeField::kShape, dimensions);
}

}  // namespace

int32_t onnx_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return 1;
    case at::kByte:
      return 2;
    case at::kChar:
      return 3;
    case at::kShort:
      return 5;
    case at::kInt:
      return 6;
    case at::kLong:
      return 7;
    case at::kBool:
      return 9;
    case at::kHalf:
      return 10;
    case at::kDouble:
      return 11;
    case at::kBFloat16:
      return 16;
    default:
      throw Error("export", fmt::format("ONNX has no counterpart of the type {}; valid: float, double, half, bfloat16, "
                                        "bool and integers",
                                        c10::toString(type)));
  }
}

std::string OnnxGraph::node(std::string_view place, std::string_view type, const std::vector<std::string>& inputs,
                            const OnnxAttributes& attributes) {
  return node_with_outputs(place, type, 1, inputs, attributes).front();
}

std::vector<std::string> OnnxGraph::node_with_outputs(std::string_view place, std::string_view type, size_t outputs,
                                                      const std::vector<std::string>& inputs,
                                                      const OnnxAttributes& attributes) {
  const std::string name = fresh_name(place.empty() ? std::string(type) : fmt::format("{}/{}", place, type));
  std::vector<std::string> results;
  for (size_t i = 0; i < outputs; ++i)
    results.push_back(fresh_name(outputs == 1 ? name + ":out" : fmt::format("{}:out{}", name, i)));
  add_node(name, type, inputs, results, attributes);
  return results;
}

void OnnxGraph::rename_into(std::string_view place, const std::string& value, const std::string& name) {
  add_node(fresh_name(place.empty() ? "Identity" : fmt::format("{}/Identity", place)), "Identity", {value}, {name}, {});
}

void OnnxGraph::add_node(const std::string& name, std::string_view type, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs, const OnnxAttributes& attributes) {
  origins_[name] = origin_;
  nodes_.emplace_back();
  protozero::pbf_writer message(nodes_.back());
  size_t given = inputs.size();
  while (given > 0 && inputs[given - 1].empty()) --given;  // those left out at the end are not named
  for (size_t i = 0; i < given; ++i) message.add_string(OnnxNodeField::kInput, inputs[i]);
  for (const std::string& output : outputs) message.add_string(OnnxNodeField::kOutput, output);
  message.add_string(OnnxNodeField::kName, name);
  message.add_string(OnnxNodeField::kOpType, type.data(), type.size());
  for (const OnnxAttribute& attribute : attributes) add_attribute(message, attribute);
}

std::string OnnxGraph::origin(const std::string& node) const {
  const auto found = origins_.find(node);
  return found == origins_.end() ? std::string() : found->second;
}

std::string OnnxGraph::weight(const std::string& name, const at::Tensor& tensor) {
  auto& known = named_weights_[tensor.unsafeGetTensorImpl()];
  if (known.empty()) {
    known = fresh_name(name);
    add_weight(known, tensor);
  }
  return known;
}

std::string OnnxGraph::constant(const at::Tensor& tensor) {
  const std::string name = fresh_name("constant");
  add_weight(name, tensor);
  return name;
}

std::string OnnxGraph::ints(const std::vector<int64_t>& values) {
  std::string& known = vectors_[values];
  if (known.empty()) known = constant(at::tensor(values, at::kLong));
  return known;
}

std::string OnnxGraph::fresh_name(const std::string& wanted) {
  std::string name = wanted;
  for (int64_t& uses = uses_[wanted]; !names_.insert(name).second;) name = fmt::format("{}_{}", wanted, ++uses);
  return name;
}

void OnnxGraph::add_weight(const std::string& name, const at::Tensor& tensor) {
  weights_.push_back({.name = name, .tensor = tensor, .offset = outside_bytes_});
  if (is_large(tensor)) outside_bytes_ += (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t OnnxGraph::weight_bytes() const {
  uint64_t bytes = 0;
  for (const Weight& weight : weights_) bytes += weight.tensor.nbytes();
  return bytes;
}

std::vector<std::pair<uint64_t, at::Tensor>> OnnxGraph::outside_weights() const {
  std::vector<std::pair<uint64_t, at::Tensor>> outside;
  for (const Weight& weight : weights_)
    if (is_large(weight.tensor)) outside.emplace_back(weight.offset, on_host(weight.tensor));
  return outside;
}

std::string OnnxGraph::model(OnnxWeights weights, const std::string& outside) const {
  std::string bytes;
  if (weights == OnnxWeights::kInside) bytes.reserve(weight_bytes() + 1024 * (weights_.size() + nodes_.size() + 16));
  protozero::pbf_writer model(bytes);
  model.add_int64(ModelField::kIrVersion, kIrVersion);
  model.add_string(ModelField::kProducerName, "levin");
  model.add_string(ModelField::kProducerVersion, LEVIN_VERSION);
  {
    protozero::pbf_writer opset(model, ModelField::kOpsetImport);
    opset.add_string(OpsetField::kDomain, "");
    opset.add_int64(OpsetField::kVersion, kOpset);
  }
  add_graph(model, weights, outside);
  return bytes;
}

void OnnxGraph::add_graph(protozero::pbf_writer& model, OnnxWeights weights, const std::string& outside) const {
  protozero::pbf_writer graph(model, ModelField::kGraph);
  for (const std::string& node : nodes_) graph.add_message(OnnxGraphField::kNode, node);
  graph.add_string(OnnxGraphField::kName, "model");
  for (const Weight& weight : weights_) {
    if (weights == OnnxWeights::kAsInputs && is_large(weight.tensor)) continue;
    protozero::pbf_writer message(graph, OnnxGraphField::kInitializer);
    if (weights == OnnxWeights::kInside || !is_large(weight.tensor)) {
      add_tensor(message, weight.tensor, weight.name);
      continue;
    }
    add_facts(message, weight.tensor, weight.name);
    add_entry(message, "location", outside);
    add_entry(message, "offset", std::to_string(weight.offset));
    add_entry(message, "length", std::to_string(weight.tensor.nbytes()));
    message.add_int32(TensorField::kDataLocation, kExternalLocation);
  }
  for (const OnnxValue& value : inputs_) add_value(graph, OnnxGraphField::kInput, value);
  if (weights == OnnxWeights::kAsInputs)
    for (const Weight& weight : weights_)
      if (is_large(weight.tensor))
        add_value(graph, OnnxGraphField::kInput,
                  {.name = weight.name, .type = weight.tensor.scalar_type(), .sizes = weight.tensor.sizes().vec()});
  for (const OnnxValue& value : outputs_) add_value(graph, OnnxGraphField::kOutput, value);
}

}  // namespace levin
