#include <levin/core/metrics/collector.h>

#include <levin/core/base/error.h>
#include <levin/core/base/host_scalar.h>
#include <levin/core/base/recording.h>
#include <levin/core/metrics/logged_slot.h>
#include <levin/core/metrics/metric.h>
#include <levin/core/metrics/metric_name.h>
#include <levin/core/metrics/rank_exchange.h>
#include <levin/core/metrics/slot_reduction.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

namespace levin::metrics {
namespace {

/// The time of no value.
constexpr detail::LogTime kNever = {.training_batches = -1};

at::Tensor merged(Reduction reduction, const at::Tensor& a, const at::Tensor& b) {
  if (reduction == Reduction::kConcatenate) return at::cat({a, b});
  at::Tensor both = a.clone();
  detail::combine_states(reduction, both, b);
  return both;
}

/// Adds what one rank's state says of a name to what others said.
void merge_item(State& into, const State& item) {
  if (into.at("is_metric").as_bool() != item.at("is_metric").as_bool() ||
      into.at("reduce").as_int() != item.at("reduce").as_int())
    throw Error("log", fmt::format("the saved states of ranks do not fit together: '{}' was logged in different ways; "
                                   "hint: they are not of one run",
                                   into.at("name").as_string()));
  if (!into.at("is_metric").as_bool()) {
    const auto reduce = static_cast<LogReduce>(into.at("reduce").as_int());
    if (into.at("values").as_list()[2].as_double() == 0) {  // such as a stage's without outputs: a name alone
      into = item;
      return;
    }
    auto& values = into["values"].as_list();
    const auto& others = item.at("values").as_list();
    double combined = values[1].as_double();
    detail::combine(reduce, combined, others[1].as_double());
    values[1] = combined;
    values[2] = values[2].as_double() + others[2].as_double();
    return;
  }
  const State& states = item.at("metric");
  if (states.is_null()) return;
  if (into.at("metric").is_null()) {
    into = item;
    return;
  }
  State together = State::map();
  for (const auto& [name, state] : into.at("metric").as_map()) {
    const auto reduction = static_cast<Reduction>(into.at("reductions").at(name).as_int());
    together[name] = TensorLeaf{.value = merged(reduction, state.as_tensor(), states.at(name).as_tensor()),
                                .placement = state.as_leaf().placement};
  }
  into["metric"] = std::move(together);
}

}  // namespace

Collector::Collector() = default;
Collector::~Collector() = default;

void Collector::begin(const Moment& moment) {
  moment_ = moment;
  expected_ = 0;
  ++stamp_;
  if (moment.loaders > 1) {
    loaders_ = moment.loaders;
    loaders_read_.insert(moment.dataloader_idx);
  }
}

detail::LogTime Collector::now() const {
  return {.training_batches = moment_.training_batches,
          .dataloader_idx = moment_.dataloader_idx,
          .evaluation_batches = moment_.evaluation_batches};
}

double Collector::weight_of(const LogOptions& options) const {
  return static_cast<double>(options.batch_size.value_or(moment_.batch_size));
}

Collector::Slot* Collector::find_slot(std::string_view name, int64_t own_loader) {
  const auto is_meant = [&](const Slot& slot) {
    const bool is_of_loader = slot.description.own_loader() == own_loader ||
                              // Where no loader is read, such as at the epoch's end.
                              (moment_.loaders == 1 && slot.description.is_of_all_loaders());
    return is_of_loader && slot.description.name == name;
  };
  if (expected_ < slots_.size() && is_meant(*slots_[expected_])) return slots_[expected_].get();
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!is_meant(*slots_[i])) continue;
    expected_ = i;
    return slots_[i].get();
  }
  return nullptr;
}

