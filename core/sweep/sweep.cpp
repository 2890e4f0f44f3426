#include <levin/core/sweep/sweep.h>

#include <levin/core/base/child_process.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/base/setting_variables.h>
#include <levin/core/base/signals.h>
#include <levin/core/options/options.h>
#include <levin/core/options/registries.h>
#include <levin/core/sweep/batch_scaling.h>
#include <levin/core/sweep/executor_registry.h>
#include <levin/core/sweep/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

namespace levin::sweep {
namespace {

constexpr std::chrono::milliseconds kPollInterval{10};
constexpr int kSignalBase = 128;  ///< of an exit status

/// What may be changed when a sweep is started again.
const std::vector<std::string>& free_options() {
  static const std::vector<std::string> names = {"name", "dir", "parallel", "executor", "command"};
  return names;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// A message without its component.
std::string words_of(const Error& error) {
  const std::string text = error.what();
  const std::string lead = "[" + error.component() + "] ";
  return text.starts_with(lead) ? text.substr(lead.size()) : text;
}

/// The options of the callbacks model_checkpoint in a resolved configuration.
std::vector<const Config*> checkpoint_callbacks(const Config& resolved) {
  std::vector<const Config*> found;
  for (const Config& member : resolved.find("trainer")->find("callbacks")->items())
    if (const Config* options = member.find("model_checkpoint")) found.push_back(options);
  return found;
}

const Config& trainer_option(const Config& resolved, const char* name) { return *resolved.find("trainer")->find(name); }

DeviceCount devices_for(const Executor& executor, const SweepOptions& options, const Config& resolved) {
  if (executor.is_local() && options.command.empty()) return count_devices;
  // Elsewhere nobody knows how many there are.
  constexpr int64_t kAnyNumber = 1 << 16;
  const bool names_one = trainer_option(resolved, "accelerator").text() != "auto";
  return [=](const Accelerator&) { return names_one ? kAnyNumber : 0; };
}

}  // namespace

// ---- Before the first run

Sweep::Sweep(Resolve resolve) : resolve_(std::move(resolve)), program_(own_program_file()) {
  if (const auto environment = registries().detect_environment();
      environment != nullptr && environment->world_size() > 1)
    throw ConfigError(
        fmt::format("sweep starts its runs itself, and was started as one of {} ranks by {}; hint: start "
                    "it once; `sweep.command: [srun]` is put before each run",
                    environment->world_size(), environment->name()));
  const Config base = resolve_({});
  const Config* section = base.find("sweep");
  if (section == nullptr)
    throw ConfigError("there is no section sweep; hint: sweep: {grid: {model.lr: [0.001, 0.003]}}");
  options_ = parse_options<SweepOptions>(*section, "sweep");
  executor_ = options_.executor.resolve(executor_registry(), "sweep.executor");
  if (executor_->is_local() && options_.command.empty())
    machine_.emplace(MachineShare::of_this_machine(options_.parallel));
  plan(base);
}

Sweep::~Sweep() = default;

void Sweep::plan(const Config& base) {
  const Config& seed = *base.find("seed");
  const int64_t first_seed = seed.is_null() ? 0 : ConfigCodec<int64_t>::parse(seed, "seed");
  const Plan plan = make_plan(options_, first_seed, meanings_);
  table_.options = plan.options;
  table_.monitor = options_.monitor;
  table_.mode = options_.mode == "max" ? MonitorMode::kMax : MonitorMode::kMin;

  // A run that was ended goes on from `last`, and metrics.csv is what the table is made of.
  Settings common;
  if (seed.is_null()) common.push_back({"seed", ConfigCodec<int64_t>::dump(first_seed)});
  for (const Settings& varied : plan.runs) {
    try {
      add_run(common, varied);
    } catch (const ConfigError& error) {
      throw ConfigError(
          fmt::format("{} (run {} of the sweep: {})", words_of(error), table_.runs.size(), describe(varied)));
    }
  }
  plan_rungs();
}

void Sweep::add_run(const Settings& common, const Settings& varied) {
  Run run{.number = static_cast<int64_t>(table_.runs.size()),
          .settings = varied,
          .combination = meanings_.number(without_seed(varied))};
  Settings all = common;
  for (const auto& [option, value] : varied) set_setting(all, option, value);
  all.push_back({"trainer.logger.csv", Config::mapping()});  // after what varies, which may be the loggers
  Config resolved = resolve_(all);
  if (!checkpoint_callbacks(resolved).empty())
    all.push_back({"trainer.callbacks.model_checkpoint.save_last", ConfigCodec<bool>::dump(true)});

  const RunDevices devices = run_devices(*resolved.find("trainer"), devices_for(*executor_, options_, resolved));
  if (machine_) machine_->check(devices);
  const auto apply = [&](const Settings& further) {
    for (const auto& [option, value] : further) {
      set_setting(all, option, value);
      set_setting(run.settings, option, value);
      if (std::find(table_.options.begin(), table_.options.end(), option) == table_.options.end())
        table_.options.push_back(option);
    }
    resolved = resolve_(all);
  };
  const Settings batch_size = batch_size_of(options_, resolved, devices);
  for (const auto& [option, value] : batch_size)
    if (find_setting(varied, option) != nullptr)
      throw ConfigError(
          fmt::format("sweep.global_batch_size sets {}, which the sweep varies; valid: one of the two", option));
  apply(batch_size);
  apply(learning_rate_of(options_, resolved, devices));
  check_run(run, resolved);
  table_.runs.push_back(std::move(run));
  details_.push_back({.settings = std::move(all),
                      .devices = devices,
                      .max_epochs = ConfigCodec<std::optional<int64_t>>::parse(trainer_option(resolved, "max_epochs"),
                                                                               "trainer.max_epochs")});
}

void Sweep::check_run(const Run& run, const Config& resolved) {
  if (!resolved.find("ckpt")->is_null())
    throw ConfigError("ckpt: the runs of a sweep start anew and go on from their own checkpoints; valid: null");
  for (const Config* callback : checkpoint_callbacks(resolved))
    if (const Config& folder = *callback->find("dirpath"); !folder.text().empty())
      throw ConfigError(
          fmt::format("trainer.callbacks.model_checkpoint.dirpath: the runs of a sweep would share {}; "
                      "valid: none, for checkpoints in the run's own folder",
                      folder.text()));
  for (const Config* callback : checkpoint_callbacks(resolved)) {
    std::string store = callback->find("upload_to")->text();
    store.erase(store.find_last_not_of('/') + 1);
    if (store.empty()) continue;
    if (const int64_t owner = stores_.try_emplace(store, run.number).first->second; owner != run.number)
      throw ConfigError(fmt::format(
          "trainer.callbacks.model_checkpoint.upload_to: runs {} and {} would share {} and resume from each "
          "other's checkpoints; valid: none, or a folder for each run as an option that varies",
          table_.runs[static_cast<size_t>(owner)].name(), run.name(), store));
  }
  if (!options_.successive_halving) return;
  const auto& [min_epochs, factor] = *options_.successive_halving;
  if (trainer_option(resolved, "enable_checkpointing").text() == "false")
    throw ConfigError("sweep.successive_halving goes on from checkpoints; valid: trainer.enable_checkpointing=true");
  if (const Config& least = trainer_option(resolved, "min_epochs");
      !least.is_null() && ConfigCodec<int64_t>::parse(least, "trainer.min_epochs") > min_epochs)
    throw ConfigError(
        fmt::format("trainer.min_epochs must be at most sweep.successive_halving.min_epochs; got {} and {}",
                    least.text(), min_epochs));
  if (const Config& least = trainer_option(resolved, "min_steps"); !least.is_null() && least.text() != "0")
    throw ConfigError(fmt::format(
        "trainer.min_steps does not work with sweep.successive_halving, whose runs pause after whole epochs; "
        "got {}; valid: null; hint: trainer.min_epochs",
        least.text()));
}

void Sweep::plan_rungs() {
  if (!options_.successive_halving) return;
  const auto& [min_epochs, factor] = *options_.successive_halving;
  const auto max_epochs = details_.front().max_epochs;
  for (const Details& details : details_)
    if (details.max_epochs != max_epochs)
      throw ConfigError("sweep.successive_halving: trainer.max_epochs must be the same for all runs");
  if (max_epochs.value_or(-1) <= min_epochs)
    throw ConfigError(
        fmt::format("sweep.successive_halving: trainer.max_epochs must be above min_epochs; got {} and {}",
                    max_epochs ? std::to_string(*max_epochs) : "null", min_epochs));
  rung_epochs_ = rung_epochs(min_epochs, factor, *max_epochs);
  table_.has_rungs = true;
  halving_.emplace(rung_epochs_.size(), factor, table_.mode);
}

/// What sweep.yaml has: a sweep that is started again must have the same.
Config Sweep::description(const Config& base) const {
  Config configuration = base;
  Config section = *base.find("sweep");
  for (const std::string& name : free_options()) section.erase(name);
  configuration.erase("sweep");
  Config description = Config::mapping();
  description.set("options", ConfigCodec<std::vector<std::string>>::dump(table_.options));
  for (const auto& entry : section.entries()) description.set(entry.key, entry.value);
  description.set("configuration", configuration);
  return description;
}

void Sweep::open_folder() {
  const Config base = resolve_({});
  const Config what = description(base);
  const std::string sweeps = trainer_option(base, "default_root_dir").text() + "/sweeps";
  const std::string path = !options_.dir.empty()    ? options_.dir
                           : !options_.name.empty() ? named_folder(sweeps, options_.name)
                                                    : next_version(sweeps, what);
  folder_.emplace(path, what);
}

/// Takes over what an earlier start has done.
void Sweep::restore() {
  table_.restore(folder_->read_table());
  for (Run& run : table_.runs) {
    const std::string folder = run_folder(run);
    const bool has_ended = run.status == RunStatus::kFinished || run.status == RunStatus::kStoppedEarly;
    if (has_ended) run.metrics = last_metrics(folder);
    if (!has_ended && (run.status != RunStatus::kWaiting || run.seconds > 0 || run.rung > 0))
      interrupted_.push_back(run.number);
    if (!has_ended) run.status = RunStatus::kWaiting;
    if (!halving_) continue;
    for (size_t rung = 0; rung < run.rung + (has_ended ? 1 : 0); ++rung) {
      if (const auto value = value_at(run, rung)) halving_->record(run.number, rung, *value);
      if (rung < run.rung) halving_->promote(run.number, rung);
    }
  }
}

// ---- Runs

void Sweep::run() {
  const SignalScope signals;
  open_folder();
  restore();
  executor_->begin({.folder = folder_->path(), .parallel = options_.parallel, .lock = folder_->lock()});
  write_table();
  log::info(
      fmt::format("sweep of {} run(s), {} at a time, in {}", table_.runs.size(), options_.parallel, folder_->path()));
  while (true) {
    if (signal_ == 0 && SignalScope::received() != 0) {
      signal_ = SignalScope::received();
      executor_->interrupt(signal_);
    }
    const auto ends = executor_->poll();
    for (const RunEnd& end : ends) finish(end);
    const bool has_started = signal_ == 0 && start_next();
    if (!ends.empty() || has_started) write_table();
    if (running_.empty()) break;
    if (ends.empty()) std::this_thread::sleep_for(kPollInterval);
  }
  if (signal_ != 0) keep_next_run();
  warn_without_monitor();
}

/// Starts as many runs as there is room for; false when none was started.
bool Sweep::start_next() {
  const bool takes_all = executor_->has_queue() && !halving_;
  std::vector<RunCommand> commands;
  while (takes_all || static_cast<int64_t>(running_.size()) < options_.parallel) {
    const auto number = next_run();
    if (!number) break;
    Run& run = table_.runs[static_cast<size_t>(*number)];
    MachineShare::Variables variables;
    if (machine_) {
      auto share = machine_->take(*number, details_[static_cast<size_t>(*number)].devices);
      if (!share) {
        interrupted_.push_front(*number);
        break;
      }
      variables = std::move(*share);
    }
    run.status = RunStatus::kRunning;
    run.error.clear();
    running_[*number] = now();
    commands.push_back(command_of(run, std::move(variables)));
  }
  if (commands.empty()) return false;
  // The table says that they run before they do: a sweep that is killed here starts them again.
  write_table();
  executor_->start(commands);
  return true;
}

/// The run that is to start next: one that was interrupted, one that goes on from a rung, or the next one in order.
std::optional<int64_t> Sweep::next_run() {
  if (!interrupted_.empty()) {
    const int64_t number = interrupted_.front();
    interrupted_.pop_front();
    return number;
  }
  const auto promoted = [&](bool nothing_left) -> std::optional<int64_t> {
    const auto promotion = halving_ ? halving_->next(nothing_left) : std::nullopt;
    if (!promotion) return {};
    halving_->promote(promotion->run, promotion->rung - 1);
    Run& run = table_.runs[static_cast<size_t>(promotion->run)];
    run.rung = promotion->rung;
    run.status = RunStatus::kWaiting;  // until there is room for it
    return promotion->run;
  };
  if (const auto number = promoted(/*nothing_left=*/false)) return number;
  for (; next_fresh_ < table_.runs.size(); ++next_fresh_) {
    const Run& run = table_.runs[next_fresh_];
    if (run.status == RunStatus::kWaiting && run.seconds == 0 && run.rung == 0)
      return table_.runs[next_fresh_++].number;
  }
  return running_.empty() ? promoted(/*nothing_left=*/true) : std::nullopt;
}

/// Lets the table of a sweep that ends early say what is still to run, also where no run was interrupted.
void Sweep::keep_next_run() {
  const auto waits = [](const Run& run) { return run.status == RunStatus::kWaiting; };
  if (std::none_of(table_.runs.begin(), table_.runs.end(), waits) && next_run()) write_table();
}

RunCommand Sweep::command_of(const Run& run, MachineShare::Variables variables) const {
  const std::string folder = run_folder(run);
  FileSystem::current().create_directories(folder);
  Settings settings = details_[static_cast<size_t>(run.number)].settings;
  set_setting(settings, "trainer.run_dir", ConfigCodec<std::string>::dump(folder));
  if (halving_ && run.rung + 1 < rung_epochs_.size())
    set_setting(settings, "trainer.callbacks.pause_training.after_epochs",
                ConfigCodec<int64_t>::dump(rung_epochs_[run.rung]));
  Config config = resolve_(settings);
  config.erase("sweep");
  FileSystem::current().replace_file(folder + "/config.yaml", config.to_yaml());
  std::vector<std::string> words;
  // They are in the run's configuration already, below what the sweep varies.
  for (const auto& [name, value] : setting_variables()) {
    if (words.empty()) words.emplace_back("env");
    words.insert(words.end(), {"-u", name});
  }
  words.insert(words.end(), options_.command.begin(), options_.command.end());
  for (const std::string& word : {program_, std::string("fit"), std::string("--config"), folder + "/config.yaml",
                                  std::string("--ckpt"), std::string("auto")})
    words.push_back(word);
  return {.number = run.number, .folder = folder, .words = std::move(words), .environment = std::move(variables)};
}

void Sweep::finish(const RunEnd& end) {
  Run& run = table_.runs[static_cast<size_t>(end.number)];
  running_.erase(end.number);
  if (machine_) machine_->give_back(end.number);
  // As sweep.csv has it, so that a sweep that is started again shows the same.
  run.seconds = std::round((run.seconds + end.seconds) * 1000) / 1000;
  if (end.status == 0) {
    run.metrics = last_metrics(run_folder(run));
    run.status = RunStatus::kFinished;
    if (halving_) end_rung(run);
  } else if (signal_ != 0) {
    run.status = RunStatus::kWaiting;
  } else {
    run.status = RunStatus::kFailed;
    run.error = end.how;
    if (run.error.empty()) run.error = last_error(run_folder(run));
    if (run.error.empty())
      run.error = end.status > kSignalBase ? fmt::format("was ended by signal {} ({})", end.status - kSignalBase,
                                                         strsignal(end.status - kSignalBase))
                                           : fmt::format("ended with status {}", end.status);
  }
  say(run);
}

/// The metric at the end of a rung.
std::optional<double> Sweep::value_at(const Run& run, size_t rung) const {
  for (const auto& [name, value] : last_metrics(run_folder(run), rung_epochs_[rung]))
    if (name == table_.monitor) return value;
  return {};
}

void Sweep::end_rung(Run& run) {
  const auto value = value_at(run, run.rung);
  if (!value) {
    std::vector<std::string> names;
    for (const auto& [name, ignored] : run.metrics) names.push_back(name);
    run.status = RunStatus::kFailed;
    run.error = fmt::format("no value of sweep.monitor, {}, after {} epochs{}", table_.monitor, rung_epochs_[run.rung],
                            valid_names_hint(table_.monitor, names));
    return;
  }
  halving_->record(run.number, run.rung, *value);
  if (run.rung + 1 < rung_epochs_.size()) run.status = RunStatus::kStoppedEarly;
}

void Sweep::say(const Run& run) const {
  const auto count = std::count_if(table_.runs.begin(), table_.runs.end(), [](const Run& each) {
    return each.status != RunStatus::kWaiting && each.status != RunStatus::kRunning;
  });
  const std::string what =
      fmt::format("run {} ({} of {}), {}", run.name(), count, table_.runs.size(), describe(run.settings));
  const auto value = run.metric(table_.monitor);
  const std::string result = value ? fmt::format(", {} {:.4g}", table_.monitor, *value) : "";
  switch (run.status) {
    case RunStatus::kFailed:
      return log::warning(fmt::format("{}: failed: {}", what, run.error));
    case RunStatus::kWaiting:
      return log::info(fmt::format("{}: interrupted", what));
    case RunStatus::kStoppedEarly:
      return log::info(fmt::format("{}: {} epochs{}", what, rung_epochs_[run.rung], result));
    default:
      return log::info(fmt::format("{}: finished in {:.1f} s{}", what, run.seconds, result));
  }
}

void Sweep::warn_without_monitor() const {
  if (const std::string why = table_.why_no_best(); !why.empty()) log::warning(why);
}

void Sweep::write_table() {
  RunTable shown = table_;
  for (const auto& [number, began] : running_) shown.runs[static_cast<size_t>(number)].seconds += now() - began;
  folder_->write_table(shown.to_csv());
}

bool Sweep::has_failures() const {
  return std::any_of(table_.runs.begin(), table_.runs.end(),
                     [](const Run& run) { return run.status == RunStatus::kFailed; });
}

}  // namespace levin::sweep
