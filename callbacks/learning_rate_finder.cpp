#include <levin/callbacks/learning_rate_finder.h>

#include <levin/callbacks/learning_rate_plot.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/trainer/dry_run.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

namespace levin {
namespace {

constexpr const char* kFinder = "learning_rate_finder";

}  // namespace

void LearningRateFinderOptions::describe(Schema<LearningRateFinderOptions>& schema) {
  using O = LearningRateFinderOptions;
  schema.field("min_lr", &O::min_lr, "the learning rate of the first step").above(0);
  schema.field("max_lr", &O::max_lr, "the learning rate of the last step").above(0);
  schema.field("num_training_steps", &O::num_training_steps, "optimizer steps of the sweep").at_least(2);
  schema.field("mode", &O::mode, "how the learning rate rises").one_of({"exponential", "linear"});
  schema
      .field("early_stop_threshold", &O::early_stop_threshold,
             "ratio of the smoothed loss to its smallest that ends the sweep; null: never")
      .above(1);
  schema.field("update_attr", &O::update_attr, "train with the suggestion; false: only report it");
  schema.field("attr_name", &O::attr_name, "the model's option that the report names; empty: lr or learning_rate");
}

LearningRateFinder::LearningRateFinder(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, kFinder);
  if (options.max_lr <= options.min_lr)
    throw ConfigError(fmt::format("{0}.max_lr must be greater than {0}.min_lr; got {1} and {2}", kFinder,
                                  options.max_lr, options.min_lr));
}

void LearningRateFinder::on_fit_start(Trainer& trainer, Module& module) {
  if (trainer.resumed()) {
    log::rank_zero_info(fmt::format("{}: resuming with the learning rate of the checkpoint", kFinder));
    return;
  }
  suggestion_.reset();
  points_.clear();
  report_.clear();
  if (!can_search(trainer, module)) return;
  LearningRateSweep sweep({.min_lr = options_.min_lr,
                           .max_lr = options_.max_lr,
                           .steps = options_.num_training_steps,
                           .exponential = options_.mode == "exponential",
                           .early_stop_threshold = options_.early_stop_threshold});
  log::rank_zero_info(fmt::format("{}: {} steps from {:.3g} to {:.3g}, taken back afterwards", kFinder,
                                  options_.num_training_steps, options_.min_lr, options_.max_lr));
  const bool complete = sweep_rates(trainer, sweep);
  points_ = sweep.points();
  std::string found;
  if (const auto own = complete ? sweep.suggestion() : std::nullopt) found = fmt::format("{}", *own);
  // All ranks have the same numbers; that they act alike must not depend on it.
  if (const std::string told = trainer.strategy().broadcast(found); !told.empty()) suggestion_ = std::stod(told);

  if (suggestion_) {
    report_ = fmt::format("{}: {}, where the loss falls most steeply ({} steps from {:.3g} to {:.3g}, {})\n  {}",
                          kFinder, *suggestion_, points_.size(), points_.front().rate, points_.back().rate,
                          options_.mode, how_to_set(module));
    if (options_.update_attr) trainer.restart_schedules(*suggestion_);
  } else {
    report_ = fmt::format("{}: nothing found, and the learning rate stays as it is: {}", kFinder,
                          complete ? sweep.why_nothing() : "the search was interrupted");
  }
  report_ += write_files(trainer, sweep);
  if (suggestion_)
    log::rank_zero_info(report_);
  else
    log::rank_zero_warning(report_);
}

bool LearningRateFinder::can_search(Trainer& trainer, const Module& module) const {
  if (!module.automatic_optimization)
    throw ConfigError(
        fmt::format("{} does not work with manual optimization, where training_step need not give a "
                    "loss; hint: leave it out, or set automatic_optimization = true",
                    kFinder));
  const auto skip = [](const char* reason) {
    log::rank_zero_warning(fmt::format("{}: no search, {}", kFinder, reason));
    return false;
  };
  if (trainer.options().fast_dev_run.batches() > 0) return skip("because of fast_dev_run");
  if (trainer.optimizers().empty()) return skip("because configure_optimizers gave no optimizer");
  if (trainer.learning_rate() == 0)
    return skip("because the learning rate of the first parameter group is 0, which has no proportion to others");
  return true;
}

bool LearningRateFinder::sweep_rates(Trainer& trainer, LearningRateSweep& sweep) const {
  DryRun dry_run(trainer);
  for (int64_t step = 0; step < options_.num_training_steps; ++step) {
    const double rate = sweep.rate(step);
    trainer.set_learning_rate(rate);
    const DryRun::Result result = dry_run.step();
    if (result == DryRun::Result::kInterrupted) return false;
    if (result != DryRun::Result::kDone) return true;
    if (const auto loss = dry_run.loss(); loss && !sweep.add(rate, *loss)) return true;
  }
  return true;
}

std::string LearningRateFinder::how_to_set(const Module& module) const {
  std::vector<std::string> names = {"lr", "learning_rate"};
  if (!options_.attr_name.empty()) names = {options_.attr_name};
  const Config& options = module.init_options();
  for (const std::string& name : names)
    if (options.is_mapping() && options.find(name) != nullptr)
      return fmt::format("to set it: --model.{0}={1}, or in YAML model: {{{0}: {1}}}", name, *suggestion_);
  if (!options_.attr_name.empty())
    log::rank_zero_warning(
        fmt::format("{}.attr_name is '{}', but the model has no such option", kFinder, options_.attr_name));
  return "to set it: where configure_optimizers makes the optimizer";
}

std::string LearningRateFinder::write_files(Trainer& trainer, const LearningRateSweep& sweep) const {
  const std::string folder = trainer.run_directory();
  if (folder.empty() || sweep.points().size() < 2) return "";
  const std::string path = folder + "/" + kFinder;
  if (trainer.is_global_zero()) {
    FileSystem::current().replace_file(path + ".svg", learning_rate_plot(sweep));
    FileSystem::current().replace_file(path + ".csv", learning_rate_table(sweep));
  }
  return fmt::format("\n  plot: {0}.svg, points: {0}.csv", path);
}

State LearningRateFinder::state_dict() const {
  State state = State::map();
  state["suggestion"] = suggestion_ ? State(*suggestion_) : State();
  State& points = state["points"] = State::list();
  for (const auto& point : points_) points.push_back(State::List{point.rate, point.loss, point.smoothed});
  state["report"] = report_;
  return state;
}

void LearningRateFinder::load_state_dict(const State& state) {
  const State& suggestion = state.at("suggestion");
  suggestion_ = suggestion.is_null() ? std::nullopt : std::optional(suggestion.as_double());
  points_.clear();
  for (const State& point : state.at("points").as_list()) {
    const auto& values = point.as_list();
    points_.push_back({values.at(0).as_double(), values.at(1).as_double(), values.at(2).as_double()});
  }
  report_ = state.at("report").as_string();
}

}  // namespace levin