Collector::Slot& Collector::slot_for(std::string_view name, const LogOptions& options) {
  const bool of_all_loaders = moment_.loaders > 1 && !options.add_dataloader_idx;
  Slot* found = find_slot(name, of_all_loaders ? -1 : moment_.dataloader_idx);
  if (found == nullptr) {
    refuse_while_recording(fmt::format("a first log of '{}'", name), "log the same names in every step");
    detail::SlotDescription description{.name = std::string(name),
                                        .dataloader_idx = moment_.dataloader_idx,
                                        .several_loaders = moment_.loaders > 1,
                                        .options = options};
    description.options.on_step = options.on_step.value_or(moment_.step_default);
    description.options.on_epoch = options.on_epoch.value_or(!moment_.step_default);
    description.options.sync_dist = options.sync_dist.value_or(!moment_.step_default);
    found = &add_slot(std::move(description));
    expected_ = slots_.size() - 1;
  }
  ++expected_;
  found->mark_logged(stamp_, now());
  found->weight_was_given = options.batch_size.has_value();
  if (recording_) recorded_.push_back({.slot = found, .weight = weight_of(options)});
  return *found;
}

Collector::Slot& Collector::add_slot(detail::SlotDescription description) {
  check_metric_name(description.name);
  slots_.push_back(std::make_unique<Slot>(std::move(description)));
  Slot* const added = slots_.back().get();
  const auto order = [](const Slot* slot) {
    return std::pair<int64_t, std::string_view>(slot->description.own_loader(), slot->description.name);
  };
  const auto place = std::upper_bound(ordered_.begin(), ordered_.end(), added,
                                      [&](const Slot* a, const Slot* b) { return order(a) < order(b); });
  ordered_.insert(place, added);
  return *added;
}

void Collector::weigh(const LossWeight& weight) {
  if (!weight.defined()) return;
  for (const auto& slot : slots_) {
    const LogOptions& options = slot->description.options;
    const bool is_meant = slot->stamp == stamp_ && options.reduce == LogReduce::kMean && !slot->weight_was_given &&
                          !slot->description.is_metric;
    if (is_meant) slot->weigh_last(weight);
  }
}

void Collector::log(std::string_view name, const at::Tensor& value, const LogOptions& options) {
  if (!value.defined() || value.numel() != 1) {
    std::ostringstream shape;
    if (value.defined()) shape << "a tensor of shape " << value.sizes();
    throw Error("log", fmt::format("'{}' must be one number; got {}; hint: log its mean or sum", name,
                                   value.defined() ? shape.str() : "an undefined tensor"));
  }
  Slot& slot = slot_for(name, options);
  if (slot.device.defined() && slot.device.device() != value.device())
    refuse_while_recording(fmt::format("the log of '{}', a value of the {},", name, value.device().str()),
                           "log values of the device, or log it in on_train_batch_end");
  if (value.device().is_cpu() && !slot.device.defined() && !recordable_) {
    // The step may go on to change it in place.
    if (recording_) recorded_.back().value = value.detach().clone();
    slot.add_host(read_host_scalar(value), weight_of(options));
  } else {
    on_device_ = on_device_ || !value.device().is_cpu();
    slot.add_device(value, weight_of(options));
  }
}

void Collector::log(std::string_view name, double value, const LogOptions& options) {
  if (is_recording())
    refuse_while_recording(fmt::format("the log of '{}', a number of the host,", name),
                           "log a tensor of the device, or log it in on_train_batch_end");
  Slot& slot = slot_for(name, options);
  if (slot.device.defined())
    slot.add_device(at::full({}, value, slot.device.options()), weight_of(options));
  else
    slot.add_host(value, weight_of(options));
}

void Collector::log(std::string_view name, Metric& metric, const LogOptions& options) {
  Slot& slot = slot_for(name, options);
  // At a loader's end its metrics start afresh, but those of all loaders go on: one object cannot do both.
  if (moment_.loaders > 1)
    for (const auto& other : slots_)
      if (other->metric.refers_to(metric) &&
          other->description.is_of_all_loaders() != slot.description.is_of_all_loaders())
        throw Error("log", fmt::format("one metric object is logged for each loader and, with add_dataloader_idx = "
                                       "false, for all of them; got it as '{}' and '{}'; hint: use two objects",
                                       other->short_name, slot.short_name));
  slot.add_metric(metric, weight_of(options));
}

