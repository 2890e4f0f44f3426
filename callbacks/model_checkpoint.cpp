#include <levin/callbacks/model_checkpoint.h>

#include <levin/callbacks/monitor.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_uploader.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

namespace levin {
namespace {

constexpr const char* kComponent = "model_checkpoint";

std::optional<std::chrono::seconds> parse_interval(const ModelCheckpointOptions& options) {
  if (!options.train_time_interval) return {};
  const auto interval = parse_duration(*options.train_time_interval);
  if (!interval)
    throw ConfigError(fmt::format("model_checkpoint.train_time_interval must be a time as DD:HH:MM:SS; got '{}'",
                                  *options.train_time_interval));
  return interval;
}

/// Whether both lead to the same place, in whatever form they are given.
bool is_same_path(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto normal = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return path.empty() ? path : std::filesystem::absolute(path, ignored).lexically_normal();
  };
  return normal(a) == normal(b);
}

void check_conflicts(const ModelCheckpointOptions& options) {
  std::vector<std::string> intervals;
  if (options.every_n_train_steps) intervals.emplace_back("every_n_train_steps");
  if (options.every_n_epochs) intervals.emplace_back("every_n_epochs");
  if (options.train_time_interval) intervals.emplace_back("train_time_interval");
  if (intervals.size() > 1)
    throw ConfigError(
        fmt::format("model_checkpoint has several intervals; got {}; valid: one of them; hint: use one "
                    "model_checkpoint for each",
                    join(intervals, " and ")));
  if (!options.save_weights_only && (options.format == "safetensors" || options.format == "pytorch"))
    throw ConfigError(fmt::format(
        "model_checkpoint.format={} holds weights alone; hint: save_weights_only: true, or format: levin or "
        "lightning, from which training can go on",
        options.format));
  if (!options.upload_to.empty()) {
    parse_remote_url(options.upload_to, "model_checkpoint.upload_to");
    if (options.format != "levin")
      throw ConfigError(
          fmt::format("model_checkpoint.upload_to uploads folders; got format={}; valid: levin", options.format));
  }
  if (is_remote(options.dirpath))
    throw ConfigError(
        fmt::format("model_checkpoint.dirpath is a folder of this machine; got '{}'; hint: upload_to copies "
                    "what is saved to a store",
                    options.dirpath));
  if (options.monitor.empty() && options.save_top_k > 1)
    throw ConfigError(
        fmt::format("model_checkpoint.save_top_k={} needs model_checkpoint.monitor; without it the newest is "
                    "kept; valid: -1, 0, 1; hint: monitor: step and mode: max keep the newest k",
                    options.save_top_k));
}

}  // namespace

void ModelCheckpointOptions::describe(Schema<ModelCheckpointOptions>& schema) {
  using O = ModelCheckpointOptions;
  const auto is_duration = [](const std::string& text) { return parse_duration(text).has_value(); };
  schema.field("monitor", &O::monitor, "metric that ranks checkpoints, or epoch or step; empty: keep the newest");
  schema.field("mode", &O::mode, "direction of improvement; min: smaller is better; max: larger")
      .one_of({"min", "max"});
  schema.field("save_top_k", &O::save_top_k, "number of the best to keep; -1: all; 0: none").at_least(-1);
  schema.field("save_last", &O::save_last, "also keep the newest state as 'last'");
  schema.field("every_n_train_steps", &O::every_n_train_steps, "optimizer steps between saves").at_least(1);
  schema.field("every_n_epochs", &O::every_n_epochs, "epochs between saves; 1 when no other interval is set")
      .at_least(1);
  schema.field("train_time_interval", &O::train_time_interval, "training time between saves")
      .require("a time as DD:HH:MM:SS", is_duration);
  schema.field("filename", &O::filename, "name of a checkpoint, with metrics as in {val_loss:.2f}");
  schema.field("auto_insert_metric_name", &O::auto_insert_metric_name, "epoch=1 rather than 1 in the name");
  schema.field("dirpath", &O::dirpath, "folder for checkpoints; empty: 'checkpoints' of the run's folder");
  schema.field("save_on_train_epoch_end", &O::save_on_train_epoch_end,
               "true: at the epoch's end; false: after validation; null: validation once per epoch: at the epoch's "
               "end; otherwise after every validation");
  schema.field("asynchronous", &O::asynchronous,
               "write checkpoints in the background, from a copy in the host's memory");
  schema.field("save_on_exception", &O::save_on_exception, "save 'on_exception' when training fails");
  schema.field("enable_version_counter", &O::enable_version_counter,
               "append -v1, -v2, ... to a name that is taken; false: overwrite it");
  schema.field("save_weights_only", &O::save_weights_only, "save weights only, for init_from, not to resume from");
  schema
      .field("format", &O::format,
             "levin: a checkpoint; safetensors, pytorch (.pth): a file of weights; lightning (.ckpt): a file that "
             "PyTorch Lightning resumes too")
      .one_of({"levin", "safetensors", "pytorch", "lightning"});
  schema.field(
      "upload_to", &O::upload_to,
      "folder of a store to copy this run's checkpoints to, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER; empty: none");
}

