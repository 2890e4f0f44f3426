#include <levin/strategies/pipeline/stage_parameters.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/comm/balanced_owners.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/sparse_gradients.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
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
                                 std::shared_ptr<Collective> stages, StageGroups groups, Division division)
    : stages_(std::move(stages)), groups_(std::move(groups)) {
  const PlainTensors plain;
  std::unordered_set<const void*> parameters;
  for (const auto& parameter : module.parameters()) parameters.insert(parameter.unsafeGetTensorImpl());
  const int64_t here = stages_->rank();
  const int64_t last = stages_->world_size() - 1;
  // c10d's Reducer would have to know them.
  const auto sparse = parameters_with_sparse_gradients(module);
  for (auto& [name, tensor] : named_tensors(module)) {
    const auto [users, chunk] = users_of(tensor);
    Entry entry{.name = name,
                .tensor = tensor,
                .local_shard = tensor,
                .offset = 0,
                .owner = users.empty() ? last : *users.begin(),
                .chunk = ReplicaGradients::kLate,
                .is_parameter = parameters.contains(tensor.unsafeGetTensorImpl()),
                .is_shared = users.size() != 1 && last > 0,
                .is_used_here = users.empty() || users.contains(here)};
    // Left by an earlier call; a checkpoint has its values.
    if (entry.is_used_here && is_released(tensor)) tensor.set_data(at::zeros_like(tensor.detach()));
    if (entry.is_used_here && tensor.device() != device)
      replace_data(tensor, with_behaviours_of(tensor, tensor.detach().to(device)));
    if (!is_own(entry))
      entry.local_shard =
          at::empty({0}, tensor.options().device(device).requires_grad(false)).requires_grad_(tensor.requires_grad());
    if (!entry.is_used_here)
      replace_data(
          tensor,
          released_tensor(
              tensor, device,
              fmt::format("[pipeline] the {} '{}' is on the rank of stage {}; this is stage {}; hint: use it in the "
                          "elements of the sequential that is cut",
                          entry.is_parameter ? "parameter" : "buffer", name, entry.owner, here)));
    if (chunk && !entry.is_shared && !sparse.contains(tensor.unsafeGetTensorImpl())) entry.chunk = *chunk;
    entry.is_left_to_chunk = division == Division::kByChunk && divides(entry) && entry.chunk != ReplicaGradients::kLate;
    if (divides(entry) && groups_.shards != nullptr) {
      if (!tensor.is_contiguous()) tensor.set_data(tensor.contiguous());
      const int64_t size = ReplicaGradients::part_size(tensor, groups_.shards->world_size());
      entry.offset = std::min(tensor.numel(), size * groups_.shards->rank());
      entry.local_shard = tensor.detach()
                              .view({-1})
                              .narrow(0, entry.offset, std::min(size, tensor.numel() - entry.offset))
                              .requires_grad_(tensor.requires_grad());
    }
    entries_.push_back(std::move(entry));
  }
  make_replica_gradients();
}

void StageParameters::make_replica_gradients() {
  if (groups_.replicas == nullptr && groups_.shards == nullptr) return;
  std::vector<ReplicaGradients::Parameter> averaged;
  for (const Entry& entry : entries_) {
    if (divides(entry))
      averaged.push_back({.name = entry.name,
                          .tensor = entry.tensor,
                          .local_shard = entry.local_shard,
                          .chunk = entry.chunk,
                          .owner = entry.shard_owner});
  }
  replica_gradients_ = std::make_unique<ReplicaGradients>(std::move(averaged), groups_);
}

bool StageParameters::is_own(const at::Tensor& parameter) const {
  return std::ranges::any_of(entries_,
                             [&](const Entry& entry) { return entry.tensor.is_same(parameter) && is_own(entry); });
}

std::map<int64_t, std::unordered_set<const void*>> StageParameters::of_chunks() const {
  std::map<int64_t, std::unordered_set<const void*>> found;
  for (const Entry& entry : entries_)
    if (entry.is_left_to_chunk) found[entry.chunk].insert(entry.tensor.unsafeGetTensorImpl());
  return found;
}

bool StageParameters::has_shared_parameters() const {
  return std::ranges::any_of(entries_, [](const Entry& entry) { return entry.is_parameter && entry.is_shared; });
}

void StageParameters::set_local_shards(const std::vector<ParallelModel::Entry>& of_chunks) {
  std::unordered_map<const void*, const ParameterPart*> parts;
  for (const auto& entry : of_chunks) parts[entry.parameter.unsafeGetTensorImpl()] = &entry.part;
  for (Entry& entry : entries_) {
    const auto part = parts.find(entry.tensor.unsafeGetTensorImpl());
    if (part != parts.end()) entry.part_of_chunk = *part->second;
  }
}

std::vector<ParallelModel::Entry> StageParameters::entries() const {
  std::vector<ParallelModel::Entry> entries;
  for (const Entry& entry : entries_)
    entries.push_back(
        {entry.name, entry.is_parameter ? entry.tensor : at::Tensor(),
         entry.part_of_chunk.value_or(ParameterPart(entry.local_shard, entry.offset, entry.tensor.sizes().vec()))});
  return entries;
}