std::vector<Metric*> Collector::logged_metrics() const {
  std::vector<Metric*> metrics;
  for (const auto& slot : slots_)
    if (Metric* living = slot->living_metric()) metrics.push_back(living);
  return metrics;
}

void Collector::start_recording() {
  recording_ = true;
  recorded_.clear();
  states_before_.clear();
  for (Metric* metric : logged_metrics()) {
    states_before_.emplace_back(metric, std::vector<at::Tensor>());
    for (const auto& state : metric->states()) states_before_.back().second.push_back(state.value);
  }
}

Collector::Recording Collector::stop_recording() {
  recording_ = false;
  std::string replaced;
  for (auto& [metric, before] : std::exchange(states_before_, {})) {
    for (size_t i = 0; i < before.size(); ++i) {
      auto& state = metric->states()[i];
      if (state.value.is_same(before[i])) continue;
      replaced = state.name;
      state.value = before[i];
    }
  }
  if (!replaced.empty())
    throw Error("graph", fmt::format("a metric that puts another tensor in the place of its state '{}' cannot be "
                                     "recorded; hint: let update() change the tensor in place, or update the "
                                     "metric in on_train_batch_end",
                                     replaced));
  return std::exchange(recorded_, {});
}

Collector::Recording Collector::stop_observing() {
  recording_ = false;
  for (const auto& [metric, before] : std::exchange(states_before_, {}))
    for (size_t i = 0; i < before.size(); ++i)
      if (!metric->states()[i].value.is_same(before[i]))
        refuse_while_recording(
            fmt::format("a metric that puts another tensor in the place of its state '{}'", metric->states()[i].name),
            "let update() change the tensor in place, or update the metric in on_train_batch_end");
  return std::exchange(recorded_, {});
}

void Collector::log_again(const Recording& recording) {
  for (const auto& [slot, weight, value] : recording) {
    slot->mark_logged(stamp_, now());
    slot->log_again(weight);
    if (value.defined()) slot->add_host(read_host_scalar(value), weight);
  }
}

void Collector::visit_step(const Visitor& visitor, bool all) const {
  for (const auto& slot : slots_) {
    const LogOptions& options = slot->description.options;
    if (!*options.on_step || !slot->has_step() || (!all && slot->stamp != stamp_)) continue;
    if (const auto value = slot->step_value())
      visitor({slot->step_name, slot->short_name, *value, options.prog_bar, options.logger,
               slot->description.dataloader_idx, slot->step_time().training_batches});
  }
}

std::optional<int64_t> Collector::batch_of_step_value(std::string_view name) const {
  for (const auto& slot : slots_)
    if (*slot->description.options.on_step && slot->has_step() && (slot->step_name == name || slot->short_name == name))
      return slot->step_time().training_batches;
  return std::nullopt;
}

void Collector::visit_epoch(const Visitor& visitor) const {
  for (const auto& slot : slots_) {
    const LogOptions& options = slot->description.options;
    if (!*options.on_epoch || !slot->was_logged()) continue;
    if (const auto value = slot->epoch_value())
      visitor({slot->epoch_name, slot->short_name, *value, options.prog_bar, options.logger,
               slot->description.dataloader_idx, slot->time.training_batches});
  }
}

void Collector::synchronize_step(Collective& collective, bool took_part) {
  synchronize(collective, detail::Over::kStep, took_part);
}

void Collector::synchronize_epoch(Collective& collective, bool took_part) {
  synchronize(collective, detail::Over::kEpoch, took_part);
}

