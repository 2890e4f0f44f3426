#include <levin/core/export/onnx_converter.h>

#include <levin/core/base/error.h>
#include <levin/core/export/onnx_operators.h>
#include <levin/core/export/traced_unit.h>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <set>
#include <utility>

namespace levin {

namespace jit = torch::jit;

namespace {

/// Whether a value is there for others to be made of: it has no counterpart of its own.
bool is_made_of_attributes(const jit::Node& node) { return node.kind() == c10::prim::GetAttr; }

std::string operator_name(const jit::Node& node) { return node.kind().toQualString(); }

bool works_in_place(const jit::Node& node) {
  const auto* schema = node.maybeSchema();
  return schema != nullptr && schema->is_mutable() && operator_name(node).ends_with('_');
}

/// The name of the operator that does the same without writing into its argument.
std::string plain_name(const jit::Node& node) {
  std::string name = operator_name(node);
  if (works_in_place(node)) name.pop_back();
  return name;
}

/// Whether an output may be a view of an argument.
bool makes_view(const jit::Node& node) {
  const auto* schema = node.maybeSchema();
  return schema != nullptr && std::any_of(schema->returns().begin(), schema->returns().end(),
                                          [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

std::string place_of(const jit::Node& node) {
  const jit::ScopePtr scope = const_cast<jit::Node&>(node).scope();
  return scope == nullptr || scope->isRoot() ? "" : scope->name().toUnqualString();
}

bool is_used_after(const jit::Value& value, const jit::Node& node) {
  return std::any_of(value.uses().begin(), value.uses().end(), [&](const jit::Use& use) {
    return use.user->kind() == c10::prim::Return || use.user->isAfter(&node);
  });
}

c10::TensorTypePtr tensor_type(const jit::Value& value) { return value.type()->cast<c10::TensorType>(); }

}  // namespace

// ---- OnnxConverter

OnnxConverter::OnnxConverter(OnnxGraph& graph, const jit::Module& script, const jit::Graph& traced,
                             const std::vector<std::string>& inputs)
    : graph_(graph), traced_(traced) {
  attributes_[traced.inputs().at(0)] = {"", script._ivalue()};
  for (size_t i = 0; i < inputs.size(); ++i) names_[traced.inputs().at(i + 1)] = inputs[i];
}

void OnnxConverter::check_operators() const {
  std::set<std::string> unknown;
  for (const jit::Node* node : traced_.nodes()) {
    if (is_made_of_attributes(*node) || node->kind() == c10::prim::Constant) continue;
    if (find_onnx_conversion(plain_name(*node)) != nullptr) continue;
    unknown.insert(fmt::format("{} of {}", operator_name(*node), unit_of(*node)));
  }
  if (unknown.empty()) return;
  throw Error("export",
              fmt::format("ONNX has no counterpart here of {}; hint: export TorchScript, or write that part with other "
                          "operators (core/export/onnx_operators.cpp has the table)",
                          join(std::vector<std::string>(unknown.begin(), unknown.end()))));
}

void OnnxConverter::check_writes() const {
  // Values that may share memory have the same number.
  std::unordered_map<const jit::Value*, const jit::Value*> owners;
  const auto owner_of = [&](const jit::Value* value) {
    const auto found = owners.find(value);
    return found == owners.end() ? value : found->second;
  };
  for (const jit::Node* node : traced_.nodes())
    if ((makes_view(*node) || node->kind() == c10::prim::ListUnpack) && !node->inputs().empty())
      for (const jit::Value* output : node->outputs()) owners[output] = owner_of(node->input(0));

  for (const jit::Node* node : traced_.nodes()) {
    if (!works_in_place(*node)) continue;
    const jit::Value* written = node->input(0);
    // What the tracer sees of the tensor afterwards is the node's output, and what is made of that.
    const bool is_seen = std::any_of(owners.begin(), owners.end(), [&](const auto& entry) {
      return entry.second == owner_of(written) && entry.first->node()->isBefore(node) &&
             is_used_after(*entry.first, *node);
    });
    if (is_seen || is_used_after(*owner_of(written), *node) || names_.contains(owner_of(written)) ||
        is_made_of_attributes(*owner_of(written)->node()))
      throw Error("export",
                  fmt::format("{} of {} writes in place into a tensor that is a part of another, or an input or "
                              "parameter of the model, which ONNX cannot; hint: make a new tensor",
                              operator_name(*node), unit_of(*node)));
  }
}

void OnnxConverter::run() {
  check_operators();
  check_writes();
  for (const jit::Node* node : traced_.nodes()) {
    if (is_made_of_attributes(*node)) {
      resolve_attribute(*node);
    } else if (node->kind() != c10::prim::Constant) {
      graph_.set_origin(fmt::format("{} of {}", operator_name(*node), unit_of(*node)));
      OnnxNode converted(*this, *node);
      find_onnx_conversion(plain_name(*node))(converted);
    }
  }
}

void OnnxConverter::resolve_attribute(const jit::Node& node) {
  const auto& [path, owner] = attributes_.at(node.input());
  const std::string& name = node.s(c10::attr::name);
  attributes_[node.output()] = {path.empty() ? name : path + "." + name, owner.toObject()->getAttr(name)};
}

std::string OnnxConverter::name_of(const jit::Value& value) {
  if (const auto known = names_.find(&value); known != names_.end()) return known->second;
  if (const auto attribute = attributes_.find(&value); attribute != attributes_.end())
    return names_[&value] = graph_.weight(attribute->second.first, attribute->second.second.toTensor());
  const auto constant = jit::toIValue(&value);
  LEVIN_CHECK(constant.has_value(), "a value of the trace has no counterpart: " + value.debugName());
  if (constant->isNone()) return "";
  if (constant->isTensor()) return names_[&value] = graph_.constant(constant->toTensor());
  if (constant->isInt()) return names_[&value] = graph_.ints({constant->toInt()});
  if (constant->isDouble())
    return names_[&value] = graph_.constant(at::scalar_tensor(constant->toDouble(), at::kDouble));
  throw Error("export", fmt::format("ONNX has no tensor for a constant of the type {}", constant->tagKind()));
}

// ---- OnnxNode

OnnxNode::OnnxNode(OnnxConverter& converter, const jit::Node& node)
    : converter_(converter), node_(node), place_(place_of(node)) {}

const jit::Value* OnnxNode::find(std::string_view argument) const {
  const auto* schema = node_.maybeSchema();
  if (schema == nullptr) return nullptr;
  const auto index = schema->argumentIndexWithName(argument);
  return index ? node_.input(static_cast<size_t>(*index)) : nullptr;
}

const jit::Value& OnnxNode::value(std::string_view argument) const {
  const jit::Value* found = find(argument);
  if (found == nullptr) refuse(fmt::format("it has no argument '{}'", argument));
  return *found;
}

bool OnnxNode::has(std::string_view argument) const { return find(argument) != nullptr; }

bool OnnxNode::is_none(std::string_view argument) const {
  const jit::Value* found = find(argument);
  if (found == nullptr) return true;
  const auto constant = jit::toIValue(found);
  return constant && constant->isNone();
}

std::optional<c10::IValue> OnnxNode::constant(std::string_view argument) const { return constant(value(argument)); }

std::optional<c10::IValue> OnnxNode::constant(const jit::Value& found) const {
  if (const auto attribute = converter_.attributes_.find(&found); attribute != converter_.attributes_.end())
    return attribute->second.second;
  auto constant = jit::toIValue(&found);
  if (constant || found.node()->kind() != c10::prim::ListConstruct) return constant;
  c10::List<int64_t> numbers;
  for (const jit::Value* element : found.node()->inputs()) {
    const auto number = jit::toIValue(element);
    if (!number || !number->isInt()) return std::nullopt;
    numbers.push_back(number->toInt());
  }
  return numbers;
}

int64_t OnnxNode::integer(std::string_view argument) const {
  const auto known = constant(argument);
  if (!known || !known->isInt()) refuse(fmt::format("'{}' is computed at run time", argument));
  return known->toInt();
}

double OnnxNode::real(std::string_view argument) const { return number_given(argument).toDouble(); }

at::Scalar OnnxNode::number_given(std::string_view argument) const {
  const auto known = constant(argument);
  if (known && known->isScalar()) return known->toScalar();
  if (known && known->isTensor() && known->toTensor().numel() == 1) return known->toTensor().item();
  refuse(fmt::format("'{}' is computed at run time", argument));
}

bool OnnxNode::boolean(std::string_view argument) const {
  const auto known = constant(argument);
  if (!known || !known->isBool()) refuse(fmt::format("'{}' is computed at run time", argument));
  return known->toBool();
}

std::string OnnxNode::text(std::string_view argument) const { return constant(argument)->toStringRef(); }

std::vector<int64_t> OnnxNode::integers(std::string_view argument) const {
  const auto known = constant(argument);
  if (known && known->isInt()) return {known->toInt()};
  if (!known || !known->isIntList()) refuse(fmt::format("'{}' is computed at run time", argument));
  return known->toIntVector();
}

std::vector<double> OnnxNode::reals(std::string_view argument) const {
  if (const auto known = constant(argument); known && known->isDoubleList()) return known->toDoubleVector();
  std::vector<double> numbers;
  for (const jit::Value* element : elements(argument)) {
    const auto known = jit::toIValue(element);
    if (!known || !known->isScalar()) refuse(fmt::format("'{}' is computed at run time", argument));
    numbers.push_back(known->toScalar().toDouble());
  }
  return numbers;
}

at::Tensor OnnxNode::weight(std::string_view argument) const {
  const auto known = constant(argument);
  if (!known || !known->isTensor()) refuse(fmt::format("'{}' is computed at run time", argument));
  return known->toTensor();
}

std::vector<at::Tensor> OnnxNode::weights(std::string_view argument) const {
  std::vector<at::Tensor> tensors;
  for (const jit::Value* element : elements(argument)) {
    const auto attribute = converter_.attributes_.find(element);
    if (attribute == converter_.attributes_.end()) refuse(fmt::format("'{}' is computed at run time", argument));
    tensors.push_back(attribute->second.second.toTensor());
  }
  return tensors;
}

int64_t OnnxNode::rank(std::string_view argument) const { return static_cast<int64_t>(sizes(argument).size()); }

at::ScalarType OnnxNode::type(std::string_view argument) const { return type(value(argument), argument); }

at::ScalarType OnnxNode::type(const jit::Value& value, std::string_view argument) const {
  if (const auto known = constant(value)) {
    if (known->isTensor()) return known->toTensor().scalar_type();
    if (known->isScalar()) return known->toScalar().type();
  }
  if (value.type()->kind() == c10::TypeKind::IntType) return at::kLong;
  if (value.type()->kind() == c10::TypeKind::FloatType) return at::kDouble;
  const auto type = tensor_type(value);
  if (type == nullptr || !type->scalarType()) refuse(fmt::format("the type of '{}' is not known", argument));
  return *type->scalarType();
}

std::vector<int64_t> OnnxNode::sizes(std::string_view argument) const { return sizes(value(argument)); }

std::vector<int64_t> OnnxNode::sizes(const jit::Value& value) const {
  if (const auto known = constant(value)) {
    if (known->isTensor()) return known->toTensor().sizes().vec();
    if (known->isScalar()) return {};
  }
  const auto type = tensor_type(value);
  if (type == nullptr || !type->dim()) refuse("the sizes of what it is given are not known");
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < *type->dim(); ++i) sizes.push_back(type->sizes()[i].value_or(-1));
  return sizes;
}

int64_t OnnxNode::fixed_size(std::string_view argument, int64_t dimension) const {
  const int64_t size = sizes(argument).at(dimension);
  if (size < 0) refuse(fmt::format("it depends on the size of dimension {}, which changes with the batch", dimension));
  return size;
}

at::ScalarType OnnxNode::result_type(size_t output) const {
  const auto type = tensor_type(*node_.outputs().at(output));
  if (type == nullptr || !type->scalarType()) refuse("the type of its result is not known");
  return *type->scalarType();
}

std::vector<int64_t> OnnxNode::result_sizes() const { return sizes(*node_.outputs().at(0)); }

int64_t OnnxNode::result_rank() const {
  const auto type = tensor_type(*node_.outputs().at(0));
  if (type == nullptr || !type->dim()) refuse("the sizes of its result are not known");
  return static_cast<int64_t>(*type->dim());
}

bool OnnxNode::is_number(std::string_view argument) const {
  const auto known = constant(argument);
  return known ? known->isScalar() : tensor_type(value(argument)) == nullptr;
}

at::ScalarType OnnxNode::common_type(std::string_view a, std::string_view b) const {
  // LibTorch's rules ask whether there are dimensions.
  const auto stand_in = [&](std::string_view argument) {
    return at::empty(std::vector<int64_t>(rank(argument), 0), type(argument));
  };
  return is_number(b) ? at::result_type(stand_in(a), at::scalar_tensor(0, type(b)).item())
                      : at::result_type(stand_in(a), stand_in(b));
}

int64_t OnnxNode::dimension(std::string_view argument, int64_t rank) const {
  const int64_t given = integer(argument);
  return given < 0 ? given + rank : given;
}

std::string OnnxNode::tensor(std::string_view argument) const { return converter_.name_of(value(argument)); }

std::string OnnxNode::operand(std::string_view argument, at::ScalarType wanted) const {
  return operand(value(argument), wanted);
}

std::string OnnxNode::operand(const jit::Value& value, at::ScalarType wanted) const {
  const auto known = constant(value);
  if (known && known->isScalar()) return scalar(known->toScalar(), wanted);
  if (known && known->isTensor() && !converter_.attributes_.contains(&value) &&
      known->toTensor().scalar_type() != wanted)
    return converter_.graph_.constant(known->toTensor().to(wanted));
  const std::string name = converter_.name_of(value);
  return value.type()->kind() != c10::TypeKind::IntType && type(value, "an operand") == wanted ? name
                                                                                               : cast(name, wanted);
}

std::string OnnxNode::number(std::string_view argument) const { return converter_.name_of(value(argument)); }

std::string OnnxNode::shape(std::string_view argument) const {
  if (const auto known = constant(argument)) return ints(known->toIntVector());
  return converter_.graph_.node(place_, "Concat", shape_elements(argument), {{"axis", int64_t{0}}});
}

std::vector<std::string> OnnxNode::shape_elements(std::string_view argument) const {
  std::vector<std::string> numbers;
  for (const jit::Value* element : elements(argument)) numbers.push_back(converter_.name_of(*element));
  return numbers;
}

std::vector<std::string> OnnxNode::tensors(std::string_view argument) const {
  const jit::Value& list = value(argument);
  if (const auto known = converter_.lists_.find(&list); known != converter_.lists_.end()) return known->second;
  if (const auto known = constant(argument); known && known->isTensorList()) {
    std::vector<std::string> names;
    for (const at::Tensor& element : known->toTensorVector()) names.push_back(converter_.graph_.constant(element));
    return names;
  }
  std::vector<std::string> names;
  for (const jit::Value* element : elements(argument)) names.push_back(converter_.name_of(*element));
  return names;
}

bool OnnxNode::has_elements(std::string_view argument) const {
  return value(argument).node()->kind() == c10::prim::ListConstruct;
}

std::vector<const jit::Value*> OnnxNode::elements(std::string_view argument) const {
  if (!has_elements(argument)) refuse(fmt::format("'{}' is computed at run time", argument));
  const jit::Value& list = value(argument);
  return {list.node()->inputs().begin(), list.node()->inputs().end()};
}

std::string OnnxNode::make(std::string_view type, const std::vector<std::string>& inputs,
                           const OnnxAttributes& attributes) {
  return converter_.graph_.node(place_, type, inputs, attributes);
}

std::vector<std::string> OnnxNode::make_several(std::string_view type, size_t outputs,
                                                const std::vector<std::string>& inputs,
                                                const OnnxAttributes& attributes) {
  return converter_.graph_.node_with_outputs(place_, type, outputs, inputs, attributes);
}

std::string OnnxNode::cast(const std::string& value, at::ScalarType type) const {
  return converter_.graph_.node(place_, "Cast", {value}, {{"to", int64_t{onnx_type(type)}}});
}

std::string OnnxNode::scalar(const at::Scalar& value, at::ScalarType type) const {
  return converter_.graph_.constant(at::scalar_tensor(value, value.type()).to(type));
}

std::string OnnxNode::ints(const std::vector<int64_t>& values) const { return converter_.graph_.ints(values); }

std::string OnnxNode::added(const at::Tensor& tensor) const { return converter_.graph_.constant(tensor); }

void OnnxNode::give(const std::string& name, size_t output) { converter_.names_[node_.outputs().at(output)] = name; }

void OnnxNode::give_list(std::vector<std::string> names) { converter_.lists_[node_.output()] = std::move(names); }

std::vector<std::string> OnnxNode::unpacked() const {
  const auto list = converter_.lists_.find(node_.input());
  if (list != converter_.lists_.end()) return list->second;
  std::vector<std::string> names;
  for (const jit::Value* element : node_.input()->node()->inputs()) names.push_back(converter_.name_of(*element));
  return names;
}

size_t OnnxNode::list_size() const {
  for (const auto& use : node_.output()->uses())
    if (use.user->kind() == c10::prim::ListUnpack) return use.user->outputs().size();
  refuse("its list is used as a whole");
}

void OnnxNode::refuse(const std::string& why) const {
  throw Error("export",
              fmt::format("{} of {} cannot be written as ONNX: {}; hint: export TorchScript, or write that part "
                          "with other operators",
                          operator_name(node_), unit_of(node_), why));
}

}  // namespace levin
