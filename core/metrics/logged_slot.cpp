#include <levin/core/metrics/logged_slot.h>

#include <levin/core/base/error.h>
#include <levin/core/base/error_notes.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/type_name.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <typeinfo>
#include <utility>

namespace levin::metrics::detail {

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

void combine(LogReduce reduce, double& into, double value) {
  switch (reduce) {
    case LogReduce::kMean:
    case LogReduce::kSum:
      into += value;
      break;
    case LogReduce::kMin:
      into = value < into || std::isnan(value) ? value : into;
      break;
    case LogReduce::kMax:
      into = value > into || std::isnan(value) ? value : into;
      break;
  }
}

std::optional<double> agreed_value(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const bool agree = std::all_of(values.begin(), values.end(), [&](double value) { return value == values.front(); });
  if (agree) return values.front();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string SlotDescription::short_name() const {
  if (!several_loaders || !options.add_dataloader_idx) return name;
  return fmt::format("{}/dataloader_idx_{}", name, dataloader_idx);
}

State SlotDescription::to_state() const {
  State state = State::map();
  state["name"] = name;
  state["dataloader_idx"] = dataloader_idx;
  state["several_loaders"] = several_loaders;
  state["on_step"] = *options.on_step;
  state["on_epoch"] = *options.on_epoch;
  state["prog_bar"] = options.prog_bar;
  state["logger"] = options.logger;
  state["reduce"] = static_cast<int64_t>(options.reduce);
  state["sync_dist"] = *options.sync_dist;
  state["rank_zero_only"] = options.rank_zero_only;
  state["add_dataloader_idx"] = options.add_dataloader_idx;
  state["is_metric"] = is_metric;
  return state;
}

SlotDescription SlotDescription::from_state(const State& state) {
  SlotDescription description;
  description.name = state.at("name").as_string();
  description.dataloader_idx = state.at("dataloader_idx").as_int();
  description.several_loaders = state.at("several_loaders").as_bool();
  description.options.on_step = state.at("on_step").as_bool();
  description.options.on_epoch = state.at("on_epoch").as_bool();
  description.options.prog_bar = state.at("prog_bar").as_bool();
  description.options.logger = state.at("logger").as_bool();
  description.options.reduce = static_cast<LogReduce>(state.at("reduce").as_int());
  description.options.sync_dist = state.at("sync_dist").as_bool();
  description.options.rank_zero_only = state.at("rank_zero_only").as_bool();
  description.options.add_dataloader_idx = state.at("add_dataloader_idx").as_bool();
  description.is_metric = state.at("is_metric").as_bool();
  return description;
}

LoggedSlot::LoggedSlot(SlotDescription described) : description(std::move(described)) {
  short_name = description.short_name();
  const bool both = *description.options.on_step && *description.options.on_epoch;
  step_name = short_name + (both ? "_step" : "");
  epoch_name = short_name + (both ? "_epoch" : "");
  identify();
  clear();
}

void LoggedSlot::identify() {
  const auto& options = description.options;
  const int64_t combined = description.is_metric ? 1 - 2 * static_cast<int64_t>(*options.sync_dist)
                           : *options.sync_dist  ? 2 + static_cast<int64_t>(options.reduce)
                                                 : 0;
  identity_ = mix_seed(XXH3_64bits(description.name.data(), description.name.size()),
                       static_cast<uint64_t>(description.own_loader()), static_cast<uint64_t>(combined));
}

void LoggedSlot::clear() {
  host[1] = empty_value(description.options.reduce);
  host[2] = 0;
  if (device.defined()) {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    device[1].fill_(host[1]);
    device[2].zero_();
  }
  is_empty = true;
  if (metric.is_gone()) metric = {};
  if (Metric* living = living_metric()) living->reset();
  metric_was_logged = false;
  ended_metric = {};
  waiting_state = State();
  waiting_reductions = State();
  waiting_value.reset();
  waiting_step_value.reset();
  stamp = -1;
  forget_reduced();
}

void LoggedSlot::add_host(double value, double weight) {
  if (logs == 1) std::copy_n(&host[1], 2, &host[3]);
  host[0] = value;
  combine(description.options.reduce, host[1], description.options.reduce == LogReduce::kMean ? value * weight : value);
  host[2] += weight;
  last_weight = weight;
  is_empty = false;
  forget_reduced();
}

void LoggedSlot::move_to(const at::Device& target) {
  device = at::empty({std::ssize(host)}, at::TensorOptions().dtype(at::kDouble).device(target));
  device.copy_(at::tensor(at::ArrayRef<double>(host), at::kDouble));
}

void LoggedSlot::add_device(const at::Tensor& value, double weight) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  if (logs == 1) has_before_last = is_empty || is_weighed || !device.defined();
  is_empty = false;
  if (!device.defined()) move_to(value.device());
  if (logs == 1 && has_before_last) device.slice(0, 3, 5).copy_(device.slice(0, 1, 3));
  at::Tensor last = device[0];
  at::Tensor combined = device[1];
  last.copy_(value.detach().reshape({}), /*non_blocking=*/true);
  switch (description.options.reduce) {
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
  last_weight = weight;
  forget_reduced();
}

void LoggedSlot::weigh_last(const LossWeight& weight) {
  const auto number = weight.on_host();
  is_weighed = true;
  const auto count = static_cast<double>(logs);
  if (!device.defined() && number) {
    const double sum = logs == 1 ? host[0] : (host[1] - host[3]) / last_weight;
    host[1] = host[3] + (*number == 0 ? 0 : sum * *number);
    host[2] = host[4] + count * *number;
  } else {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    if (!device.defined()) {
      move_to(weight.tensor().device());
      has_before_last = true;
    }
    const at::Tensor own = weight.on(device.device()).to(at::kDouble);
    if (!has_before_last) {  // there were no weights before: of several logs the last one is known
      device[3].copy_(device[1] - device[0] * last_weight);
      device[4].copy_(device[2] - last_weight);
    }
    const bool has_all = logs > 1 && has_before_last;
    const at::Tensor sum = has_all ? (device[1] - device[3]) / last_weight : device[0];
    device[1].copy_(at::where(own == 0, device[3], device[3] + sum * own));
    device[2].copy_(device[4] + (has_all ? own * count : own));
  }
  if (number) last_weight = *number;
  forget_reduced();
}

void LoggedSlot::add_metric(Metric& logged, double weight) {
  last_weight = weight;
  forget_reduced();
  if (*description.options.on_step) logged.end_batch();
  const bool logged_before = std::exchange(metric_was_logged, true);
  if (metric.refers_to(logged)) return;
  if (logged_before) living_metric();
  metric = MetricReference(logged);
  if (!description.is_metric) {
    description.is_metric = true;
    identify();
  }
  if (!waiting_state.is_null()) {
    // The metric has seen the batches since the resumed position already: put what was saved in front of them.
    const State since = logged.state_dict();
    logged.load_state_dict(waiting_state);
    logged.merge_state(since);
    if (*description.options.on_step) logged.end_batch();
  }
  waiting_state = State();
  waiting_reductions = State();
  waiting_value.reset();
  waiting_step_value.reset();
}

void LoggedSlot::mark_logged(int64_t at, const LogTime& now) {
  logs = stamp == at ? logs + 1 : 1;
  stamp = at;
  time = now;
  has_step_value = true;
}

void LoggedSlot::log_again(double weight) {
  last_weight = weight;
  forget_reduced();
}

std::array<double, 3> LoggedSlot::read() const {
  if (!device.defined()) return {host[0], host[1], host[2]};
  const at::Tensor copy = device.cpu();
  const double* values = copy.const_data_ptr<double>();
  return {values[0], values[1], values[2]};
}

double LoggedSlot::computed_by(Metric& computing, std::vector<at::Tensor> states) const {
  const auto compute = [&] { return states.empty() ? computing.compute() : computing.compute_from(std::move(states)); };
  const at::Tensor value = noting_errors(compute, [&](ErrorNotes& notes) {
    if (notes.place.empty())
      notes.place = fmt::format("compute of {}, the metric logged as '{}'", short_class_name(typeid(computing)),
                                description.name);
  });
  if (value.numel() != 1)
    throw Error("log", fmt::format("the metric '{}' computes {} values; only one can be logged; hint: log them one by "
                                   "one at the epoch's end, or average over classes",
                                   description.name, value.numel()));
  return value.item<double>();
}

std::optional<double> LoggedSlot::step_value() const {
  if (reduced_step.known) return reduced_step.value;
  if (Metric* living = living_metric()) return computed_by(*living, living->last_batch());
  if (description.is_metric) return waiting_step_value;
  return read()[0];
}

std::optional<double> LoggedSlot::epoch_value() const {
  if (reduced_epoch.known) return reduced_epoch.value;
  if (Metric* living = living_metric()) return computed_by(*living);
  if (description.is_metric) return waiting_value;
  const auto [last, combined, weight] = read();
  if (weight == 0) return std::nullopt;
  return description.options.reduce == LogReduce::kMean ? combined / weight : combined;
}

void LoggedSlot::end_metric() {
  Metric* const living = living_metric();
  if (living == nullptr) return;
  waiting_value = computed_by(*living);
  if (*description.options.on_step) waiting_step_value = computed_by(*living, living->last_batch());
  waiting_state = living->state_dict();
  waiting_reductions = State::map();
  for (const auto& state : living->states()) waiting_reductions[state.name] = static_cast<int64_t>(state.reduction);
  living->reset();
  ended_metric = std::exchange(metric, {});
}

std::vector<LoggedSlot::MetricState> LoggedSlot::metric_states(Over over) const {
  std::vector<MetricState> states;
  if (const Metric* living = living_metric()) {
    for (const auto& state : living->states()) states.push_back({state.name, state.reduction, state.value});
    if (over == Over::kStep) {
      const auto last = living->last_batch();
      for (size_t i = 0; i < last.size(); ++i) states[i].value = last[i];
    }
    std::sort(states.begin(), states.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  } else if (over == Over::kEpoch && !waiting_state.is_null()) {
    for (const auto& [name, state] : waiting_state.as_map())
      states.push_back({name, static_cast<Reduction>(waiting_reductions.at(name).as_int()), state.as_tensor()});
  }
  return states;
}

State LoggedSlot::state_dict() const {
  State item = description.to_state();
  item["last_weight"] = last_weight;
  if (is_step_combined()) {
    item["reduced_step"] = *reduced_step.value;
    item["reduced_step_batches"] = reduced_step.time.training_batches;
  }
  if (!description.is_metric) {
    const auto [last, combined, weight] = read();
    item["values"] = State(State::List{last, combined, weight});
    return item;
  }
  State reductions = State::map();
  for (const MetricState& state : metric_states(Over::kEpoch))
    reductions[state.name] = static_cast<int64_t>(state.reduction);
  const Metric* living = living_metric();
  item["metric"] = living != nullptr ? living->state_dict() : waiting_state;
  item["reductions"] = std::move(reductions);
  if (const auto value = epoch_value()) item["computed"] = *value;
  if (*description.options.on_step)
    if (const auto value = step_value()) item["step_computed"] = *value;
  return item;
}

void LoggedSlot::load_state_dict(const State& state) {
  // A checkpoint of an earlier version has neither weight nor batches.
  const State* const weight = state.find("last_weight");
  last_weight = weight == nullptr ? 1 : weight->as_double();
  time = {.training_batches = state.at("training_batches").as_int()};
  if (const State* reduced = state.find("reduced_step")) {
    const State* const batches = state.find("reduced_step_batches");
    reduced_step = {.known = true,
                    .value = reduced->as_double(),
                    .time = {.training_batches = batches == nullptr ? time.training_batches : batches->as_int()}};
  }
  if (!description.is_metric) {
    const auto& values = state.at("values").as_list();
    for (size_t i = 0; i < 3; ++i) host[i] = values.at(i).as_double();
    is_empty = false;
    return;
  }
  waiting_state = state.at("metric");
  waiting_reductions = state.at("reductions");
  if (const State* computed = state.find("computed")) waiting_value = computed->as_double();
  if (const State* computed = state.find("step_computed")) waiting_step_value = computed->as_double();
}

}  // namespace levin::metrics::detail
