#include <levin/strategies/replicas/replica_logs.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/metrics/metric.h>
#include <levin/core/metrics/metric_reference.h>

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

namespace levin {
namespace {

[[noreturn]] void refuse_manual_optimization(const char* call) {
  throw Error("data_parallel",
              fmt::format("{} was called in a step under data parallelism, whose replicas have no optimizer of their "
                          "own; valid: automatic optimization; hint: use strategy ddp for manual optimization",
                          call));
}

double combined(LogReduce reduce, double a, double b) {
  switch (reduce) {
    case LogReduce::kMin:
      return b < a || std::isnan(b) ? b : a;
    case LogReduce::kMax:
      return b > a || std::isnan(b) ? b : a;
    default:
      return a + b;
  }
}

at::Tensor combined(LogReduce reduce, const at::Tensor& a, const at::Tensor& b) {
  switch (reduce) {
    case LogReduce::kMin:
      return at::minimum(a, b);
    case LogReduce::kMax:
      return at::maximum(a, b);
    default:
      return a + b;
  }
}

}  // namespace

struct ReplicaLogs::Entry {
  std::string name;
  LogOptions options;
  int64_t occurrence = 0;  ///< how often the replica logged the name before, in this step
  size_t replica = 0;
  // One of these.
  double number = 0;
  at::Tensor tensor;  ///< on a device, or of a number of elements that cannot be logged
  metrics::MetricReference metric;
};

/// The runtime of one replica.
class ReplicaLogs::Recorder final : public detail::ModuleRuntime {
 public:
  Recorder(at::Device device, size_t replica, bool gathers) : device_(device), replica_(replica), gathers_(gathers) {}

  void begin(detail::ModuleRuntime& origin) {
    origin_ = &origin;
    entries_.clear();
  }
  const std::vector<Entry>& entries() const { return entries_; }

  Trainer& trainer() override { return origin_->trainer(); }
  const at::Device& device() const override { return device_; }
  int64_t dataloader_idx() const override { return origin_->dataloader_idx(); }
  const std::vector<OptimizerHandle*>& optimizers() override { return origin_->optimizers(); }
  void manual_backward(const at::Tensor&, const BackwardOptions&) override {
    refuse_manual_optimization("manual_backward()");
  }
  void clip_gradients(OptimizerHandle&, double, ClipAlgorithm, bool) override {
    refuse_manual_optimization("clip_gradients()");
  }
  at::Tensor all_gather(const at::Tensor& tensor, bool sync_grads) override {
    if (gathers_) return origin_->all_gather(tensor, sync_grads);
    // Replicas are no ranks, and come to it in any order.
    throw Error("module",
                "all_gather() was called in the step of a replica (strategy dp or ddp2), which holds a part of its "
                "rank's batch; hint: call it in training_step_end, validation_step_end or test_step_end, which see the "
                "gathered outputs");
  }

  void log(std::string_view name, double value, const LogOptions& options) override {
    add(name, options).number = value;
  }
  void log(std::string_view name, metrics::Metric& metric, const LogOptions& options) override {
    add(name, options).metric = metrics::MetricReference(metric);
  }
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options) override {
    Entry& entry = add(name, options);
    // Both are copies: the step may go on to change the tensor. Reading a number on the host waits for nothing.
    if (value.is_cpu() && value.numel() == 1) {
      entry.number = value.item<double>();
    } else {
      const c10::InferenceMode ordinary(false);
      const at::NoGradGuard no_grad;
      entry.tensor = value.detach().clone();
    }
  }

 private:
  Entry& add(std::string_view name, const LogOptions& options) {
    const int64_t before =
        std::count_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
    entries_.push_back({.name = std::string(name), .options = options, .occurrence = before, .replica = replica_});
    return entries_.back();
  }

  at::Device device_;
  size_t replica_;
  bool gathers_;
  detail::ModuleRuntime* origin_ = nullptr;
  std::vector<Entry> entries_;
};

ReplicaLogs::ReplicaLogs(const std::vector<at::Device>& devices, bool gathers) : device_(devices.front()) {
  for (const auto& device : devices)
    recorders_.push_back(std::make_unique<Recorder>(device, recorders_.size(), gathers));
}

ReplicaLogs::~ReplicaLogs() = default;

void ReplicaLogs::begin(detail::ModuleRuntime& origin) {
  origin_ = &origin;
  for (const auto& recorder : recorders_) recorder->begin(origin);
}

detail::ModuleRuntime& ReplicaLogs::runtime(int64_t replica) { return *recorders_.at(static_cast<size_t>(replica)); }

