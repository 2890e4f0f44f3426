#include <levin/callbacks/goodput_monitor.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace levin {
namespace {

using GoodputCause = GoodputMonitor::Cause;

constexpr std::array<const char*, GoodputMonitor::kCauses> kCauseNames = {
    "progress", "start", "data", "checkpoint", "validation", "repeated", "down"};

double& of(GoodputMonitor::Seconds& seconds, GoodputCause cause) { return seconds[static_cast<size_t>(cause)]; }

double sum_of(const GoodputMonitor::Seconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string new_job() {
  std::random_device random;  // not of the seeds: runs with the same seed are other jobs
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// What a run of the job left about itself.
struct LastNote {
  double time = 0;
  GoodputMonitor::Seconds seconds = {};
};

/// Reads goodput.json; nothing where there is none of this job.
std::optional<LastNote> read_note(const std::string& path, const std::string& job) {
  if (path.empty() || !FileSystem::current().exists(path)) return std::nullopt;
  try {
    const auto note = nlohmann::json::parse(FileSystem::current().read_file(path));
    if (note.at("job").get<std::string>() != job) return std::nullopt;
    LastNote read{.time = note.at("time").get<double>()};
    for (size_t i = 0; i < kCauseNames.size(); ++i)
      read.seconds[i] = note.at("seconds").at(kCauseNames[i]).get<double>();
    return read;
  } catch (const std::exception& error) {
    log::rank_zero_warning(fmt::format("goodput_monitor: {} is left out; got '{}'", path, error.what()));
    return std::nullopt;
  }
}

}  // namespace

void GoodputMonitorOptions::describe(Schema<GoodputMonitorOptions>& schema) {
  schema.field("save_every", &GoodputMonitorOptions::save_every, "time between two writes of goodput.json (s)")
      .above(0)
      .at_most(1e6);
}

GoodputMonitor::GoodputMonitor(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "goodput_monitor");
}

// ---- Counting

void GoodputMonitor::count(Cause cause) {
  if (trainer_ == nullptr) return;
  const Clock::time_point now = Clock::now();
  const double waited = trainer_->data_wait_seconds();
  const double passed = std::chrono::duration<double>(now - since_).count();
  const double for_data = std::clamp(waited - data_wait_, 0.0, passed);
  if (std::exchange(may_save_, false) && std::exchange(was_saved_, false)) cause = Cause::kCheckpoint;
  if (is_starting_) cause = Cause::kStart;
  of(seconds_, is_starting_ ? Cause::kStart : Cause::kData) += for_data;
  of(seconds_, cause) += passed - for_data;
  since_ = now;
  data_wait_ = waited;
}

void GoodputMonitor::count_before_checkpoints(Cause cause) {
  count(cause);
  may_save_ = true;
  was_saved_ = false;
}

GoodputMonitor::Seconds GoodputMonitor::seconds() const {
  Seconds seconds = seconds_;
  if (trainer_ == nullptr) return seconds;
  // What is under way counts as what it will be if nothing else comes.
  of(seconds, is_starting_ ? Cause::kStart
              : may_save_  ? Cause::kCheckpoint
                           : Cause::kProgress) += std::chrono::duration<double>(Clock::now() - since_).count();
  return seconds;
}

void GoodputMonitor::setup(Trainer& trainer, Module&, Stage stage) {
  trainer_ = nullptr;
  if (stage != Stage::kFit) return;
  trainer_ = &trainer;
  job_ = new_job();
  is_known_ = false;
  const std::string folder = trainer.run_directory();
  file_ = folder.empty() ? "" : folder + "/goodput.json";
  seconds_ = {};
  since_ = written_ = Clock::now();
  began_ = seconds_since_1970();
  data_wait_ = trainer.data_wait_seconds();
  is_starting_ = true;
  may_save_ = false;
}

void GoodputMonitor::on_train_start(Trainer&, Module&) {
  is_known_ = true;
  count(Cause::kStart);
}

void GoodputMonitor::on_train_epoch_start(Trainer&, Module&) { count(Cause::kProgress); }

void GoodputMonitor::on_train_batch_start(Trainer& trainer, Module&, const Batch&, int64_t) {
  count(Cause::kProgress);
  is_starting_ = false;
  steps_before_ = trainer.global_step();
}

void GoodputMonitor::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  count_before_checkpoints(Cause::kProgress);
  const int64_t every = trainer.options().log_every_n_steps;
  if (trainer.global_step() / every > steps_before_ / every) log_values(trainer);
  if (since_ - written_ >= std::chrono::duration<double>(options_.save_every)) write(trainer);
}

