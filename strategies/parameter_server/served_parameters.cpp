#include <levin/strategies/parameter_server/served_parameters.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/comm/balanced_owners.h>
#include <levin/core/interfaces/module.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace levin {
namespace {

/// Around whatever writes tensors that steps use later.
struct PlainTensors {
  c10::InferenceMode ordinary{false};
  at::NoGradGuard no_grad;
};

}  // namespace

ServedParameters::ServedParameters(Module& module, int64_t servers, int64_t rank, bool own_memory)
    : servers_(servers), rank_(rank), own_memory_(own_memory) {
  const PlainTensors plain;
  for (auto& [name, tensor] : named_unique_parameters(module)) entries_.push_back({.name = name, .tensor = tensor});
  if (std::ssize(entries_) < servers)
    throw ConfigError(
        fmt::format("parameter_server.servers is {}, and the module has {} parameter tensors to divide over them; "
                    "valid: 1 to {}",
                    servers, entries_.size(), entries_.size()));
  std::vector<int64_t> sizes;
  for (const Entry& entry : entries_) sizes.push_back(entry.tensor.numel());
  const std::vector<int64_t> owners = balanced_owners(sizes, servers_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.server = owners[i];
    const at::Tensor& tensor = entry.tensor;
    if (entry.server == rank_)
      entry.local_shard = own_memory_ ? tensor.detach().clone() : tensor.detach();
    else
      entry.local_shard = at::empty({0}, tensor.options().requires_grad(false));
    entry.local_shard.requires_grad_(tensor.requires_grad());
  }
  sections_.resize(static_cast<size_t>(servers_));
}

int64_t ServedParameters::elements(int64_t server) const {
  int64_t sum = 0;
  for (const Entry& entry : entries_)
    if (entry.server == server) sum += entry.tensor.numel();
  return sum;
}

std::vector<ParallelModel::Entry> ServedParameters::entries() const {
  std::vector<ParallelModel::Entry> entries;
  for (const Entry& entry : entries_)
    entries.push_back({entry.name, entry.tensor, ParameterPart(entry.local_shard, 0, entry.tensor.sizes().vec())});
  return entries;
}

void ServedParameters::note_trained() {
  bool grew = false;
  for (Entry& entry : entries_) {
    if (entry.is_trained || !entry.tensor.requires_grad()) continue;
    entry.is_trained = grew = true;
    entry.local_shard.requires_grad_(true);
  }
  if (grew) lay_out();
}

void ServedParameters::lay_out() {
  for (auto& sections : sections_) sections.clear();
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].is_trained) continue;
    auto& sections = sections_[static_cast<size_t>(entries_[i].server)];
    const auto type = entries_[i].tensor.scalar_type();
    auto section =
        std::find_if(sections.begin(), sections.end(), [&](const auto& other) { return other.type == type; });
    if (section == sections.end()) section = sections.insert(sections.end(), {.type = type, .entries = {}});
    section->entries.push_back(i);
    section->elements += entries_[i].tensor.numel();
  }
}

ServedParameters::Packet ServedParameters::packet(int64_t server, bool gradients) const {
  const c10::InferenceMode ordinary(false);
  Packet made;
  for (const Section& section : sections_[static_cast<size_t>(server)])
    made.push_back(at::empty({section.elements + (gradients ? std::ssize(section.entries) : 0)}, section.type));
  return made;
}

ServedParameters::Packet ServedParameters::gradient_packet(int64_t server) const { return packet(server, true); }
ServedParameters::Packet ServedParameters::value_packet(int64_t server) const { return packet(server, false); }

/// Calls `use` with each entry, its place in the packet in its shape, and its number and section's flat tensor.
template <class Use>
void ServedParameters::for_each(int64_t server, const Packet& packet, const Use& use) const {
  const auto& sections = sections_[static_cast<size_t>(server)];
  LEVIN_CHECK(packet.size() == sections.size(), "a packet has a tensor for each type");
  for (size_t i = 0; i < sections.size(); ++i) {
    int64_t offset = 0;
    for (size_t j = 0; j < sections[i].entries.size(); ++j) {
      const Entry& entry = entries_[sections[i].entries[j]];
      const int64_t size = entry.tensor.numel();
      // A gradient's mark is behind all gradients.
      const int64_t mark = sections[i].elements + static_cast<int64_t>(j);
      const at::Tensor place = packet[i].narrow(0, offset, size).view(entry.tensor.sizes());
      use(entry, place, mark < packet[i].numel() ? packet[i][mark] : at::Tensor());
      offset += size;
    }
  }
}