/// The entries of all replicas, from `replica` on, that were logged under the same name for the same time. Empty when a
/// replica before has one, which then stands for all.
std::vector<const ReplicaLogs::Entry*> ReplicaLogs::gather(const Entry& first, size_t replica, size_t replicas) const {
  std::vector<const Entry*> found;
  for (size_t other = 0; other < replicas; ++other) {
    for (const Entry& entry : recorders_[other]->entries()) {
      if (entry.name != first.name || entry.occurrence != first.occurrence) continue;
      if (other < replica) return {};
      found.push_back(&entry);
      break;
    }
  }
  return found;
}

void ReplicaLogs::replay(const std::vector<LossWeight>& weights) {
  for (size_t replica = 0; replica < weights.size(); ++replica) {
    for (const Entry& entry : recorders_[replica]->entries()) {
      const auto entries = gather(entry, replica, weights.size());
      if (entries.empty()) continue;
      if (entry.metric)
        replay_metric(entries);
      else
        replay_value(entries, weights);
    }
  }
}

void ReplicaLogs::replay_value(const std::vector<const Entry*>& entries, const std::vector<LossWeight>& weights) {
  const Entry& first = *entries.front();
  LogOptions options = first.options;
  // Where every replica logs and none says otherwise, the values together weigh what the batch does.
  bool own_weights = entries.size() < weights.size();
  bool on_device = false;
  LossWeight weight_sum = 0;
  std::vector<LossWeight> entry_weights;
  for (const Entry* entry : entries) {
    if (entry->tensor.defined() && entry->tensor.numel() != 1) {
      origin_->log(first.name, entry->tensor, options);  // which refuses it
      return;
    }
    const auto& given = entry->options.batch_size;
    own_weights |= given.has_value();
    entry_weights.push_back(given ? LossWeight(*given) : weights[entry->replica]);
    weight_sum += entry_weights.back();
    on_device |= entry->tensor.defined() || !entry_weights.back().on_host();
  }
  // A sum that only the device has is the batch's: the host waits for nothing.
  if (own_weights && weight_sum.on_host()) options.batch_size = std::llround(*weight_sum.on_host());

  // A mean moves from value to value by the share of each in those up to it, so that equal values stay what they are.
  // What weighs nothing may be NaN, the mean of nothing.
  std::vector<double> shares;  // where the host has the weights
  if (weight_sum.on_host()) {
    double sum = 0;
    for (const LossWeight& weight : entry_weights) {
      sum += *weight.on_host();
      shares.push_back(sum == 0 ? 0 : *weight.on_host() / sum);
    }
  }
  const auto combine = [&](const auto& value, const auto& next, size_t i) {
    using Value = std::decay_t<decltype(value)>;
    if (options.reduce != LogReduce::kMean) return Value(combined(options.reduce, value, next));
    if (shares[i] == 0 || shares[i] == 1) return Value(shares[i] == 0 ? value : next);
    return Value(value + (next - value) * shares[i]);
  };
  if (!on_device) {
    double value = first.number;
    for (size_t i = 1; i < entries.size(); ++i) value = combine(value, entries[i]->number, i);
    origin_->log(first.name, value, options);
    return;
  }
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  const auto tensor_of = [&](const Entry& entry) {
    const auto type = at::TensorOptions().dtype(at::kDouble).device(device_);
    return entry.tensor.defined() ? entry.tensor.reshape({}).to(type, /*non_blocking=*/true)
                                  : at::scalar_tensor(entry.number, type);
  };
  at::Tensor value = tensor_of(first);
  at::Tensor sum = shares.empty() ? entry_weights.front().on(device_).to(at::kDouble) : at::Tensor();
  for (size_t i = 1; i < entries.size(); ++i) {
    const at::Tensor next = tensor_of(*entries[i]);
    if (!shares.empty() || options.reduce != LogReduce::kMean) {
      value = combine(value, next, i);
      continue;
    }
    const at::Tensor weight = entry_weights[i].on(device_).to(at::kDouble);
    sum = sum + weight;
    value = at::where(weight == 0, value, at::where(weight == sum, next, value + (next - value) * (weight / sum)));
  }
  origin_->log(first.name, value, options);
}

void ReplicaLogs::replay_metric(const std::vector<const Entry*>& entries) {
  const Entry& first = *entries.front();
  if (first.replica == 0) metrics_of_module_[first.name] = first.metric;
  const auto known = metrics_of_module_.find(first.name);
  // Until the module itself has logged it, the replica's metric keeps what it has seen.
  if (known == metrics_of_module_.end()) return;
  metrics::Metric& metric = *known->second.get(first.name);
  for (const Entry* entry : entries) {
    metrics::Metric* const of_replica = entry->metric.get(first.name);
    if (of_replica == &metric) continue;
    metric.merge_from(*of_replica);
    of_replica->reset();
  }
  origin_->log(first.name, metric, first.options);
}

}  // namespace levin