void Collector::synchronize(Collective& collective, detail::Over over, bool took_part) {
  if (collective.world_size() == 1) return;
  if (exchange_ == nullptr) exchange_ = std::make_unique<detail::RankExchange>();
  detail::SlotReduction reduction(collective, *exchange_, outputs_, over);
  select_comparable(over);
  const bool read_all_loaders = over == detail::Over::kStep || std::cmp_equal(loaders_read_.size(), loaders_);
  reduction.exchange(comparable_, took_part && read_all_loaders);
  if (reduction.names_are_missing()) {
    for (const auto& description : reduction.descriptions_of_all_ranks())
      if (!took_part || (description.several_loaders && !loaders_read_.contains(description.dataloader_idx)))
        adopt(description, over);
    select_comparable(over);
    reduction.exchange(comparable_, /*is_complete=*/true);
  }
  reduction.finish();
}

void Collector::synchronize_newest(Collective& collective) {
  if (collective.world_size() == 1) return;
  if (exchange_ == nullptr) exchange_ = std::make_unique<detail::RankExchange>();
  detail::SlotReduction reduction(collective, *exchange_, outputs_, detail::Over::kStep, /*newest=*/true);
  select_newest();
  reduction.exchange(comparable_, /*is_complete=*/false);
  if (reduction.names_are_missing()) {
    // A name of other ranks is not logged here: the epoch's end still asks whether it should have been.
    for (const auto& description : reduction.descriptions_of_all_ranks()) {
      Slot* const known = find_slot(description.name, description.own_loader());
      Slot& slot = known == nullptr ? add_slot(description) : *known;
      if (!slot.has_step()) slot.reduced_step = {.known = true, .value = std::nullopt, .time = kNever};
    }
    select_newest();
    reduction.exchange(comparable_, /*is_complete=*/true);
  }
  reduction.finish();
}

void Collector::select_newest() {
  comparable_.clear();
  for (Slot* slot : ordered_) {
    const LogOptions& options = slot->description.options;
    const bool is_known = slot->was_logged() || slot->reduced_step.known;
    if (*options.on_step && is_known && may_be_combined(options)) comparable_.push_back(slot);
  }
}

void Collector::select_comparable(detail::Over over) {
  comparable_.clear();
  for (Slot* slot : ordered_) {
    const LogOptions& options = slot->description.options;
    const bool is_logged = over == detail::Over::kStep ? *options.on_step && slot->stamp == stamp_
                                                       : *options.on_epoch && slot->was_logged();
    if (is_logged && may_be_combined(options)) comparable_.push_back(slot);
  }
}

void Collector::adopt(const detail::SlotDescription& description, detail::Over over) {
  Slot* slot = find_slot(description.name, description.own_loader());
  if (slot == nullptr) slot = &add_slot(description);
  if (over == detail::Over::kStep ? slot->stamp == stamp_ : slot->was_logged()) return;
  slot->mark_logged(over == detail::Over::kStep ? stamp_ : 0, now());
  slot->last_weight = 0;
  if (over == detail::Over::kStep || !slot->is_step_combined())
    slot->reduced_step = {.known = true, .value = std::nullopt, .time = now()};
}

bool Collector::has_values() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->was_logged(); });
}

void Collector::end_loader() {
  for (auto& slot : slots_)
    if (slot->description.dataloader_idx == moment_.dataloader_idx || slot->description.is_of_all_loaders())
      slot->end_metric();
}

void Collector::end_metrics() {
  for (auto& slot : slots_) slot->end_metric();
}

void Collector::reset() {
  for (auto& slot : slots_) slot->clear();
  loaders_ = 0;
  loaders_read_.clear();
}

State Collector::state_dict() const {
  State state = State::list();
  for (const auto& slot : slots_) {
    if (!slot->was_logged()) continue;
    state.push_back(slot->state_dict());
    state.as_list().back()["training_batches"] = slot->time.training_batches;
    // Of the step under way, whose values nobody has seen yet.
    if (slot->stamp == stamp_) state.as_list().back()["step_weight"] = slot->last_weight;
  }
  return state;
}

