#include <levin/strategies/pipeline/stage_parameters.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/strategies/ranks/absent_parameter.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
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

StageParameters::StageParameters(const torch::nn::Module& module, const at::Device& device, const UsersOf& users_of,
                                 std::shared_ptr<Collective> stages, std::shared_ptr<Collective> replicas,
                                 bool divides_state)
    : stages_(std::move(stages)),
      replicas_(std::move(replicas)),
      divides_state_(divides_state && replicas_ != nullptr) {
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
                .offset = 0,
                .owner = users.empty() ? last : *users.begin(),
                .is_parameter = parameters.contains(tensor.unsafeGetTensorImpl()),
                .is_shared = users.size() != 1 && last > 0,
                .is_used_here = users.empty() || users.contains(here)};
    // Left by an earlier call; a checkpoint has its values.
    if (entry.is_used_here && is_absent(tensor)) tensor.set_data(at::zeros_like(tensor.detach()));
    if (entry.is_used_here && tensor.device() != device) tensor.set_data(tensor.to(device));
    if (!is_own(entry))
      entry.stand_in =
          at::empty({0}, tensor.options().device(device).requires_grad(false)).requires_grad_(tensor.requires_grad());
    if (!entry.is_used_here)
      tensor.set_data(absent_tensor(
          tensor, device,
          fmt::format("[pipeline] the {} '{}' is on the rank of stage {}; this is stage {}; hint: use it in the "
                      "elements of the sequential that is cut",
                      entry.is_parameter ? "parameter" : "buffer", name, entry.owner, here)));
    if (entry.is_parameter && is_own(entry) && divides_state_) {
      if (!tensor.is_contiguous()) tensor.set_data(tensor.contiguous());
      const int64_t size = part_size(entry);
      entry.offset = std::min(tensor.numel(), size * replicas_->rank());
      entry.stand_in = tensor.detach()
                           .view({-1})
                           .narrow(0, entry.offset, std::min(size, tensor.numel() - entry.offset))
                           .requires_grad_(tensor.requires_grad());
    }
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
  return ParameterPart(entry.stand_in.detach(), entry.offset, entry.tensor.sizes().vec());
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
  if (replicas_ == nullptr) return;
  if (divides_state_)
    average_parts_of_gradients();
  else
    average_gradients();
}

// ---- Replicas

std::map<at::ScalarType, std::vector<StageParameters::Entry*>> StageParameters::own_parameters() {
  std::map<at::ScalarType, std::vector<Entry*>> by_type;
  for (Entry& entry : entries_)
    if (entry.is_parameter && is_own(entry)) by_type[entry.tensor.scalar_type()].push_back(&entry);
  return by_type;
}

int64_t StageParameters::part_size(const Entry& entry) const {
  return (entry.tensor.numel() + replicas_->world_size() - 1) / replicas_->world_size();
}

void StageParameters::send_buffers_to_replicas() {
  if (replicas_ == nullptr) return;
  const PlainTensors plain;
  std::vector<std::unique_ptr<Work>> works;
  for (const Entry& entry : entries_)
    if (!entry.is_parameter && entry.is_used_here && entry.tensor.numel() > 0)
      works.push_back(replicas_->broadcast(entry.tensor, 0));
  for (const auto& work : works) work->wait();
}

void StageParameters::average_gradients() {
  for (const auto& [type, entries] : own_parameters()) {
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> flat;
    for (Entry* entry : entries) {
      if (!entry->tensor.requires_grad()) continue;
      // A replica may have skipped its batch, or a part of the model.
      if (!entry->tensor.grad().defined())
        entry->tensor.mutable_grad() = at::zeros_like(entry->tensor, entry->tensor.options().requires_grad(false));
      gradients.push_back(entry->tensor.grad());
      flat.push_back(gradients.back().reshape({-1}));
    }
    if (flat.empty()) continue;
    const at::Tensor all = at::cat(flat);
    replicas_->all_reduce(all, ReduceOp::kMean)->wait();
    int64_t offset = 0;
    for (const at::Tensor& gradient : gradients) {
      gradient.copy_(all.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
      offset += gradient.numel();
    }
  }
}

/// A row for each replica, with its parts of all gradients one after the other.
void StageParameters::average_parts_of_gradients() {
  const int64_t ranks = replicas_->world_size();
  for (const auto& [type, entries] : own_parameters()) {
    int64_t row = 0;
    for (const Entry* entry : entries)
      if (entry->tensor.requires_grad()) row += part_size(*entry);
    if (row == 0) continue;
    const auto options = entries.front()->tensor.options().requires_grad(false);
    const at::Tensor all = at::zeros({ranks, row}, options);
    int64_t offset = 0;
    for (const Entry* entry : entries) {
      if (!entry->tensor.requires_grad()) continue;
      const int64_t size = part_size(*entry);
      if (entry->tensor.grad().defined()) {
        const at::Tensor flat = entry->tensor.grad().reshape({-1});
        for (int64_t rank = 0, begin = 0; rank < ranks && begin < flat.numel(); ++rank, begin += size) {
          const int64_t there = std::min(size, flat.numel() - begin);
          all[rank].narrow(0, offset, there).copy_(flat.narrow(0, begin, there));
        }
      }
      entry->tensor.mutable_grad().reset();
      offset += size;
    }
    at::Tensor own = at::empty({row}, options);
    replicas_->reduce_scatter(own, all.view({-1}), ReduceOp::kMean)->wait();
    offset = 0;
    for (Entry* entry : entries) {
      if (!entry->tensor.requires_grad()) continue;
      entry->stand_in.mutable_grad() = own.narrow(0, offset, entry->stand_in.numel());
      offset += part_size(*entry);
    }
  }
}

/// Every replica has stepped its part.
void StageParameters::gather_parts() {
  const int64_t ranks = replicas_->world_size();
  for (const auto& [type, entries] : own_parameters()) {
    int64_t row = 0;
    for (const Entry* entry : entries) row += part_size(*entry);
    const auto options = entries.front()->tensor.options().requires_grad(false);
    const at::Tensor all = at::zeros({ranks, row}, options);
    at::Tensor own = at::zeros({row}, options);
    int64_t offset = 0;
    for (const Entry* entry : entries) {
      own.narrow(0, offset, entry->stand_in.numel()).copy_(entry->stand_in);
      offset += part_size(*entry);
    }
    replicas_->all_gather(all.view({-1}), own)->wait();
    offset = 0;
    for (const Entry* entry : entries) {
      const int64_t size = part_size(*entry);
      const at::Tensor flat = entry->tensor.detach().view({-1});
      for (int64_t rank = 0, begin = 0; rank < ranks && begin < flat.numel(); ++rank, begin += size) {
        const int64_t there = std::min(size, flat.numel() - begin);
        flat.narrow(0, begin, there).copy_(all[rank].narrow(0, offset, there));
      }
      offset += size;
    }
  }
}

// ---- Values

void StageParameters::send(bool buffers) {
  const PlainTensors plain;
  if (divides_state_) gather_parts();
  std::vector<std::unique_ptr<Work>> works;
  std::vector<at::Tensor> passing_by;  // lives until the broadcasts are done
  for (Entry& entry : entries_) {
    if (!entry.is_shared || (!entry.is_parameter && !buffers)) continue;
    at::Tensor tensor = entry.tensor.detach();
    if (!entry.is_used_here) passing_by.push_back(tensor = at::empty_like(tensor));
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
