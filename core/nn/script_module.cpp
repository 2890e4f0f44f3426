#include <levin/core/nn/script_module.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/script.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace levin {

struct ScriptModuleImpl::Script {
  torch::jit::Module module;
};

namespace {

/// A submodule of the script, which has names alone.
struct ScriptPart : torch::nn::Module {};

/// Registers what the script's module has with a module of ours: the very tensors, not copies.
template <class Register>
void adopt(const torch::jit::Module& script, Register& target) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false))
    target.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) target.register_buffer(buffer.name, buffer.value);
  for (const auto& child : script.named_children()) {
    auto part = std::make_shared<ScriptPart>();
    adopt(child.value, *part);
    target.register_module(child.name, part);
  }
}

/// The first line of what LibTorch says, which goes on with where in its sources it was.
std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

torch::jit::Module read_script(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) throw Error("script_module", fmt::format("there is no file '{}'", path));
  try {
    return torch::jit::load(path, at::kCPU);
  } catch (const std::exception& error) {
    throw Error(
        "script_module",
        fmt::format("'{}' is no TorchScript that LibTorch can read: {}; valid: a file of torch.jit.save; hint: a "
                    "state dict of torch.save holds weights alone",
                    path, first_line(error)));
  }
}

void append_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) append_tensors(element, tensors);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) append_tensors(element, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) append_tensors(entry.value(), tensors);
  } else {
    throw Error("script_module", fmt::format("the script's forward gave a {}; valid: tensors", value.tagKind()));
  }
}

}  // namespace

ScriptModuleImpl::ScriptModuleImpl(const std::string& path)
    : script_(std::make_shared<Script>(Script{read_script(path)})) {
  if (!script_->module.find_method("forward"))
    throw Error("script_module", fmt::format("the script of '{}' has no forward", path));
  adopt(script_->module, *this);
  train(script_->module.is_training());
}

at::Tensor ScriptModuleImpl::forward(const at::Tensor& input) {
  const std::vector<at::Tensor> outputs = forward_all({input});
  if (outputs.size() != 1)
    throw Error("script_module", fmt::format("the script's forward gives {}; hint: call forward_all for several",
                                             counted(static_cast<int64_t>(outputs.size()), "tensor")));
  return outputs.front();
}

std::vector<at::Tensor> ScriptModuleImpl::forward_all(const std::vector<at::Tensor>& inputs) {
  const auto& schema = script_->module.get_method("forward").function().getSchema();
  const auto is_needed = [](const c10::Argument& argument) { return !argument.default_value(); };
  const auto needed = std::count_if(schema.arguments().begin() + 1, schema.arguments().end(), is_needed);
  if (inputs.size() >= schema.arguments().size() || static_cast<int64_t>(inputs.size()) < needed)
    throw Error("script_module",
                fmt::format("the script's forward takes {}; got {}",
                            counted(static_cast<int64_t>(schema.arguments().size()) - 1, "tensor"), inputs.size()));
  std::vector<at::Tensor> outputs;
  append_tensors(script_->module.forward({inputs.begin(), inputs.end()}), outputs);
  return outputs;
}

void ScriptModuleImpl::write(const std::string& path) const {
  const std::string beside = fmt::format("{}.part-{}", path, ::getpid());
  try {
    script_->module.save(beside);
    FileSystem::current().rename(beside, path);
  } catch (const std::exception& error) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    throw Error("script_module", fmt::format("cannot write '{}': {}", path, first_line(error)));
  }
}

void ScriptModuleImpl::train(bool on) {
  torch::nn::Module::train(on);
  script_->module.train(on);
}

}  // namespace levin