ModelCheckpoint::ModelCheckpoint(const Options& options)
    : options_(options),
      mode_(parse_monitor_mode(options.mode, "model_checkpoint.mode")),
      name_(options.filename, options.auto_insert_metric_name, "model_checkpoint.filename"),
      interval_(parse_interval(options)),
      moment_(options.save_on_train_epoch_end),
      record_{.top = TopCheckpoints(mode_, options.save_top_k)} {
  check_conflicts(options);
}

std::string ModelCheckpoint::state_key() const {
  std::string interval = fmt::format("every_n_epochs={}", options_.every_n_epochs.value_or(1));
  if (options_.every_n_train_steps) interval = fmt::format("every_n_train_steps={}", *options_.every_n_train_steps);
  if (interval_) interval = fmt::format("train_time_interval={}", *options_.train_time_interval);
  return fmt::format("model_checkpoint(monitor={}, mode={}, {})", options_.monitor, options_.mode, interval);
}

std::string ModelCheckpoint::best_model_path() const {
  if (options_.monitor.empty()) return last_model_path();
  const auto* best = record_.top.best();
  return best == nullptr ? "" : best->path;
}

std::optional<double> ModelCheckpoint::best_model_score() const {
  const auto* best = record_.top.best();
  return best == nullptr ? std::nullopt : std::optional(best->score);
}

std::optional<double> ModelCheckpoint::kth_value() const {
  const auto* worst = record_.top.worst_of_full();
  return worst == nullptr ? std::nullopt : std::optional(worst->score);
}

std::vector<std::string> ModelCheckpoint::kept_paths() const {
  std::vector<std::string> paths;
  for (const auto& item : record_.top.items()) paths.push_back(item.path);
  for (const std::string& path : {record_.ranked_path, record_.last_path})
    if (!path.empty()) paths.push_back(path);
  return paths;
}

// ---- When.

void ModelCheckpoint::setup(Trainer& trainer, Module&, Stage stage) {
  // Every fit starts from nothing, or from the state that it resumes.
  if (stage != Stage::kFit) return;
  if (!options_.upload_to.empty() && trainer.is_global_zero() && !folder(trainer).empty())
    check_remote_folder(options_.upload_to);
  paths_.set_run(trainer.run_directory());
  record_ = {.top = TopCheckpoints(mode_, options_.save_top_k)};
  before_newest_.reset();
  of_signal_.clear();
}

void ModelCheckpoint::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                         int64_t batch_idx) {
  moment_.count_batches(batch_idx + 1);
  if (!saves_by_epoch() && is_step_due(trainer)) save_due(trainer, MadeIn::kThisBatch, /*metric_required=*/false);
}

void ModelCheckpoint::on_validation_end(Trainer& trainer, Module&) {
  if (trainer.stage() != Stage::kFit || trainer.sanity_checking()) return;
  const bool is_moment = moment_.is_validation_end(trainer);
  if (is_moment && is_epoch_due(trainer))
    save_due(trainer, MadeIn::kThisEpoch, /*metric_required=*/true);
  else if (record_.waits && (is_moment || !saves_by_epoch()))
    end_waiting(trainer, /*metric_required=*/false);
}

void ModelCheckpoint::on_train_epoch_end(Trainer& trainer, Module&) {
  const bool is_moment = moment_.is_train_epoch_end(trainer);
  const bool required = moment_.all_metrics_due(trainer);
  if (is_moment && is_epoch_due(trainer))
    save_due(trainer, MadeIn::kThisEpoch, required);
  else if (record_.waits && (is_moment || !saves_by_epoch()))
    end_waiting(trainer, required);
}

