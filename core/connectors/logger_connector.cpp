#include <levin/core/connectors/logger_connector.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/metrics/metric_name.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace levin {
namespace {

/// Makes the folder version_N, with N one above all others below `root`.
std::string claim_version(const std::string& root) {
  FileSystem& files = FileSystem::current();
  files.create_directories(root);
  int64_t next = 0;
  for (const auto& name : files.list(root)) {
    if (!name.starts_with("version_")) continue;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data() + 8, name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) next = std::max(next, number + 1);
  }
  // Another run may claim a number at the same time: making the folder is the claim.
  while (!files.create_directory(fmt::format("{}/version_{}", root, next))) ++next;
  return fmt::format("{}/version_{}", root, next);
}

std::string make_folder(const FolderChoice& choice) {
  if (choice.path.empty()) return claim_version(choice.root);
  FileSystem::current().create_directories(choice.path);
  return choice.path;
}

}  // namespace

LoggerConnector::LoggerConnector(const ResolvedOptions& options, TrainerState& state, Tracer& tracer)
    : options_(options),
      state_(state),
      tracer_(tracer),
      strategy_(*options.strategy),
      model_(strategy_.divided_model()) {}

// ---- What modules and callbacks log

LoggerConnector::Active LoggerConnector::set_active(Active active) {
  if (active.collector != nullptr)
    active.collector->set_output_ranks(
        {.everywhere = model_.outputs_everywhere(), .is_first = loss_rank(strategy_).rank == 0});
  return std::exchange(active_, active);
}

void LoggerConnector::refuse_logging() {
  log::rank_zero_warning_once(
      "log() was called and trainer.barebones is true: nothing is logged, since that takes time; metrics have no "
      "values");
}

metrics::Collector* LoggerConnector::require_active(std::string_view name) const {
  if (active_.collector == nullptr)
    throw Error("log",
                fmt::format("'{}' was logged where nothing is collected; hint: log from a step or from a hook during "
                            "training or evaluation",
                            name));
  if (active_.is_over && !state_.joining)
    throw Error("log", fmt::format("'{}' was logged when all values had been handed on; hint: log it in "
                                   "on_train_epoch_end, on_validation_epoch_end or on_test_epoch_end",
                                   name));
  return active_.collector;
}

// ---- The newest values

void LoggerConnector::remember(const std::string& name, double value, int64_t moment) {
  latest_[name] = value;
  latest_moment_[name] = moment;
}

void LoggerConnector::remember(const metrics::Collector::Value& value, int64_t moment) {
  remember(value.name, value.value, moment);
  if (value.name != value.short_name) remember(value.short_name, value.value, moment);
}

/// One is made at the end of the epoch, whichever batch logged last.
void LoggerConnector::remember_of_epoch(const metrics::Collector::Value& value) {
  if (active_.is_partial)
    for (const std::string& name : {value.name, value.short_name}) keep_former(name);
  remember(value, state_.progress.moment());
}

void LoggerConnector::keep_former(const std::string& name) {
  const auto found = latest_.find(name);
  former_.try_emplace(
      name, found == latest_.end() ? std::nullopt : std::optional(std::pair(found->second, latest_moment_.at(name))));
}

const MetricMap& LoggerConnector::callback_metrics() {
  if (active_.collector == nullptr) return latest_;
  active_.collector->visit_step(
      [this](const metrics::Collector::Value& value) { remember(value, value.training_batches); }, /*all=*/true);
  if (active_.epoch_values)
    active_.collector->visit_epoch([this](const metrics::Collector::Value& value) { remember_of_epoch(value); });
  return latest_;
}

void LoggerConnector::combine_step_metrics() {
  if (strategy_.world_size() == 1 || active_.collector != &train_metrics_) return;
  if (find_independent_steps(strategy_) == nullptr) train_metrics_.synchronize_newest(strategy_.collective());
}

std::optional<int64_t> LoggerConnector::moment_of_metric(const std::string& name) const {
  const auto found = latest_moment_.find(name);
  return found == latest_moment_.end() ? std::nullopt : std::optional(found->second);
}

