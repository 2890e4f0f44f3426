#include <levin/core/metrics/collector.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/metric.h>

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>

namespace levin::metrics {
namespace {

double read_host_scalar(const at::Tensor& value) {
  switch (value.scalar_type()) {
    case at::kFloat:
      return static_cast<double>(*value.const_data_ptr<float>());
    case at::kDouble:
      return *value.const_data_ptr<double>();
    default:
      return value.item<double>();
  }
}

double empty_value(LogReduce reduce) {
  switch (reduce) {
    case LogReduce::kMin:
      return std::numeric_limits<double>::infinity();
    case LogReduce::kMax:
      return -std::numeric_limits<double>::infinity();
    default:
      return 0.0;
  }
}

}  // namespace

struct Collector::Slot {
  std::string name;        // as logged
  std::string short_name;  // with the loader's suffix
  std::string step_name;
  std::string epoch_name;
  int64_t dataloader_idx = 0;
  LogOptions options;
  bool on_step = false;
  bool on_epoch = false;
  int64_t stamp = -1;

  // {last, combined, weight}: on the host for host values, else a tensor on the device.
  double host[3] = {0, 0, 0};
  at::Tensor device;

  Metric* metric = nullptr;
  State pending_metric;                 // restored, waiting for the metric
  std::optional<double> pending_value;  // what the restored metric computed to

  void clear() {
    host[1] = empty_value(options.reduce);
    host[2] = 0;
    if (device.defined()) {
      const c10::InferenceMode ordinary(false);
      const at::NoGradGuard no_grad;
      device[1].fill_(host[1]);
      device[2].zero_();
    }
    if (metric != nullptr) metric->reset();
    pending_metric = State();
    pending_value.reset();
  }

  void add_host(double value, double weight) {
    host[0] = value;
    switch (options.reduce) {
      case LogReduce::kMean:
        host[1] += value * weight;
        break;
      case LogReduce::kSum:
        host[1] += value;
        break;
      case LogReduce::kMin:
        host[1] = value < host[1] || std::isnan(value) ? value : host[1];
        break;
      case LogReduce::kMax:
        host[1] = value > host[1] || std::isnan(value) ? value : host[1];
        break;
    }
    host[2] += weight;
  }

  void add_device(const at::Tensor& value, double weight) {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    if (!device.defined()) {
      device = at::zeros({3}, at::TensorOptions().dtype(at::kDouble).device(value.device()));
      device.copy_(at::tensor({host[0], host[1], host[2]}, at::kDouble));
    }
    at::Tensor last = device[0];
    at::Tensor combined = device[1];
    last.copy_(value.detach().reshape({}), /*non_blocking=*/true);
    switch (options.reduce) {
      case LogReduce::kMean:
        combined.add_(last, weight);
        break;
      case LogReduce::kSum:
        combined.add_(last);
        break;
      case LogReduce::kMin:
        at::minimum_out(combined, combined, last);
        break;
      case LogReduce::kMax:
        at::maximum_out(combined, combined, last);
        break;
    }
    device[2].add_(weight);
  }

  /// {last, combined, weight} on the host.
  std::array<double, 3> read() const {
    if (!device.defined()) return {host[0], host[1], host[2]};
    const at::Tensor copy = device.cpu();
    const double* values = copy.const_data_ptr<double>();
    return {values[0], values[1], values[2]};
  }

  double computed() const {
    const at::Tensor value = metric->compute();
    if (value.numel() != 1)
      throw Error("log",
                  fmt::format("the metric '{}' computes {} values; only one can be logged; hint: log them one by one "
                              "at the epoch's end, or average over classes",
                              name, value.numel()));
    return value.item<double>();
  }

  bool is_metric() const { return metric != nullptr || pending_value.has_value(); }

  std::optional<double> step_value() const {
    if (metric != nullptr) return computed();
    if (pending_value) return pending_value;
    return read()[0];
  }