void ModelCheckpoint::on_train_end(Trainer& trainer, Module&) {
  if (trainer.fit_interrupted()) return;  // a run that goes on from `last` comes here
  // Training ended before saving was due for the first time, or some steps after it was due last.
  const bool never_due =
      record_.considered_step < 0 || (record_.was_due_at_end && record_.considered_step != trainer.global_step());
  if (never_due && saves_by_epoch() && !options_.every_n_epochs && trainer.global_step() > 0)
    save_due(trainer, MadeIn::kThisEpoch, false, /*at_end=*/true);
  else if (options_.save_last && (record_.last_step != trainer.global_step() || record_.last_is_of_signal ||
                                  record_.newest_path != record_.last_path))
    write_last(trainer, /*is_due=*/true);  // the latter two where a run was ended in between, and goes on
  else
    save_end(trainer);
  if (record_.waits && !options_.monitor.empty() && options_.save_top_k != 0)
    log::rank_zero_warning(fmt::format(
        "model_checkpoint: training ended before '{}' had a value that ranks the checkpoint due at step {}, so that {} "
        "saved for it; hint: validate more often, or save_last: true",
        options_.monitor, record_.considered_step, record_.top.best() == nullptr ? "none was" : "it was not"));
}

bool ModelCheckpoint::is_epoch_due(const Trainer& trainer) const {
  return saves_by_epoch() && record_.considered_step != trainer.global_step() &&
         (trainer.current_epoch() + 1) % options_.every_n_epochs.value_or(1) == 0;
}

bool ModelCheckpoint::is_step_due(const Trainer& trainer) const {
  const int64_t step = trainer.global_step();
  if (step == 0 || step == record_.considered_step) return false;
  if (options_.every_n_train_steps) return step % *options_.every_n_train_steps == 0;
  const bool due = trainer.elapsed_seconds() - record_.considered_seconds >= static_cast<double>(interval_->count());
  if (trainer.world_size() == 1) return due;
  // Clocks differ: ranks agree, but not in every step.
  return step % trainer.options().log_every_n_steps == 0 &&
         trainer.strategy().collective().broadcast_bytes(due ? "y" : "n", 0) == "y";
}

// ---- What.

/// `metric_required`: a whole validation or epoch is over, so that a metric that is still missing is a mistake.
void ModelCheckpoint::save_due(Trainer& trainer, MadeIn made_in, bool metric_required, bool at_end) {
  if (folder(trainer).empty()) return;
  const int64_t former_step = record_.considered_step;
  record_.was_due_at_end = at_end;
  record_.considered_step = trainer.global_step();
  record_.considered_seconds = trainer.elapsed_seconds();
  try {
    const Metrics metrics = candidates(trainer);
    if (!options_.monitor.empty())
      save_best(trainer, metrics, made_in, metric_required);
    else if (options_.save_top_k != 0)
      save_newest(trainer, metrics);
    if (options_.save_last) write_last(trainer, /*is_due=*/true);
  } catch (...) {
    record_.considered_step = former_step;
    throw;
  }
}

/// Saving was due before, and `last` was saved then.
void ModelCheckpoint::end_waiting(Trainer& trainer, bool metric_required) {
  if (folder(trainer).empty()) return;
  const MadeIn made_in = saves_by_epoch() ? MadeIn::kThisEpoch : MadeIn::kThisBatch;
  if (save_best(trainer, candidates(trainer), made_in, metric_required) && options_.save_last)
    write_last(trainer, /*is_due=*/true);
}

/// Returns whether there is a value that ranks the weights.
bool ModelCheckpoint::save_best(Trainer& trainer, const Metrics& metrics, MadeIn made_in, bool metric_required) {
  const auto found = monitored(trainer, metrics);
  if (!found && metric_required) throw missing_metric_error(kComponent, options_.monitor, metrics);
  const int64_t oldest = made_in == MadeIn::kThisBatch ? trainer.moment() : trainer.moment_before_epoch() + 1;
  if (!found || found->moment < oldest || found->moment <= record_.ranked_moment) {
    record_.waits = true;
    return false;
  }
  const double score = found->value;
  if (std::isnan(score))
    log::rank_zero_warning(fmt::format("model_checkpoint: {} is NaN in epoch {}, step {}; it ranks as the worst value",
                                       options_.monitor, trainer.current_epoch(), trainer.global_step()));
  Record next = record_;
  next.waits = false;
  next.ranked_moment = found->moment;
  next.current_score = score;
  if (!next.top.accepts(score)) {
    record_ = std::move(next);
    return true;
  }

  const std::string path = free_path(trainer, name_.render(trainer.current_epoch(), trainer.global_step(), metrics),
                                     record_.top.next_superseded());
  const std::string superseded = next.top.add(path, score);
  set_newest(trainer, next, path);
  write(trainer, std::move(next), path, false, superseded);
  return true;
}

void ModelCheckpoint::save_newest(Trainer& trainer, const Metrics& metrics) {
  const std::string superseded = options_.save_top_k == 1 ? record_.ranked_path : "";
  const std::string path =
      free_path(trainer, name_.render(trainer.current_epoch(), trainer.global_step(), metrics), superseded);
  Record next = record_;
  next.ranked_path = path;
  set_newest(trainer, next, path);
  write(trainer, std::move(next), path, false, superseded);
}

