#include <levin/core/trainer/dry_run.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/log.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/base/signals.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/metrics/taken_back_updates.h>
#include <levin/core/trainer/trainer.h>
#include <levin/core/trainer/trainer_components.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// All ranks leave a step, because one of them has run out of memory. No std::exception: a module's own optimizer_step
/// is not to take it for one of its errors.
struct StepBack {};

DataLoader loader_for(const DataLoader& of_fit, const DryRunOptions& options) {
  // A loader of its own: the position of the fit's is not touched.
  return options.batch_size ? of_fit.with_batch_size(*options.batch_size).full_batches() : of_fit.copy();
}

}  // namespace

class DryRun::Impl {
 public:
  Impl(TrainerComponents& components, const DryRunOptions& options);
  void take_back();
  Result step();
  std::optional<double> loss() const;

 private:
  /// What a rank tells the others of a batch.
  struct News {
    Result result = Result::kDone;
    double loss = 0;  ///< times its weight
    double weight = 0;
  };
  static std::string to_text(const News& news);
  static News from_text(const std::string& text);
  /// Gives the worst result, and the sums of the rest, over the ranks; a collective.
  News combine(const News& own) const;

  /// Sees to it that the next batch is in `batch_`, on the device.
  Result fetch();
  Result train_batch();
  template <class Function>
  Result attempt(const Function& function) const;
  StepOutput agree_after(const TrainingStep::ForwardBackward& run);

  TrainerComponents& parts_;
  TrainerState& state_;
  Strategy& strategy_;
  const DryRunOptions options_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  DataLoader loader_;

  // ---- What was there before.
  State snapshot_;
  FitProgress progress_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::vector<bool> training_;       ///< mode of each submodule
  std::vector<bool> requires_grad_;  ///< of each parameter
  StopController::Requests requests_;

  // ---- The steps.
  metrics::Collector metrics_;
  std::optional<metrics::TakenBackUpdates> updates_{std::in_place};
  std::optional<DataLoader::Pass> pass_;
  int64_t passes_ = 0;
  int64_t in_pass_ = 0;  ///< batches of this pass that were trained on
  bool begun_ = false;
  bool agreed_ = false;  ///< in the batch under way
  Batch batch_;
  BatchInfo info_;
  std::vector<double> losses_;  ///< of the last step's batches, over all ranks
};

DryRun::DryRun(Trainer& trainer, const DryRunOptions& options)
    : impl_(std::make_unique<Impl>(*trainer.components_, options)) {}

DryRun::~DryRun() {
  try {
    impl_->take_back();
  } catch (const std::exception& error) {
    // An error of the dry run's own is on its way then: a device that fails leaves nothing to put back.
    log::warning(fmt::format("what a dry run changed could not be taken back: {}", error.what()));
  }
}

DryRun::Result DryRun::step() { return impl_->step(); }
std::optional<double> DryRun::loss() const { return impl_->loss(); }

DryRun::Impl::Impl(TrainerComponents& components, const DryRunOptions& options)
    : parts_(components),
      state_(components.state),
      strategy_(*components.options.strategy),
      options_(options),
      loader_(loader_for(components.data.loaders().train, options)),
      snapshot_(components.checkpoints.take_snapshot()),
      progress_(components.state.progress),
      callbacks_(components.callbacks.all()),
      requests_(components.stop.requests()) {
  parts_.callbacks.set({});
  for (const auto& module : state_.module->modules()) training_.push_back(module->is_training());
  for (const auto& [name, parameter] : parts_.optimizers.parameter_names().items())
    requires_grad_.push_back(parameter.requires_grad());
  parts_.logger.set_active({.collector = &metrics_});
  strategy_.restart_steps(/*alone=*/options.may_run_out_of_memory);
  if (options.may_run_out_of_memory) parts_.step.set_guard([this](const auto& run) { return agree_after(run); });
}

void DryRun::Impl::take_back() {
  parts_.step.set_guard(nullptr);
  parts_.callbacks.set(std::move(callbacks_));
  pass_.reset();
  batch_ = {};
  metrics_.reset();
  updates_.reset();
  parts_.logger.set_active({.collector = &parts_.logger.train_metrics()});
  parts_.logger.forget_metrics();
  parts_.logger.discard_row();
  strategy_.restart_steps(/*alone=*/false);
  parts_.checkpoints.restore_snapshot(snapshot_);
  size_t index = 0;
  // Module::train() would also set the children, which come later in this order and set themselves again.
  for (const auto& module : state_.module->modules()) module->train(training_[index++]);
  index = 0;
  for (const auto& [name, parameter] : parts_.optimizers.parameter_names().items())
    parameter.requires_grad_(requires_grad_[index++]);
  state_.progress = progress_;
  parts_.stop.restore(requests_, /*not_counted=*/std::chrono::steady_clock::now() - started_);
  // What another dry run, or the fit, allocates is of other sizes.
  accelerator_of(strategy_.root_device()).release_cached_memory();
}

std::string DryRun::Impl::to_text(const News& news) {
  return fmt::format("{} {} {}", static_cast<int>(news.result), news.loss, news.weight);
}

