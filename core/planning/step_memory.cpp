#include <levin/core/planning/step_memory.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/devices/accounting_allocator.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace levin {

StepMemory::StepMemory(const torch::nn::Module& module, const at::Device& device) : device_(device) {
  if (device_.is_cpu()) {
    allocator_ = c10::GetCPUAllocator();
    AccountingAllocator::install();
    account_ = &AccountingAllocator::of_this_thread();
  }
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad()) continue;
    const auto* const key = parameter.unsafeGetTensorImpl();
    const auto is_known = [&](const auto& hook) { return hook.first.unsafeGetTensorImpl() == key; };
    if (std::ranges::any_of(hooks_, is_known)) continue;
    // By index: a hook that has the parameter would keep it, and the parameter the hook.
    const size_t index = hooks_.size();
    hooks_.emplace_back(parameter, parameter.register_hook([this, index](const at::Tensor& gradient) {
      on_gradient(hooks_[index].first, gradient);
    }));
  }
}

StepMemory::~StepMemory() {
  for (const auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
  // Of the priority of accounting, without which it would stay.
  if (allocator_ != nullptr) c10::SetCPUAllocator(allocator_, /*priority=*/200);
}

void StepMemory::run(const std::function<void()>& forward_backward) {
  parts_.clear();
  gradients_ = 0;
  before_ = in_use();
  restart_peak();
  runs_ = true;
  try {
    forward_backward();
  } catch (...) {
    runs_ = false;
    parts_.clear();
    throw;
  }
  runs_ = false;
  // What libraries keep for later is no part of a step.
  const int64_t kept = std::max<int64_t>(0, in_use() - before_ - gradients_);
  for (Part& part : parts_) {
    part.most = std::max<int64_t>(0, part.most - kept);
    part.at_end = std::max<int64_t>(0, part.at_end - kept);
  }
}

void StepMemory::on_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!runs_) return;
  parts_.push_back(
      {.parameter = parameter, .most = peak() - before_ - gradients_, .at_end = in_use() - before_ - gradients_});
  if (gradient.layout() == at::kStrided) gradients_ += static_cast<int64_t>(gradient.nbytes());
  restart_peak();
}

int64_t StepMemory::in_use() const {
  return account_ != nullptr ? account_->in_use() : accelerator_of(device_).memory_stats(device_).allocated;
}

int64_t StepMemory::peak() const {
  return account_ != nullptr ? account_->peak() : accelerator_of(device_).memory_stats(device_).peak;
}

void StepMemory::restart_peak() {
  if (account_ != nullptr)
    account_->restart_peak();
  else
    accelerator_of(device_).restart_peak(device_);
}

}  // namespace levin