/// A signal ends training: a run that goes on from here saves what the undisturbed one would have saved.
void ModelCheckpoint::save_last(Trainer& trainer) { write_last(trainer, /*is_due=*/false); }

void ModelCheckpoint::write_last(Trainer& trainer, bool is_due) {
  if (folder(trainer).empty()) return;
  const std::string path = free_path(trainer, kLastName, record_.last_path);
  Record next = record_;
  next.last_path = path;
  next.last_is_of_signal = !is_due;
  if (is_due) {
    set_newest(trainer, next, path);
    next.last_step = trainer.global_step();
  }
  write(trainer, std::move(next), path, true);
  if (!is_due) of_signal_ = path;
}

void ModelCheckpoint::set_newest(const Trainer& trainer, Record& record, const std::string& path) {
  record.newest_path = path;
  record.newest_step = trainer.global_step();
  record.newest_is_end = trainer.fit_ended();
}

void ModelCheckpoint::save_end(Trainer& trainer) {
  if (record_.newest_step != trainer.global_step() || record_.newest_is_end || !trainer.fit_ended()) return;
  Record next = record_;
  next.newest_is_end = true;
  const std::string path = next.newest_path;
  write(trainer, std::move(next), path, /*is_last=*/path == record_.last_path);
}

void ModelCheckpoint::on_exception(Trainer& trainer, Module&, const std::exception_ptr&) {
  forget_unwritten();
  if (!options_.save_on_exception || trainer.stage() != Stage::kFit || trainer.sanity_checking()) return;
  if (trainer.global_step() == 0 || folder(trainer).empty()) return;
  if (trainer.world_size() > 1) {
    log::rank_zero_warning("save_on_exception saves nothing where several ranks train: the others are gone");
    return;
  }
  try {
    const std::string path = free_path(trainer, kExceptionName, "");
    Record next = record_;
    set_newest(trainer, next, path);
    write(trainer, std::move(next), path, true);
    log::rank_zero_info(fmt::format("training failed; its state is in {}", path));
  } catch (const std::exception& error) {
    // The error that ended training is the one that the user must see.
    log::rank_zero_warning(fmt::format("could not save a checkpoint after the failure: {}", error.what()));
  }
}

/// The record changes before the checkpoint is written, since it is saved within it.
void ModelCheckpoint::write(Trainer& trainer, Record next, const std::string& path, bool is_last,
                            const std::string& superseded) {
  std::swap(record_, next);
  try {
    const auto value = monitored(trainer, candidates(trainer));
    const bool has_value = value && (!is_last || value->moment == trainer.moment());
    const bool after_failure = trainer.status() == TrainerStatus::kFailed;
    trainer.save_checkpoint(path,
                            {.path = path,
                             .epoch = trainer.current_epoch(),
                             .global_step = trainer.global_step(),
                             .monitor = options_.monitor,
                             .score = has_value ? std::optional(value->value) : std::nullopt,
                             .is_best = !options_.monitor.empty() && best_model_path() == path,
                             .is_last = is_last,
                             .asynchronous = options_.asynchronous && !after_failure,
                             .weights_only = options_.save_weights_only,
                             .format = options_.format,
                             .supersedes = superseded != path && may_remove(trainer, superseded) ? superseded : "",
                             .upload_to = options_.upload_to});
  } catch (...) {
    record_ = std::move(next);
    throw;
  }
  if (options_.asynchronous) before_newest_ = std::move(next);
}

/// Writing beside training is over, and what it failed with is known to all but this record.
void ModelCheckpoint::forget_unwritten() {
  const auto before = std::exchange(before_newest_, std::nullopt);
  if (before && !FileSystem::current().exists(record_.newest_path)) record_ = *before;
}

bool ModelCheckpoint::may_remove(const Trainer& trainer, const std::string& path) const {
  return !path.empty() && is_same_path(std::filesystem::path(path).parent_path(), folder(trainer));
}

std::string ModelCheckpoint::folder(const Trainer& trainer) const {
  if (trainer.options().fast_dev_run.batches() > 0) return "";
  if (!options_.dirpath.empty()) return std::filesystem::path(options_.dirpath + "/").parent_path().string();
  const std::string run = trainer.run_directory();
  return run.empty() ? "" : run + "/checkpoints";
}

std::string ModelCheckpoint::suffix() const {
  if (options_.format == "safetensors") return ".safetensors";
  if (options_.format == "pytorch") return ".pth";
  return options_.format == "lightning" ? ".ckpt" : "";
}