DryRun::Impl::News DryRun::Impl::from_text(const std::string& text) {
  std::istringstream words(text);
  int result = 0;
  std::string loss;
  News news;
  // A stream reads no "nan".
  words >> result >> loss >> news.weight;
  news.result = static_cast<Result>(result);
  news.loss = std::stod(loss);
  return news;
}

DryRun::Impl::News DryRun::Impl::combine(const News& own) const {
  if (strategy_.world_size() == 1) return own;
  News all;
  for (const std::string& text : strategy_.collective().gather_bytes(to_text(own))) {
    const News news = from_text(text);
    all.result = std::max(all.result, news.result);
    all.loss += news.loss;
    all.weight += news.weight;
  }
  return all;
}

template <class Function>
DryRun::Result DryRun::Impl::attempt(const Function& function) const {
  try {
    function();
    return Result::kDone;
  } catch (const StepBack&) {
    return Result::kOutOfMemory;
  } catch (...) {
    if (!options_.may_run_out_of_memory || !is_out_of_memory(std::current_exception())) throw;
    return Result::kOutOfMemory;
  }
}

/// Around forward and backward. Only the first of a step agrees: an optimizer that evaluates the model several times
/// (LBFGS, SAM) does so as often as it likes.
StepOutput DryRun::Impl::agree_after(const TrainingStep::ForwardBackward& run) {
  if (std::exchange(agreed_, true)) return run();
  StepOutput output;
  const auto forward_backward = [&] { output = run(); };
  const Result own = attempt([&] { options_.around ? options_.around(forward_backward) : forward_backward(); });
  if (combine({.result = own}).result != Result::kDone) throw StepBack();
  return output;
}

DryRun::Result DryRun::Impl::fetch() {
  for (;;) {
    const auto& limit = parts_.data.train_batches();
    const bool at_limit = !options_.batch_size && limit && in_pass_ >= *limit;
    bool found = false;
    News own;
    own.result = attempt([&] {
      if (at_limit) return;
      if (!pass_) {
        const auto has_no_batch = [this](const DataLoader::Part& part) {
          return part.second.num_batches(parts_.data.train_ranks()) == 0;
        };
        if (std::ranges::any_of(loader_.parts(), has_no_batch)) return;
        DataLoaderPosition start = parts_.data.train_position();
        start.epoch += passes_;
        start.batch = start.first_example = 0;
        pass_ = loader_.pass(start);
      }
      auto fetched = pass_->next();
      if (!fetched) return;
      info_ = {.batch_idx = in_pass_};
      const auto share = pass_->share(in_pass_);
      info_.examples = share ? share->own : fetched->size();
      if (share && parts_.data.train_ranks() > 1)
        info_.weight = static_cast<double>(share->own * parts_.data.train_ranks()) / static_cast<double>(share->all);
      batch_ = parts_.data.transfer(std::move(*fetched), 0);
      found = true;
    });
    if (own.result == Result::kDone && !found) own.result = Result::kNoData;
    if (SignalScope::received() != 0) own.result = Result::kInterrupted;
    const Result result = combine(own).result;
    if (result == Result::kOutOfMemory || result == Result::kInterrupted) return result;
    if (result == Result::kDone) {
      metrics_.begin({.batch_size = batch_.size(), .step_default = true});
      if (parts_.callbacks.module("on_train_batch_start", &Module::on_train_batch_start, batch_, in_pass_))
        return result;
    }
    // The epoch ends here, on one rank at least. One without any batch would be followed by others like it.
    if (in_pass_ == 0) return Result::kNoData;
    pass_.reset();
    in_pass_ = 0;
    ++passes_;
  }
}

DryRun::Result DryRun::Impl::train_batch() {
  if (options_.may_run_out_of_memory) info_.remaining = std::max<int64_t>(1 - state_.progress.window_index, 0);
  agreed_ = false;
  News own;
  own.result = attempt([&] {
    const StepOutput& output = parts_.step.run(batch_, info_);
    if (!output.has_loss()) return;
    own.loss = output.loss().item<double>() * info_.weight;
    own.weight = info_.weight;
  });
  const News all = combine(own);
  if (all.result != Result::kDone) return all.result;
  parts_.callbacks.module("on_train_batch_end", &Module::on_train_batch_end, parts_.step.output(), batch_, in_pass_);
  ++in_pass_;
  if (all.weight > 0) losses_.push_back(all.loss / all.weight);
  return Result::kDone;
}

DryRun::Result DryRun::Impl::step() {
  if (!std::exchange(begun_, true)) {
    parts_.callbacks.module("on_train_start", &Module::on_train_start);
    parts_.callbacks.module("on_train_epoch_start", &Module::on_train_epoch_start);
  }
  losses_.clear();
  do {
    Result result = fetch();
    if (result == Result::kDone) result = train_batch();
    if (result != Result::kDone) return result;
  } while (state_.progress.window_index > 0);
  return Result::kDone;
}

std::optional<double> DryRun::Impl::loss() const {
  if (losses_.empty()) return std::nullopt;
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
}

}  // namespace levin