State Collector::state_dict_at_end(Collective& collective, bool took_part) {
  if (collective.world_size() == 1) return state_dict();
  std::map<const Slot*, std::array<Slot::Reduced, 2>> former;
  for (const auto& slot : slots_) former[slot.get()] = {slot->reduced_step, slot->reduced_epoch};
  synchronize_newest(collective);
  synchronize_epoch(collective, took_part);
  std::map<std::pair<std::string, int64_t>, std::array<std::optional<double>, 2>> computed;
  for (auto& slot : slots_) {
    const auto& description = slot->description;
    if (description.is_metric && slot->was_logged())
      computed[{description.name, description.dataloader_idx}] = {
          *description.options.on_step ? slot->step_value() : std::nullopt, slot->epoch_value()};
    if (const auto before = former.find(slot.get()); before != former.end())
      std::tie(slot->reduced_step, slot->reduced_epoch) = std::tie(before->second[0], before->second[1]);
  }
  State state = state_dict();
  for (State& item : state.as_list()) {
    const auto values = computed.find({item.at("name").as_string(), item.at("dataloader_idx").as_int()});
    if (values == computed.end()) continue;
    if (values->second[0]) item["step_computed"] = *values->second[0];
    if (values->second[1]) item["computed"] = *values->second[1];
  }
  return state;
}

void Collector::load_state_dict(const State& state) {
  reset();
  slots_.clear();
  ordered_.clear();
  stamp_ = 1;
  if (state.is_null()) return;
  for (const State& item : state.as_list()) {
    Slot& slot = add_slot(detail::SlotDescription::from_state(item));
    slot.load_state_dict(item);
    const State* step_weight = item.find("step_weight");
    slot.stamp = step_weight != nullptr ? stamp_ : 0;
    slot.has_step_value = item.find("has_no_value") == nullptr;
    if (step_weight != nullptr) slot.last_weight = step_weight->as_double();
    if (slot.description.several_loaders) loaders_read_.insert(slot.description.dataloader_idx);
  }
}

State Collector::merge_states(const std::vector<State>& of_ranks) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  State merged = State::list();
  std::vector<std::vector<double>> computed;  // of each item, on the ranks that have it
  for (const State& state : of_ranks) {
    if (state.is_null()) continue;
    for (const State& item : state.as_list()) {
      auto& items = merged.as_list();
      const auto same = std::find_if(items.begin(), items.end(), [&](const State& other) {
        return other.at("name").as_string() == item.at("name").as_string() &&
               detail::SlotDescription::from_state(other).own_loader() ==
                   detail::SlotDescription::from_state(item).own_loader();
      });
      const auto index = static_cast<size_t>(same - items.begin());
      if (same == items.end()) {
        merged.push_back(item);
        computed.emplace_back();
      } else if (item.at("rank_zero_only").as_bool()) {
        continue;
      } else {
        merge_item(*same, item);
      }
      if (const State* value = item.find("computed")) computed[index].push_back(value->as_double());
    }
  }
  for (size_t i = 0; i < computed.size(); ++i)
    if (const auto value = detail::agreed_value(computed[i])) merged.as_list()[i]["computed"] = *value;
  return merged;
}

State Collector::without_values(const State& state) {
  State names = State::list();
  if (state.is_null()) return names;
  for (const State& item : state.as_list()) {
    State name = detail::SlotDescription::from_state(item).to_state();
    name["training_batches"] = item.at("training_batches");
    name["has_no_value"] = true;
    if (item.at("is_metric").as_bool()) {
      name["metric"] = State();
      name["reductions"] = State::map();
    } else {
      const double nothing = detail::empty_value(static_cast<LogReduce>(item.at("reduce").as_int()));
      name["values"] = State(State::List{0.0, nothing, 0.0});
    }
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace levin::metrics
