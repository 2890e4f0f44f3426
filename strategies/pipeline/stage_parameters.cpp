#include <levin/strategies/pipeline/stage_parameters.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/strategies/ranks/absent_parameter.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <unordered_set>
#include <utility>

namespace levin {
namespace {

/// Around whatever writes tensors that steps use later.
struct PlainTensors {
  c10::InferenceMode ordinary{false};
  at::NoGradGuard no_grad;
};

}  // namespace

StageParameters::StageParameters(const torch::nn::Module& module, const UsersOf& users_of,
                                 std::shared_ptr<Collective> stages)
    : stages_(std::move(stages)) {
  const PlainTensors plain;
  std::unordered_set<const void*> parameters;
  for (const auto& parameter : module.parameters()) parameters.insert(parameter.unsafeGetTensorImpl());
  const int64_t here = stages_->rank();
  const int64_t last = stages_->world_size() - 1;
  for (auto& [name, tensor] : named_tensors(module)) {
    const std::set<int64_t> users = users_of(tensor);
    Entry entry{.name = name,
                .tensor = tensor,
                .stand_in = tensor,
                .owner = users.empty() ? last : *users.begin(),
                .is_parameter = parameters.contains(tensor.unsafeGetTensorImpl()),
                .is_shared = users.size() != 1 && last > 0,
                .is_used_here = users.empty() || users.contains(here)};
    if (!is_own(entry))
      entry.stand_in = at::empty({0}, tensor.options().requires_grad(false)).requires_grad_(tensor.requires_grad());
    if (!entry.is_used_here)
      tensor.set_data(absent_tensor(
          tensor,
          fmt::format("[pipeline] the {} '{}' is on the rank of stage {}; this is stage {}; hint: use it in the "
                      "elements of the sequential that is cut",
                      entry.is_parameter ? "parameter" : "buffer", name, entry.owner, here)));
    if (entry.is_parameter) {
      by_tensor_[tensor.unsafeGetTensorImpl()] = entries_.size();
      names_.add(name, entry.stand_in);
    }
    by_name_[name] = entries_.size();
    entries_.push_back(std::move(entry));
  }
}

at::Tensor StageParameters::stand_in(const at::Tensor& parameter) const {
  const auto found = by_tensor_.find(parameter.unsafeGetTensorImpl());
  if (found == by_tensor_.end())
    throw Error("pipeline",
                "an optimizer was given a parameter that the module does not have; hint: register it with the module "
                "(register_parameter, register_module)");
  return entries_[found->second].stand_in;
}

std::optional<ParameterPart> StageParameters::part_of(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  const Entry& entry = entries_[found->second];
  return ParameterPart(entry.stand_in.detach(), 0, entry.tensor.sizes().vec());
}

int64_t StageParameters::bytes() const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_)
    if (entry.is_used_here) bytes += static_cast<int64_t>(entry.tensor.nbytes());
  return bytes;
}

void StageParameters::combine_gradients() {
  const PlainTensors plain;
  std::vector<std::unique_ptr<Work>> works;
  std::vector<std::pair<Entry*, at::Tensor>> sums;
  for (Entry& entry : entries_) {
    if (!entry.is_parameter || !entry.tensor.requires_grad()) continue;
    if (entry.is_shared) {
      at::Tensor gradient = entry.is_used_here ? entry.tensor.grad() : at::Tensor();
      if (!gradient.defined()) gradient = at::zeros_like(entry.tensor, entry.tensor.options().requires_grad(false));
      works.push_back(stages_->all_reduce(gradient, ReduceOp::kSum));
      sums.emplace_back(&entry, std::move(gradient));
    }
    if (!is_own(entry)) entry.stand_in.mutable_grad() = at::empty({0}, entry.stand_in.options().requires_grad(false));
  }
  for (const auto& work : works) work->wait();
  for (auto& [entry, sum] : sums) {
    if (is_own(*entry))
      entry->tensor.mutable_grad() = std::move(sum);
    else
      entry->tensor.mutable_grad().reset();
  }
}

void StageParameters::send(bool buffers) {
  const PlainTensors plain;
  std::vector<std::unique_ptr<Work>> works;
  std::vector<at::Tensor> not_used_here;
  for (Entry& entry : entries_) {
    if (!entry.is_shared || (!entry.is_parameter && !buffers)) continue;
    at::Tensor tensor = entry.tensor.detach();
    if (!entry.is_used_here) not_used_here.push_back(tensor = at::empty_like(tensor));
    works.push_back(stages_->broadcast(tensor, entry.owner));
  }
  for (const auto& work : works) work->wait();
}

void StageParameters::make_whole() {
  const PlainTensors plain;
  for (Entry& entry : entries_) {
    at::Tensor whole = entry.is_used_here ? entry.tensor.detach() : at::empty_like(entry.tensor.detach());
    stages_->broadcast(whole, entry.owner)->wait();
    if (!entry.is_used_here) entry.tensor.set_data(whole);
  }
}

}  // namespace levin