std::string ModelCheckpoint::free_path(Trainer& trainer, const std::string& name,
                                       const std::string& may_replace) const {
  const std::string wanted = folder(trainer) + "/" + name;
  std::string path = wanted + suffix();
  if (options_.enable_version_counter && trainer.is_global_zero()) {
    for (int64_t version = 1;
         !is_same_path(path, may_replace) && (FileSystem::current().exists(path) || trainer.is_saving(path)); ++version)
      path = fmt::format("{}-v{}{}", wanted, version, suffix());
  }
  return from_rank_zero(trainer, path);
}

ModelCheckpoint::Metrics ModelCheckpoint::candidates(Trainer& trainer) const {
  trainer.combine_step_metrics();
  Metrics metrics = trainer.callback_metrics();
  metrics.emplace("epoch", static_cast<double>(trainer.current_epoch()));
  metrics.emplace("step", static_cast<double>(trainer.global_step()));
  return metrics;
}

std::optional<MonitoredValue> ModelCheckpoint::monitored(Trainer& trainer, const Metrics& metrics) const {
  return monitored_value(trainer, options_.monitor, metrics);
}

// ---- State.

State ModelCheckpoint::state_dict() const {
  State state = State::map();
  const auto saved = [this](const std::string& path) { return paths_.to_saved(path); };
  const auto optional = [](std::optional<double> value) { return value ? State(*value) : State(); };
  state["monitor"] = options_.monitor;
  paths_.save(state);
  state["best_model_path"] = saved(options_.monitor.empty() ? record_.newest_path : best_model_path());
  state["best_model_score"] = optional(best_model_score());
  state["best_k_models"] = record_.top.to_state(saved);
  state["kth_best_model_path"] = saved(kth_best_model_path());
  state["kth_value"] = optional(kth_value());
  state["current_score"] = optional(record_.current_score);
  state["ranked_path"] = saved(record_.ranked_path);
  state["last_path"] = saved(record_.last_path);
  state["last_model_path"] = saved(record_.newest_path);
  state["newest_step"] = record_.newest_step;
  state["newest_is_end"] = record_.newest_is_end;
  state["considered_step"] = record_.considered_step;
  state["considered_seconds"] = record_.considered_seconds;
  state["waits"] = record_.waits;
  state["ranked_batch"] = record_.ranked_moment;
  state["last_step"] = record_.last_step;
  state["last_is_of_signal"] = record_.last_is_of_signal;
  state["was_due_at_end"] = record_.was_due_at_end;
  return state;
}

void ModelCheckpoint::on_load_checkpoint(Trainer&, Module&, const State& checkpoint) {
  if (const State* path = checkpoint.find("path")) paths_.note_checkpoint(path->as_string(), checkpoint);
}

void ModelCheckpoint::load_state_dict(const State& state) {
  paths_.load(state);
  const auto to_path = [this](const std::string& saved) { return paths_.to_path(saved); };
  const auto existing = [&](std::string_view key) { return to_path(state.at(key).as_string()); };
  const State& score = state.at("current_score");
  if (const int64_t gone = record_.top.load(state.at("best_k_models"), to_path); gone > 0)
    log::rank_zero_warning(
        fmt::format("model_checkpoint: {} of the {} best checkpoints that the run had kept cannot be found, and are no "
                    "longer ranked; hint: move a run's folder as a whole",
                    gone, state.at("best_k_models").as_list().size()));
  record_.ranked_path = existing("ranked_path");
  record_.last_path = existing("last_path");
  record_.newest_path = existing("last_model_path");
  record_.current_score = score.is_null() ? std::nullopt : std::optional(score.as_double());
  record_.considered_step = state.at("considered_step").as_int();
  record_.considered_seconds = state.at("considered_seconds").as_double();
  record_.waits = state.at("waits").as_bool();
  record_.ranked_moment = state.at("ranked_batch").as_int();
  record_.last_step = state.at("last_step").as_int();
  const auto is_set = [&](std::string_view key) {  // a checkpoint of an earlier version does not say
    const State* flag = state.find(key);
    return flag != nullptr && flag->as_bool();
  };
  record_.last_is_of_signal = is_set("last_is_of_signal");
  record_.was_due_at_end = is_set("was_due_at_end");
  record_.newest_is_end = is_set("newest_is_end");
  const State* newest_step = state.find("newest_step");
  record_.newest_step = newest_step != nullptr ? newest_step->as_int() : -1;
  paths_.note_checkpoint("", State::map());  // what is loaded next may come from no checkpoint
}

}  // namespace levin