  std::optional<double> epoch_value() const {
    if (metric != nullptr) return computed();
    if (pending_value) return pending_value;
    const auto [last, combined, weight] = read();
    if (weight == 0) return std::nullopt;
    return options.reduce == LogReduce::kMean ? combined / weight : combined;
  }
};

Collector::Collector() = default;
Collector::~Collector() = default;

void Collector::begin(const Moment& moment) {
  moment_ = moment;
  expected_ = 0;
  ++stamp_;
}

double Collector::weight_of(const LogOptions& options) const {
  return static_cast<double>(options.batch_size.value_or(moment_.batch_size));
}

Collector::Slot& Collector::slot_for(std::string_view name, const LogOptions& options) {
  const auto is_meant = [&](const Slot& slot) {
    return slot.dataloader_idx == moment_.dataloader_idx && slot.name == name;
  };
  Slot* found = nullptr;
  if (expected_ < slots_.size() && is_meant(*slots_[expected_])) {
    found = slots_[expected_].get();
  } else {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!is_meant(*slots_[i])) continue;
      found = slots_[i].get();
      expected_ = i;
      break;
    }
  }
  if (found == nullptr) {
    const bool on_step = options.on_step.value_or(moment_.step_default);
    const bool on_epoch = options.on_epoch.value_or(!moment_.step_default);
    found = &add_slot(name, moment_.dataloader_idx, moment_.loaders > 1, options, on_step, on_epoch);
    expected_ = slots_.size() - 1;
  }
  ++expected_;
  found->stamp = stamp_;
  return *found;
}

Collector::Slot& Collector::add_slot(std::string_view name, int64_t dataloader_idx, bool several_loaders,
                                     const LogOptions& options, bool on_step, bool on_epoch) {
  if (name.empty()) throw Error("log", "a logged value needs a name");
  auto slot = std::make_unique<Slot>();
  slot->name = name;
  slot->short_name = slot->name;
  if (several_loaders && options.add_dataloader_idx)
    slot->short_name += fmt::format("/dataloader_idx_{}", dataloader_idx);
  const bool both = on_step && on_epoch;
  slot->step_name = slot->short_name + (both ? "_step" : "");
  slot->epoch_name = slot->short_name + (both ? "_epoch" : "");
  slot->dataloader_idx = dataloader_idx;
  slot->options = options;
  slot->on_step = on_step;
  slot->on_epoch = on_epoch;
  slot->clear();
  slots_.push_back(std::move(slot));
  return *slots_.back();
}

void Collector::log(std::string_view name, const at::Tensor& value, const LogOptions& options) {
  if (!value.defined() || value.numel() != 1) {
    std::ostringstream shape;
    if (value.defined()) shape << "a tensor of shape " << value.sizes();
    throw Error("log", fmt::format("'{}' must be one number; got {}; hint: log its mean or sum", name,
                                   value.defined() ? shape.str() : "an undefined tensor"));
  }
  Slot& slot = slot_for(name, options);
  if (value.device().is_cpu() && !slot.device.defined()) {
    slot.add_host(read_host_scalar(value), weight_of(options));
  } else {
    on_device_ = on_device_ || !value.device().is_cpu();
    slot.add_device(value, weight_of(options));
  }
}

void Collector::log(std::string_view name, double value, const LogOptions& options) {
  Slot& slot = slot_for(name, options);
  if (slot.device.defined())
    slot.add_device(at::full({}, value, slot.device.options()), weight_of(options));
  else
    slot.add_host(value, weight_of(options));
}

void Collector::log(std::string_view name, Metric& metric, const LogOptions& options) {
  Slot& slot = slot_for(name, options);
  if (slot.metric == &metric) return;
  slot.metric = &metric;
  if (!slot.options.on_epoch.has_value()) {
    // A metric's value is that of the epoch unless its options say otherwise.
    slot.on_epoch = true;
    slot.on_step = options.on_step.value_or(false);
    slot.step_name = slot.short_name + (slot.on_step ? "_step" : "");
    slot.epoch_name = slot.short_name + (slot.on_step ? "_epoch" : "");
  }
  if (slot.pending_metric.is_null()) return;
  // The metric has seen the batches since the resumed position already: put what was saved in front of them.
  const State since = metric.state_dict();
  metric.load_state_dict(slot.pending_metric);
  metric.merge_state(since);
  slot.pending_metric = State();
  slot.pending_value.reset();
}

