#include <levin/callbacks/spike_detection.h>

#include <levin/callbacks/rank_agreement.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <cmath>
#include <numeric>

namespace levin {
namespace {

/// A loss that is so often far off has another level, or is lost.
constexpr size_t kMostSpikes = 1000;
/// Losses that are kept on the device, where boundaries are far from each other.
constexpr size_t kMostPending = 256;

/// JSON has no NaN.
std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }

}  // namespace

void SpikeDetectionOptions::describe(Schema<SpikeDetectionOptions>& schema) {
  using O = SpikeDetectionOptions;
  schema.field("window", &O::window, "losses in the running mean").at_least(1);
  schema.field("warmup", &O::warmup, "first losses of a run, never spikes").at_least(0);
  schema.field("atol", &O::atol, "smallest distance of a spike from the running mean").at_least(0);
  schema.field("rtol", &O::rtol, "smallest distance as a multiple of the running mean").at_least(0);
  schema.field("z_score", &O::z_score, "smallest distance as a multiple of the window's standard deviation").above(0);
  schema.field("mode", &O::mode, "direction of improvement; min: smaller is better; max: larger")
      .one_of({"min", "max"});
  schema.field("finite_only", &O::finite_only, "count a loss that is not finite as a spike");
  schema.field("action", &O::action, "warn, end training (stop) or fail (raise)").one_of({"warn", "stop", "raise"});
  schema.field("file", &O::file, "file for spikes, in the run's folder")
      .require("a file name without folders",
               [](const std::string& name) { return !name.empty() && name.find('/') == name.npos; });
}

SpikeDetection::SpikeDetection(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "spike_detection");
  if (!options.atol && !options.rtol && !options.z_score)
    throw ConfigError("spike_detection needs atol, rtol or z_score; got none; hint: rtol: 2");
  if (options.z_score && options.window < 2)
    throw ConfigError(fmt::format("spike_detection.window must be at least 2 for a z_score; got {}", options.window));
}

void SpikeDetection::setup(Trainer& trainer, Module&, Stage stage) {
  if (stage != Stage::kFit) return;
  require_on_every_rank(trainer, *this, "spike_detection");
  pending_.clear();
  window_.clear();
  spikes_.clear();
  last_ = 0;
  seen_ = 0;
  reported_ = 0;
}

void SpikeDetection::on_train_batch_start(Trainer& trainer, Module&, const Batch&, int64_t) {
  steps_before_ = trainer.global_step();
}

void SpikeDetection::on_train_batch_end(Trainer& trainer, Module&, const StepOutput& output, const Batch& batch,
                                        int64_t batch_idx) {
  const bool counts = output.has_loss() && !trainer.is_joining() && trainer.strategy().divided_model().owns_outputs();
  Pending seen{.batch = {.epoch = trainer.current_epoch(), .batch_idx = batch_idx, .step = steps_before_ + 1}};
  if (counts) {
    // Copies: a replayed graph writes the next ones into the same tensors.
    seen.loss = output.loss().detach().reshape({}).clone();
    const LossWeight& weight = output.weight();
    if (!weight.defined() || !trainer.options().weigh_losses)
      seen.weight = batch.size();
    else
      seen.weight = weight.tensor().defined() ? LossWeight(weight.tensor().detach().clone()) : weight;
  }
  pending_.push_back(std::move(seen));
  const int64_t every = trainer.options().log_every_n_steps;
  const bool is_boundary = trainer.global_step() / every > steps_before_ / every;
  // Every rank has as many of them, and all look together.
  if (is_boundary || pending_.size() == kMostPending) look(trainer);
  if (is_boundary) report(trainer);
}

void SpikeDetection::on_train_end(Trainer& trainer, Module&) {
  look(trainer);
  report(trainer);
}

void SpikeDetection::look(Trainer& trainer) {
  if (pending_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> numbers;  // of those that have a loss: that and its weight
  for (const Pending& pending : pending_) {
    if (!pending.loss.defined()) continue;
    numbers.push_back(pending.loss.to(trainer.device(), at::kDouble));
    numbers.push_back(pending.weight.on(trainer.device()).to(at::kDouble));
  }
  const at::Tensor on_host = numbers.empty() ? at::Tensor() : at::stack(numbers).cpu();
  const double* next = numbers.empty() ? nullptr : on_host.const_data_ptr<double>();
  std::vector<double> sums;
  for (const Pending& pending : pending_) {
    const double loss = pending.loss.defined() ? *next++ : 0;
    const double weight = pending.loss.defined() ? *next++ : 0;
    sums.push_back(weight == 0 ? 0 : loss * weight);  // what weighs nothing may be the mean of nothing
    sums.push_back(weight);
  }
  sums = sum_over_ranks(trainer, std::move(sums));
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (sums[2 * i + 1] == 0) continue;
    pending_[i].batch.loss = sums[2 * i] / sums[2 * i + 1];
    observe(pending_[i].batch);
  }
  pending_.clear();
}

double SpikeDetection::mean() const {
  return window_.empty() ? 0
                         : std::accumulate(window_.begin(), window_.end(), 0.0) / static_cast<double>(window_.size());
}