void ServedParameters::take_gradients(int64_t server, bool all, Packet& packet) {
  const PlainTensors plain;
  for_each(server, packet, [all](const Entry& entry, const at::Tensor& place, const at::Tensor& mark) {
    at::Tensor& gradient = entry.tensor.mutable_grad();
    mark.fill_(all || gradient.defined() ? 1 : 0);
    if (gradient.defined())
      place.copy_(dense_gradient(gradient));
    else
      place.zero_();
    gradient.reset();
  });
}

void ServedParameters::average_gradients(bool all, const std::vector<Packet>& of_others) {
  const PlainTensors plain;
  set_empty_gradients();
  if (rank_ >= servers_) return;
  std::vector<at::Tensor> own;
  std::vector<at::Tensor> shards;
  for (const Section& section : sections_[static_cast<size_t>(rank_)])
    for (const size_t i : section.entries) {
      at::Tensor& gradient = entries_[i].tensor.mutable_grad();
      if (all && !gradient.defined()) gradient = at::zeros_like(entries_[i].local_shard);
      own.push_back(dense_gradient(gradient));
      gradient = at::Tensor();
      shards.push_back(entries_[i].local_shard);
    }
  for (const Packet& packet : of_others) {
    size_t i = 0;
    for_each(rank_, packet, [&](const Entry&, const at::Tensor& place, const at::Tensor& mark) {
      at::Tensor& sum = own[i];
      const at::Tensor& shard = shards[i++];
      if (mark.item<double>() == 0) return;
      if (sum.defined())
        sum.add_(place.to(shard.device()));
      else
        sum = place.to(shard.device(), shard.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    });
  }
  const double ranks = static_cast<double>(of_others.size() + 1);
  for (size_t i = 0; i < own.size(); ++i) {
    if (!own[i].defined()) continue;
    own[i].div_(ranks);
    at::Tensor& gradient = shards[i].mutable_grad();
    if (gradient.defined())
      gradient.add_(own[i]);
    else
      gradient = std::move(own[i]);
  }
}

void ServedParameters::drop_gradients(const std::vector<at::Tensor>& but_of) {
  std::unordered_set<const c10::TensorImpl*> kept;
  for (const at::Tensor& shard : but_of) kept.insert(shard.unsafeGetTensorImpl());
  for (Entry& entry : entries_)
    if (!kept.contains(entry.local_shard.unsafeGetTensorImpl())) entry.tensor.mutable_grad().reset();
}

void ServedParameters::set_empty_gradients() {
  const PlainTensors plain;
  for (const Entry& entry : entries_)
    if (entry.is_trained && entry.server != rank_)
      entry.local_shard.mutable_grad() = at::empty({0}, entry.local_shard.options().requires_grad(false));
}

void ServedParameters::set_gradients(const Packet& packet) {
  const PlainTensors plain;
  set_empty_gradients();
  for_each(rank_, packet, [](const Entry& entry, const at::Tensor& place, const at::Tensor& mark) {
    const bool there = mark.item<double>() != 0;
    entry.local_shard.mutable_grad() = there ? place.to(entry.local_shard.device()) : at::Tensor();
  });
}

void ServedParameters::copy_values(Packet& packet) const {
  const PlainTensors plain;
  for_each(rank_, packet,
           [](const Entry& entry, const at::Tensor& place, const at::Tensor&) { place.copy_(entry.local_shard); });
}

void ServedParameters::set_values(int64_t server, const Packet& packet) {
  const PlainTensors plain;
  for_each(server, packet,
           [](const Entry& entry, const at::Tensor& place, const at::Tensor&) { entry.tensor.detach().copy_(place); });
}

void ServedParameters::load_shards() {
  const PlainTensors plain;
  for (const Entry& entry : entries_)
    if (entry.server == rank_ && own_memory_) entry.local_shard.detach().copy_(entry.tensor.detach());
}

std::vector<at::Tensor> ServedParameters::trained_shards() const {
  std::vector<at::Tensor> shards;
  for (const Entry& entry : entries_)
    if (entry.server == rank_ && entry.is_trained) shards.push_back(entry.local_shard);
  return shards;
}

}  // namespace levin