void StageParameters::divide_by_tensor() {
  if (groups_.shards == nullptr) return;
  const PlainTensors plain;
  std::vector<Entry*> own;
  std::vector<int64_t> sizes;
  for (Entry& entry : entries_) {
    if (!divides(entry)) continue;
    own.push_back(&entry);
    sizes.push_back(entry.tensor.numel());
  }
  const std::vector<int64_t> owners = balanced_owners(sizes, groups_.shards->world_size());
  for (size_t i = 0; i < own.size(); ++i) {
    Entry& entry = *own[i];
    if (entry.shard_owner) continue;  // an earlier optimizer's
    entry.shard_owner = owners[i];
    entry.offset = 0;
    entry.local_shard = owners[i] == groups_.shards->rank()
                            ? entry.tensor.detach()
                            : at::empty({0}, entry.tensor.options().requires_grad(false));
    entry.local_shard.requires_grad_(entry.tensor.requires_grad());
  }
  make_replica_gradients();
}

void StageParameters::drop_gradients() {
  for (Entry& entry : entries_)
    if (entry.is_parameter && !entry.is_left_to_chunk && !entry.local_shard.is_same(entry.tensor))
      entry.tensor.mutable_grad().reset();
}

void StageParameters::combine_gradients() {
  const PlainTensors plain;
  std::vector<std::unique_ptr<Work>> works;
  std::vector<std::pair<Entry*, at::Tensor>> sums;
  for (Entry& entry : entries_) {
    if (!entry.is_parameter || !entry.tensor.requires_grad()) continue;
    if (entry.is_shared) {
      at::Tensor gradient = entry.is_used_here ? dense_gradient(entry.tensor.grad()) : at::Tensor();
      if (!gradient.defined()) gradient = at::zeros_like(entry.tensor, entry.tensor.options().requires_grad(false));
      works.push_back(stages_->all_reduce(gradient, ReduceOp::kSum));
      sums.emplace_back(&entry, std::move(gradient));
    }
    if (!is_own(entry))
      entry.local_shard.mutable_grad() = at::empty({0}, entry.local_shard.options().requires_grad(false));
  }
  for (const auto& work : works) work->wait();
  for (auto& [entry, sum] : sums) {
    if (is_own(*entry))
      entry->tensor.mutable_grad() = std::move(sum);
    else
      entry->tensor.mutable_grad().reset();
  }
  if (replica_gradients_ != nullptr) replica_gradients_->finish();
}

// ---- Replicas

std::map<at::ScalarType, std::vector<StageParameters::Entry*>> StageParameters::own_parameters() {
  std::map<at::ScalarType, std::vector<Entry*>> by_type;
  for (Entry& entry : entries_)
    if (divides(entry)) by_type[entry.tensor.scalar_type()].push_back(&entry);
  return by_type;
}

void StageParameters::send_buffers_to_replicas() {
  const PlainTensors plain;
  // From the first replica of each shard, then from the first shard, to all.
  for (Collective* group : {groups_.replicas.get(), groups_.shards.get()}) {
    if (group == nullptr) continue;
    std::vector<std::unique_ptr<Work>> works;
    for (const Entry& entry : entries_)
      if (!entry.is_parameter && entry.is_used_here && entry.tensor.numel() > 0)
        works.push_back(group->broadcast(entry.tensor, 0));
    for (const auto& work : works) work->wait();
  }
}

/// Every rank has stepped its part.
void StageParameters::gather_parts() {
  std::vector<std::unique_ptr<Work>> works;
  for (const Entry& entry : entries_)
    if (entry.shard_owner) works.push_back(groups_.shards->broadcast(entry.tensor.detach(), *entry.shard_owner));
  for (const auto& work : works) work->wait();
  if (!works.empty()) return;
  const int64_t ranks = groups_.shards->world_size();
  for (const auto& [type, entries] : own_parameters()) {
    int64_t row = 0;
    for (const Entry* entry : entries) row += ReplicaGradients::part_size(entry->tensor, ranks);
    const auto options = entries.front()->tensor.options().requires_grad(false);
    const at::Tensor all = at::zeros({ranks, row}, options);
    at::Tensor own = at::zeros({row}, options);
    int64_t offset = 0;
    for (const Entry* entry : entries) {
      own.narrow(0, offset, entry->local_shard.numel()).copy_(entry->local_shard);
      offset += ReplicaGradients::part_size(entry->tensor, ranks);
    }
    groups_.shards->all_gather(all.view({-1}), own)->wait();
    offset = 0;
    for (const Entry* entry : entries) {
      const int64_t size = ReplicaGradients::part_size(entry->tensor, ranks);
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
  if (groups_.shards != nullptr) gather_parts();
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

void StageParameters::gather_full_parameters(const WholeOf& whole_of) {
  const PlainTensors plain;
  for (Entry& entry : entries_) {
    const at::Tensor values = entry.is_used_here ? entry.tensor.detach() : at::empty_like(entry.tensor.detach());
    stages_->broadcast(values, entry.owner)->wait();
    const at::Tensor whole = whole_of ? whole_of(entry.tensor, values) : values;
    if (entry.is_used_here && whole.is_cpu() && whole.is_same(values)) continue;
    entry.tensor.mutable_grad().reset();
    replace_data(entry.tensor, whole.cpu());
  }
}

}  // namespace levin
