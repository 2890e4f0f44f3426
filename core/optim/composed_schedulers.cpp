#include <levin/core/optim/composed_schedulers.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/schedulers.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin::optim {
namespace {

constexpr const char* kPartsDoc = "the schedulers, each by name and options";

/// A part as it is written in a list: `cosine`, `{name: cosine, t_max: 10}` or `cosine: {t_max: 10}`.
std::shared_ptr<Scheduler> make_part(const Config& node, const std::string& path) {
  if (node.is_scalar()) return scheduler_registry().make(node.text(), Config::null(), path, node.origin());
  if (!node.is_mapping()) throw_wrong_type(node, path, "a scheduler's name, or a mapping with `name`");
  if (const Config* name = node.find("name")) {
    Config options = node;
    options.erase("name");
    return scheduler_registry().make(ConfigCodec<std::string>::parse(*name, path + ".name"), options, path,
                                     name->origin());
  }
  if (node.entries().size() != 1) throw_wrong_type(node, path, "a mapping with `name`");
  const auto& entry = node.entries().front();
  return scheduler_registry().make(entry.key, entry.value, path + "." + entry.key, entry.origin);
}

std::vector<std::shared_ptr<Scheduler>> make_parts(const std::vector<Config>& nodes, const std::string& path) {
  std::vector<std::shared_ptr<Scheduler>> parts;
  for (size_t i = 0; i < nodes.size(); ++i)
    parts.push_back(make_part(nodes[i], fmt::format("{}.schedulers[{}]", path, i)));
  return parts;
}

}  // namespace

void ChainedOptions::describe(Schema<ChainedOptions>& schema) {
  schema.field("schedulers", &ChainedOptions::schedulers, kPartsDoc);
}

void SequentialOptions::describe(Schema<SequentialOptions>& schema) {
  schema.field("schedulers", &SequentialOptions::schedulers, kPartsDoc);
  schema.field("milestones", &SequentialOptions::milestones, "step at which each scheduler but the first takes over")
      .require("rising numbers of at least 1", [](const std::vector<int64_t>& milestones) {
        return (milestones.empty() || milestones.front() >= 1) &&
               std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal<>()) == milestones.end();
      });
}

ComposedScheduler::ComposedScheduler(std::vector<std::shared_ptr<Scheduler>> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) fail("has no schedulers to compose; set `schedulers`");
  for (const auto& part : parts_) {
    LEVIN_CHECK(part != nullptr, "a scheduler to compose is null");
    if (part->needs_metric()) fail("cannot hold a scheduler that follows a metric; give it a configuration of its own");
  }
}

void ComposedScheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  Scheduler::bind(optimizer, initial_lrs);
  for (const auto& part : parts_) part->bind(optimizer, initial_lrs);
}

State ComposedScheduler::state_dict() const {
  State state = learning_rates_state();
  State& saved = state["parts"] = State::list();
  for (const auto& part : parts_) saved.push_back(part->state_dict());
  return state;
}

void ComposedScheduler::load_state_dict(const State& state) {
  const auto& saved = state.at("parts").as_list();
  if (saved.size() != parts_.size())
    fail(fmt::format("has {} parts; got {} in the checkpoint", parts_.size(), saved.size()));
  load_learning_rates(state);
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->load_state_dict(saved[i]);
}

ChainedScheduler::ChainedScheduler(const Options& options)
    : ChainedScheduler(make_parts(options.schedulers, "chained")) {}
ChainedScheduler::ChainedScheduler(std::vector<std::shared_ptr<Scheduler>> parts)
    : ComposedScheduler(std::move(parts)) {}

void ChainedScheduler::set_estimated_total(int64_t steps) {
  for (const auto& part : parts()) part->set_estimated_total(steps);
}

void ChainedScheduler::begin() {
  for (const auto& part : parts()) part->begin();
  record_lrs();
}

void ChainedScheduler::step() {
  for (const auto& part : parts()) part->step();
  record_lrs();
}

SequentialScheduler::SequentialScheduler(const Options& options)
    : SequentialScheduler(make_parts(options.schedulers, "sequential"), options.milestones) {}

SequentialScheduler::SequentialScheduler(std::vector<std::shared_ptr<Scheduler>> parts, std::vector<int64_t> milestones)
    : ComposedScheduler(std::move(parts)), milestones_(std::move(milestones)) {
  schema_of<Options>().validate({.schedulers = {}, .milestones = milestones_}, "sequential");
  if (milestones_.size() + 1 != this->parts().size())
    throw ConfigError(
        fmt::format("sequential.milestones must be one fewer than the schedulers; got {} for {} schedulers",
                    milestones_.size(), this->parts().size()));
}

void SequentialScheduler::set_estimated_total(int64_t steps) {
  int64_t start = 0;
  for (size_t i = 0; i < parts().size(); ++i) {
    const bool is_last = i == milestones_.size();
    const int64_t length = is_last ? (steps < 0 ? -1 : std::max<int64_t>(steps - start, 0)) : milestones_[i] - start;
    parts()[i]->set_estimated_total(length);
    if (!is_last) start = milestones_[i];
  }
}

void SequentialScheduler::begin() {
  steps_taken_ = 0;
  reset_to_base_lrs();
  parts().front()->begin();
  record_lrs();
}

void SequentialScheduler::step() {
  ++steps_taken_;
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), steps_taken_);
  const auto& part = parts()[next - milestones_.begin()];
  if (next != milestones_.begin() && *(next - 1) == steps_taken_) {
    reset_to_base_lrs();
    part->begin();
  } else {
    part->step();
  }
  record_lrs();
}

State SequentialScheduler::state_dict() const {
  State state = ComposedScheduler::state_dict();
  state["steps"] = steps_taken_;
  return state;
}

void SequentialScheduler::load_state_dict(const State& state) {
  ComposedScheduler::load_state_dict(state);
  steps_taken_ = state.at("steps").as_int();
}

}  // namespace levin::optim