void GoodputMonitor::on_train_epoch_end(Trainer&, Module&) { count_before_checkpoints(Cause::kProgress); }

void GoodputMonitor::on_validation_start(Trainer& trainer, Module&) {
  if (trainer.stage() == Stage::kFit) count(Cause::kProgress);
}

void GoodputMonitor::on_validation_end(Trainer& trainer, Module&) {
  if (trainer.stage() == Stage::kFit) count_before_checkpoints(Cause::kValidation);
}

void GoodputMonitor::on_train_end(Trainer&, Module&) {
  is_starting_ = false;
  count_before_checkpoints(Cause::kProgress);
}

// ---- Telling

void GoodputMonitor::log_values(Trainer& trainer) {
  const double whole = sum_of(seconds_);
  MetricMap values;
  for (size_t i = 0; i < kCauses; ++i)
    values[fmt::format("goodput/{}_percent", kCauseNames[i])] = whole > 0 ? 100 * seconds_[i] / whole : 0;
  values["goodput/seconds"] = whole;
  trainer.log_metrics(values);
}

void GoodputMonitor::write(const Trainer& trainer) {
  written_ = Clock::now();
  if (!is_known_ || file_.empty() || !trainer.is_global_zero()) return;
  nlohmann::json causes = nlohmann::json::object();
  const Seconds spent = seconds();
  for (size_t i = 0; i < kCauses; ++i) causes[kCauseNames[i]] = spent[i];
  const nlohmann::json note = {{"job", job_}, {"time", seconds_since_1970()}, {"seconds", std::move(causes)}};
  try {
    FileSystem::current().replace_file(file_, note.dump(1) + "\n");
  } catch (const Error& error) {
    log::rank_zero_warning(fmt::format("goodput_monitor: {} is written no more; got '{}'", file_, error.what()));
    file_.clear();
  }
}

void GoodputMonitor::end(const Trainer& trainer) {
  if (trainer_ == nullptr) return;
  count(Cause::kProgress);
  trainer_ = nullptr;
  write(trainer);
}

void GoodputMonitor::on_fit_end(Trainer& trainer, Module&) {
  end(trainer);
  const double whole = sum_of(seconds_);
  if (whole <= 0) return;
  std::vector<std::pair<double, const char*>> rest;
  for (size_t i = 1; i < kCauses; ++i)
    if (seconds_[i] >= whole / 1000) rest.emplace_back(seconds_[i], kCauseNames[i]);
  std::sort(rest.rbegin(), rest.rend());
  std::string text;
  for (const auto& [seconds, name] : rest)
    text += fmt::format("{} {} {:.1f} %", text.empty() ? ";" : ",", name, 100 * seconds / whole);
  log::rank_zero_info(
      fmt::format("goodput: {:.1f} % of {:.4g} s became progress{}", 100 * seconds_[0] / whole, whole, text));
}

void GoodputMonitor::on_exception(Trainer& trainer, Module&, const std::exception_ptr&) { end(trainer); }

// ---- State

State GoodputMonitor::state_dict() const {
  was_saved_ = true;
  const Seconds spent = seconds();
  State causes = State::map();
  for (size_t i = 0; i < kCauses; ++i) causes[kCauseNames[i]] = spent[i];
  State state = State::map();
  state["seconds"] = std::move(causes);
  state["time"] = seconds_since_1970();
  state["job"] = job_;
  state["file"] = file_;
  return state;
}

void GoodputMonitor::load_state_dict(const State& state) {
  job_ = state.at("job").as_string();
  Seconds saved = {};
  for (size_t i = 0; i < kCauses; ++i) saved[i] = state.at("seconds").at(kCauseNames[i]).as_double();
  double alive = state.at("time").as_double();
  Seconds past = saved;
  if (const auto note = read_note(state.at("file").as_string(), job_); note && note->time > alive) {
    past = note->seconds;
    // What was trained after the checkpoint is trained again.
    const double lost = std::max(0.0, of(past, Cause::kProgress) - of(saved, Cause::kProgress));
    of(past, Cause::kProgress) -= lost;
    of(past, Cause::kRepeated) += lost;
    alive = note->time;
    // A run that dies before its first checkpoint leaves its note where the next one looks.
    file_ = state.at("file").as_string();
  }
  for (size_t i = 0; i < kCauses; ++i) seconds_[i] += past[i];
  of(seconds_, Cause::kDown) += std::max(0.0, began_ - alive);
}

}  // namespace levin