bool SpikeDetection::is_spike(double loss) const {
  if (!std::isfinite(loss)) return options_.finite_only;
  if (window_.empty()) return false;
  if (options_.mode == "min" ? loss <= last_ : loss >= last_) return false;
  const double middle = mean();
  const double distance = std::abs(loss - middle);
  if (options_.atol && distance < *options_.atol) return false;
  if (options_.rtol && distance < std::abs(*options_.rtol * middle)) return false;
  if (options_.z_score) {
    if (window_.size() < 2) return false;
    double squares = 0;
    for (const double value : window_) squares += (value - middle) * (value - middle);
    if (distance < *options_.z_score * std::sqrt(squares / static_cast<double>(window_.size() - 1))) return false;
  }
  return true;
}

void SpikeDetection::observe(Spike batch) {
  batch.mean = mean();
  if (seen_++ >= options_.warmup && is_spike(batch.loss)) {
    if (spikes_.size() < kMostSpikes) spikes_.push_back(batch);
    if (spikes_.size() == kMostSpikes)
      log::rank_zero_warning_once(
          fmt::format("spike_detection has found {} spikes and looks for no more", kMostSpikes));
    return;
  }
  if (!std::isfinite(batch.loss)) return;
  window_.push_back(batch.loss);
  if (static_cast<int64_t>(window_.size()) > options_.window) window_.pop_front();
  last_ = batch.loss;
}

void SpikeDetection::report(Trainer& trainer) {
  if (reported_ == spikes_.size()) return;
  const Spike first = spikes_[reported_];
  const size_t count = spikes_.size() - reported_;
  reported_ = spikes_.size();
  write(trainer);
  const std::string message =
      fmt::format("the loss {:.6g} of batch {} in epoch {} (step {}) is a spike: the running mean is {:.6g}{}",
                  first.loss, first.batch_idx, first.epoch, first.step, first.mean,
                  count > 1 ? fmt::format("; {} more follow", count - 1) : "");
  if (options_.action == "raise") throw Error("spike_detection", message);
  log::rank_zero_warning("[spike_detection] " + message);
  if (options_.action == "stop") trainer.request_stop("spike_detection: " + message);
}

void SpikeDetection::write(Trainer& trainer) const {
  const std::string folder = trainer.run_directory();
  if (folder.empty() || !trainer.is_global_zero()) return;
  std::string text = "[";
  for (const Spike& spike : spikes_)
    text += fmt::format(
        "{}\n  {{\"epoch\": {}, \"batch_idx\": {}, \"step\": {}, \"exclude\": [{}{}], \"loss\": {}, \"mean\": {}}}",
        text.size() > 1 ? "," : "", spike.epoch, spike.batch_idx, spike.step,
        spike.batch_idx > 0 ? fmt::format("{}, ", spike.batch_idx - 1) : "", spike.batch_idx, json_number(spike.loss),
        json_number(spike.mean));
  text += "\n]\n";
  // Whole or not at all; a disk that is full does not end training.
  try {
    FileSystem::current().replace_file(folder + "/" + options_.file, text);
  } catch (const Error& error) {
    log::warning(fmt::format("spike_detection: {}", error.what()));
  }
}

/// Losses that are not read yet are different on each rank, and a checkpoint has one state for all: they are read now.
void SpikeDetection::on_save_checkpoint(Trainer& trainer, Module&, State& checkpoint) {
  if (pending_.empty()) return;
  look(trainer);
  if (checkpoint.find("callbacks") != nullptr) checkpoint["callbacks"][state_key()] = state_dict();
}

State SpikeDetection::state_dict() const {
  State window = State::list();
  for (const double value : window_) window.push_back(State(value));
  State spikes = State::list();
  for (const Spike& spike : spikes_) {
    State item = State::map();
    item["epoch"] = spike.epoch;
    item["batch_idx"] = spike.batch_idx;
    item["step"] = spike.step;
    item["loss"] = spike.loss;
    item["mean"] = spike.mean;
    spikes.push_back(std::move(item));
  }
  State state = State::map();
  state["window"] = std::move(window);
  state["last"] = last_;
  state["seen"] = seen_;
  state["spikes"] = std::move(spikes);
  state["reported"] = static_cast<int64_t>(reported_);
  return state;
}

void SpikeDetection::load_state_dict(const State& state) {
  pending_.clear();
  window_.clear();
  for (const State& value : state.at("window").as_list()) window_.push_back(value.as_double());
  last_ = state.at("last").as_double();
  seen_ = state.at("seen").as_int();
  spikes_.clear();
  for (const State& item : state.at("spikes").as_list())
    spikes_.push_back({.epoch = item.at("epoch").as_int(),
                       .batch_idx = item.at("batch_idx").as_int(),
                       .step = item.at("step").as_int(),
                       .loss = item.at("loss").as_double(),
                       .mean = item.at("mean").as_double()});
  reported_ = static_cast<size_t>(state.at("reported").as_int());
}

}  // namespace levin