MetricMap LoggerConnector::progress_bar_metrics(bool wait_for_device) {
  if (active_.collector != nullptr && (wait_for_device || !active_.collector->on_device())) {
    const auto visitor = [this](const metrics::Collector::Value& value) {
      if (value.prog_bar) latest_of_bar_[value.name] = value.value;
    };
    active_.collector->visit_step(visitor, /*all=*/true);
    if (active_.epoch_values) active_.collector->visit_epoch(visitor);
  }
  return latest_of_bar_;
}

State LoggerConnector::callback_metrics_state(bool goes_on) {
  State state = State::map();
  for (const auto& [name, newest] : callback_metrics()) {
    std::optional<std::pair<double, int64_t>> value(std::pair(newest, latest_moment_.at(name)));
    if (const auto former = former_.find(name); goes_on && former != former_.end()) value = former->second;
    if (!value) continue;
    State& saved = state[name] = State::map();
    saved["value"] = value->first;
    saved["batch"] = value->second;
  }
  return state;
}

bool LoggerConnector::has_newer_metric(const std::string& name, int64_t moment) const {
  if (active_.epoch_values) return true;  // as far as is known without computing them
  const std::optional<int64_t> of_step =
      active_.collector == nullptr ? std::nullopt : active_.collector->batch_of_step_value(name);
  return of_step.value_or(-1) > moment || moment_of_metric(name).value_or(-1) > moment;
}

void LoggerConnector::load_callback_metrics(const State& state) {
  for (const auto& [name, saved] : state.as_map())
    remember(name, saved.at("value").as_double(), saved.at("batch").as_int());
}

void LoggerConnector::forget_metrics() {
  former_.clear();
  latest_.clear();
  latest_moment_.clear();
  latest_of_bar_.clear();
  logged_.clear();
}

void LoggerConnector::end_metrics() {
  train_metrics_.end_metrics();
  evaluation_metrics_.end_metrics();
}

void LoggerConnector::forget_epochs() {
  discard_row();
  train_metrics_.reset();
  evaluation_metrics_.reset();
}

// ---- Rows

void LoggerConnector::append_to_row(const std::string& name, double value) {
  // Slots of the row are used again, so that a boundary allocates nothing once all names are known.
  if (row_size_ == row_.size()) row_.emplace_back();
  row_[row_size_].name = name;
  row_[row_size_].value = value;
  ++row_size_;
}

void LoggerConnector::add_to_row(const MetricMap& values) {
  const int64_t moment =
      active_.collector == nullptr ? state_.progress.moment() : active_.collector->training_batches();
  for (const auto& [name, value] : values) {
    metrics::check_metric_name(name);
    remember(name, value, moment);
    append_to_row(name, value);
  }
}

void LoggerConnector::add_logged_to_row(const MetricMap& values) {
  for (const auto& [name, value] : values) append_to_row(name, value);
}

std::string LoggerConnector::with_prefix(std::string_view prefix, std::string name) {
  return prefix.empty() ? name : fmt::format("{}-{}", prefix, name);
}

std::span<const MetricValue> LoggerConnector::row(std::string_view prefix) {
  if (prefix.empty()) return {row_.data(), row_size_};
  if (row_with_prefix_.size() < row_size_) row_with_prefix_.resize(row_size_);
  for (size_t i = 0; i < row_size_; ++i) {
    // Memory is used again, as that of the row is.
    row_with_prefix_[i].name.assign(prefix).append("-").append(row_[i].name);
    row_with_prefix_[i].value = row_[i].value;
  }
  return {row_with_prefix_.data(), row_size_};
}

void LoggerConnector::emit_row() {
  if (state_.running != RunningStage::kSanityCheck)
    for (size_t i = 0; i < row_size_; ++i) logged_[row_[i].name] = row_[i].value;
  if (row_size_ > 0 && state_.running != RunningStage::kSanityCheck && strategy_.is_global_zero())
    for (const auto& logger : options_.loggers)
      call_user(state_, "log_metrics", *logger, [&] {
        logger->log_metrics(row(logger->prefix()), state_.progress.global_step, state_.progress.epoch);
      });
  row_size_ = 0;
}

