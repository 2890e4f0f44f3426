#include <levin/core/loops/step_conditions.h>

#include <levin/core/interfaces/module.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>

namespace levin {
namespace {

/// A module's own parameters, without the list that its public functions make.
struct Registered : torch::nn::Module {
  static const auto& parameters_of(const torch::nn::Module& module) { return module.*(&Registered::parameters_); }
};

}  // namespace

StepConditions::Settings StepConditions::Settings::now() {
  return {.deterministic = at::globalContext().deterministicAlgorithms(),
          .grad_mode = at::GradMode::is_enabled(),
          .anomaly_mode = torch::autograd::AnomalyMode::is_enabled(),
          .autocast = at::autocast::is_autocast_enabled(at::kCPU),
          .threads = at::get_num_threads(),
          .default_type = c10::get_default_dtype_as_scalartype()};
}

StepConditions::StepConditions(const Module& module, const std::vector<OptimizerHandle*>& optimizers)
    : settings_(Settings::now()) {
  for (const OptimizerHandle* handle : optimizers) {
    auto& optimizer = dynamic_cast<optim::FusedOptimizer&>(handle->optimizer());
    optimizers_.emplace_back(&optimizer, optimizer.snapshot());
  }
  const auto held = [](const at::Tensor& tensor) {
    return Held{.tensor = tensor,
                .data = tensor.defined() ? tensor.const_data_ptr() : nullptr,
                .requires_grad = tensor.defined() && tensor.requires_grad()};
  };
  for (const auto& member : module.modules()) {
    Part part{.module = member,
              .training = member->is_training(),
              .children = member->children(),
              .parameters = {},
              .buffers = {}};
    for (const auto& item : Registered::parameters_of(*member)) part.parameters.push_back(held(item.value()));
    for (const auto& buffer : member->buffers(/*recurse=*/false)) part.buffers.push_back(held(buffer));
    parts_.push_back(std::move(part));
  }
}

bool StepConditions::Held::is(const at::Tensor& now) const {
  if (!now.is_same(tensor)) return false;
  return !tensor.defined() || (tensor.const_data_ptr() == data && tensor.requires_grad() == requires_grad);
}

const char* StepConditions::changed() const {
  for (const Part& part : parts_) {
    // What had none needs no list: nobody called them.
    if (!part.children.empty() && part.children != part.module->children()) return "a submodule";
    const auto& parameters = Registered::parameters_of(*part.module);
    if (!std::equal(part.parameters.begin(), part.parameters.end(), parameters.begin(), parameters.end(),
                    [](const Held& before, const auto& now) { return before.is(now.value()); }))
      return "parameters or buffers";
    if (!part.buffers.empty()) {
      const auto buffers = part.module->buffers(/*recurse=*/false);
      if (!std::equal(part.buffers.begin(), part.buffers.end(), buffers.begin(), buffers.end(),
                      [](const Held& before, const at::Tensor& now) { return before.is(now); }))
        return "parameters or buffers";
    }
    if (part.module->is_training() != part.training) return "the training mode of a part";
  }
  for (const auto& [optimizer, snapshot] : optimizers_)
    if (!optimizer->is_unchanged(snapshot)) return "the optimizer's parameters, state or options";
  if (!(Settings::now() == settings_)) return "a setting of LibTorch (threads, deterministic, anomaly, default type)";
  return nullptr;
}

}  // namespace levin