void Collector::visit_step(const Visitor& visitor, bool all) const {
  for (const auto& slot : slots_) {
    if (!slot->on_step || slot->stamp < 0 || (!all && slot->stamp != stamp_)) continue;
    if (const auto value = slot->step_value())
      visitor({slot->step_name, slot->short_name, *value, slot->options.prog_bar, slot->options.logger,
               slot->dataloader_idx});
  }
}

void Collector::visit_epoch(const Visitor& visitor) const {
  for (const auto& slot : slots_) {
    if (!slot->on_epoch) continue;
    if (slot->stamp < 0 && !slot->pending_value) continue;
    if (const auto value = slot->epoch_value())
      visitor({slot->epoch_name, slot->short_name, *value, slot->options.prog_bar, slot->options.logger,
               slot->dataloader_idx});
  }
}

void Collector::end_loader() {
  for (auto& slot : slots_) {
    if (slot->dataloader_idx != moment_.dataloader_idx) continue;
    slot->pending_metric = State();
    if (slot->metric == nullptr) continue;
    slot->pending_value = slot->computed();
    slot->metric->reset();
    slot->metric = nullptr;
  }
}

void Collector::reset() {
  for (auto& slot : slots_) {
    slot->clear();
    slot->stamp = -1;
  }
}

State Collector::state_dict() const {
  State state = State::list();
  for (const auto& slot : slots_) {
    if (slot->stamp < 0 && !slot->pending_value) continue;
    State item = State::map();
    item["name"] = slot->name;
    item["dataloader_idx"] = slot->dataloader_idx;
    item["several_loaders"] = slot->short_name != slot->name;
    item["on_step"] = slot->on_step;
    item["on_epoch"] = slot->on_epoch;
    item["prog_bar"] = slot->options.prog_bar;
    item["logger"] = slot->options.logger;
    item["reduce"] = static_cast<int64_t>(slot->options.reduce);
    item["sync_dist"] = slot->options.sync_dist;
    item["rank_zero_only"] = slot->options.rank_zero_only;
    if (slot->metric != nullptr) {
      item["metric"] = slot->metric->state_dict();
      item["computed"] = slot->computed();
    } else if (slot->pending_value) {
      item["metric"] = slot->pending_metric;
      item["computed"] = *slot->pending_value;
    } else {
      const auto [last, combined, weight] = slot->read();
      item["values"] = State(State::List{last, combined, weight});
    }
    state.push_back(std::move(item));
  }
  return state;
}

void Collector::load_state_dict(const State& state) {
  slots_.clear();
  stamp_ = 0;
  if (state.is_null()) return;
  for (const State& item : state.as_list()) {
    LogOptions options;
    options.on_step = item.at("on_step").as_bool();
    options.on_epoch = item.at("on_epoch").as_bool();
    options.prog_bar = item.at("prog_bar").as_bool();
    options.logger = item.at("logger").as_bool();
    options.reduce = static_cast<LogReduce>(item.at("reduce").as_int());
    options.sync_dist = item.at("sync_dist").as_bool();
    options.rank_zero_only = item.at("rank_zero_only").as_bool();
    Slot& slot = add_slot(item.at("name").as_string(), item.at("dataloader_idx").as_int(),
                          item.at("several_loaders").as_bool(), options, *options.on_step, *options.on_epoch);
    slot.stamp = 0;
    if (const State* metric = item.find("metric")) {
      slot.pending_metric = *metric;
      slot.pending_value = item.at("computed").as_double();
    } else {
      const auto& values = item.at("values").as_list();
      for (size_t i = 0; i < 3; ++i) slot.host[i] = values.at(i).as_double();
    }
  }
}

}  // namespace levin::metrics