State LoggerConnector::row_state() const {
  State state = State::list();
  for (size_t i = 0; i < row_size_; ++i) state.push_back(State::List{row_[i].name, row_[i].value});
  return state;
}

void LoggerConnector::load_row(const State& state) {
  for (const State& item : state.as_list())
    append_to_row(item.as_list().at(0).as_string(), item.as_list().at(1).as_double());
}

void LoggerConnector::log_step_row() {
  const Activity activity(tracer_, "log_metrics");
  if (strategy_.world_size() > 1 && find_independent_steps(strategy_) == nullptr)
    train_metrics_.synchronize_step(strategy_.collective(), !state_.joining && model_.owns_outputs());
  train_metrics_.visit_step([this](const metrics::Collector::Value& value) {
    if (value.prog_bar) latest_of_bar_[value.name] = value.value;
    if (value.logger) append_to_row(value.name, value.value);
  });
  train_metrics_.end_step();
  emit_row();
}

void LoggerConnector::log_epoch_row(metrics::Collector& collector) {
  const Activity activity(tracer_, "log_metrics");
  collector.visit_epoch([this](const metrics::Collector::Value& value) {
    remember_of_epoch(value);
    if (value.prog_bar) latest_of_bar_[value.name] = value.value;
    if (value.logger) append_to_row(value.name, value.value);
  });
  emit_row();
}

// ---- The run's folder and the loggers

const std::string& LoggerConnector::run_directory() {
  if (!run_directory_.empty() || !options_.writes_files || options_.given.fast_dev_run.batches() > 0 ||
      !strategy_.is_global_zero())
    return run_directory_;
  run_directory_ = make_folder(options_.run_folder);
  if (options_.config.is_mapping())
    FileSystem::current().replace_file(run_directory_ + "/config.yaml", options_.config.to_yaml(/*with_origins=*/true));
  return run_directory_;
}

void LoggerConnector::share_run_directory() {
  const std::string& made = run_directory();
  run_directory_ = strategy_.broadcast(made);
}

void LoggerConnector::forget_run_directory() {
  run_directory_.clear();
  new_directories_.clear();
  has_hyperparameters_ = false;
}

std::string LoggerConnector::directory_of(const Logger& logger) {
  const FolderChoice choice = logger_folder(options_.given, logger, options_.run_folder);
  if (choice == options_.run_folder) return run_directory();
  if (!choice.path.empty()) return make_folder(choice);
  // Loggers that ask for a new folder at the same place share it.
  const auto [made, is_first] = new_directories_.try_emplace(choice.root);
  if (is_first) made->second = make_folder(choice);
  return made->second;
}

void LoggerConnector::start(const std::string& resumed_from, const DataModule* data_module) {
  const Activity activity(tracer_, "start_loggers");
  if (options_.loggers.empty() || !strategy_.is_global_zero()) return;
  for (const auto& logger : options_.loggers) {
    const std::string directory = directory_of(*logger);
    logger->start({directory, directory.substr(directory.rfind('/') + 1), resumed_from});
  }
  if (std::exchange(has_hyperparameters_, true)) return;
  Config hyperparameters = Config::mapping();
  const auto add = [&](const char* section, const Configurable* object) {
    if (object != nullptr && object->init_options().is_mapping()) hyperparameters.set(section, object->init_options());
  };
  add("model", state_.module.get());
  add("data", data_module);
  hyperparameters.set("config", options_.config);
  for (const auto& logger : options_.loggers) logger->log_hyperparameters(hyperparameters);
}

void LoggerConnector::flush() {
  for (const auto& logger : options_.loggers) logger->flush();
}

void LoggerConnector::finish(TrainerStatus status) {
  if (!strategy_.is_global_zero()) return;
  for (const auto& logger : options_.loggers) logger->finish(status);
}

void LoggerConnector::finish_after_failure(TrainerStatus status) {
  if (!strategy_.is_global_zero()) return;
  for (const auto& logger : options_.loggers) {
    try {
      logger->finish(status);
    } catch (const std::exception& error) {
      log::warning(fmt::format("a logger could not be ended either: {}", error.what()));
    }
  }
}

}  // namespace levin
