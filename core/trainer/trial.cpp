#include <levin/core/trainer/trial.h>

#include <levin/core/base/log.h>
#include <levin/core/base/out_of_memory.h>
#include <levin/core/base/signals.h>
#include <levin/core/trainer/session.h>
#include <levin/core/trainer/trainer_parts.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <sstream>
#include <tuple>

namespace levin {
namespace {

/// All ranks leave a step, because one of them has run out of memory. No std::exception: a module's own optimizer_step
/// is not to take it for one of its errors.
struct StepBack {};

DataLoader loader_for(const DataLoader& of_fit, const TrialOptions& options) {
  // A loader of its own: the position of the fit's is not touched.
  if (!options.batch_size) return of_fit.with_options(of_fit.options());
  DataLoaderOptions full = of_fit.with_batch_size(*options.batch_size).options();
  full.drop_last = true;
  return of_fit.with_options(full);
}

}  // namespace

Trial::Trial(Trainer& trainer, const TrialOptions& options)
    : core_(trainer.parts().core),
      session_(trainer.parts().session),
      hooks_(core_),
      options_(options),
      loader_(loader_for(core_.loaders.train, options)),
      snapshot_(session_.checkpoints().take_snapshot()),
      progress_(core_.progress),
      callbacks_(std::exchange(core_.callbacks, {})),
      first_callbacks_(std::exchange(core_.first_after_metrics, 0), std::exchange(core_.first_checkpointer, 0)),
      stop_requested_(core_.stop_requested),
      stop_wish_(core_.stop_wish) {
  for (const auto& module : core_.module().modules()) training_.push_back(module->is_training());
  for (const auto& [name, parameter] : core_.parameter_names.items())
    requires_grad_.push_back(parameter.requires_grad());
  core_.active_metrics = &metrics_;
  core_.strategy().restart_steps(/*alone=*/options.may_run_out_of_memory);
  if (options.may_run_out_of_memory)
    session_.optimization().set_guard([this](const auto& run) { return agree_after(run); });
}

Trial::~Trial() {
  try {
    take_back();
  } catch (const std::exception& error) {
    // An error of the trial's own is on its way then: a device that fails leaves nothing to put back.
    log::warning(fmt::format("what a trial changed could not be taken back: {}", error.what()));
  }
}

void Trial::take_back() {
  session_.optimization().set_guard(nullptr);
  core_.callbacks = std::move(callbacks_);
  std::tie(core_.first_after_metrics, core_.first_checkpointer) = first_callbacks_;
  pass_.reset();
  batch_ = {};
  metrics_.reset();
  core_.active_metrics = &core_.train_metrics;
  core_.forget_metrics();
  core_.discard_row();
  core_.strategy().restart_steps(/*alone=*/false);
  session_.checkpoints().restore_snapshot(snapshot_);
  size_t index = 0;
  // Module::train() would also set the children, which come later in this order and set themselves again.
  for (const auto& module : core_.module().modules()) module->train(training_[index++]);
  index = 0;
  for (const auto& [name, parameter] : core_.parameter_names.items()) parameter.requires_grad_(requires_grad_[index++]);
  core_.progress = progress_;
  core_.stepped = false;
  core_.stop_requested = stop_requested_;
  core_.stop_wish = stop_wish_;
  core_.fit_started += std::chrono::steady_clock::now() - started_;
  // What another trial, or the fit, allocates is of other sizes.
  if (!core_.device().is_cpu()) at::getDeviceAllocator(core_.device().type())->emptyCache();
}

std::string Trial::to_text(const News& news) {
  return fmt::format("{} {} {}", static_cast<int>(news.result), news.loss, news.weight);
}

Trial::News Trial::from_text(const std::string& text) {
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

Trial::News Trial::combine(const News& own) const {
  if (core_.world_size() == 1) return own;
  News all;
  for (const std::string& text : core_.strategy().collective().gather_bytes(to_text(own))) {
    const News news = from_text(text);
    all.result = std::max(all.result, news.result);
    all.loss += news.loss;
    all.weight += news.weight;
  }
  return all;
}

template <class Function>
Trial::Result Trial::attempt(const Function& function) const {
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
/// (LBFGS) does so as often as its rank's own numbers ask for.
StepOutput Trial::agree_after(const Optimization::MicroBatch& run) {
  if (std::exchange(agreed_, true)) return run();
  StepOutput output;
  const Result own = attempt([&] { output = run(); });
  if (combine({.result = own}).result != Result::kDone) throw StepBack();
  return output;
}

Trial::Result Trial::fetch() {
  for (;;) {
    const auto& limit = core_.train_batches;
    const bool at_limit = !options_.batch_size && limit && in_pass_ >= *limit;
    bool found = false;
    News own;
    own.result = attempt([&] {
      if (at_limit) return;
      if (!pass_) {
        DataLoaderPosition start = core_.train_position();
        start.epoch += passes_;
        start.batch = start.first_example = 0;
        pass_ = loader_.pass(start);
      }
      auto fetched = pass_->next();
      if (!fetched) return;
      place_ = {.batch_idx = in_pass_};
      if (const auto share = pass_->share(in_pass_); share && core_.train_shares() > 1)
        place_.weight = static_cast<double>(share->own * core_.train_shares()) / static_cast<double>(share->all);
      batch_ = core_.transfer(std::move(*fetched), 0);
      found = true;
    });
    if (own.result == Result::kDone && !found) own.result = Result::kNoData;
    if (SignalScope::received() != 0) own.result = Result::kInterrupted;
    const Result result = combine(own).result;
    if (result == Result::kOutOfMemory || result == Result::kInterrupted) return result;
    if (result == Result::kDone) {
      metrics_.begin({.batch_size = batch_.size(), .step_default = true});
      if (hooks_.module("on_train_batch_start", &Module::on_train_batch_start, batch_, in_pass_)) return result;
    }
    // The epoch ends here, on one rank at least. One without any batch would be followed by others like it.
    if (in_pass_ == 0) return Result::kNoData;
    pass_.reset();
    in_pass_ = 0;
    ++passes_;
  }
}

Trial::Result Trial::train_batch() {
  if (options_.may_run_out_of_memory) place_.remaining = std::max<int64_t>(1 - core_.progress.window_index, 0);
  agreed_ = false;
  News own;
  own.result = attempt([&] {
    const StepOutput& output = session_.optimization().run(batch_, place_);
    if (!output.has_loss()) return;
    own.loss = output.loss().item<double>() * place_.weight;
    own.weight = place_.weight;
  });
  const News all = combine(own);
  if (all.result != Result::kDone) return all.result;
  hooks_.module("on_train_batch_end", &Module::on_train_batch_end, session_.optimization().output(), batch_, in_pass_);
  ++in_pass_;
  if (all.weight > 0) losses_.push_back(all.loss / all.weight);
  return Result::kDone;
}

Trial::Result Trial::step() {
  if (!std::exchange(begun_, true)) {
    hooks_.module("on_train_start", &Module::on_train_start);
    hooks_.module("on_train_epoch_start", &Module::on_train_epoch_start);
  }
  losses_.clear();
  do {
    Result result = fetch();
    if (result == Result::kDone) result = train_batch();
    if (result != Result::kDone) return result;
  } while (core_.progress.window_index > 0);
  return Result::kDone;
}

std::optional<double> Trial::loss() const {
  if (losses_.empty()) return std::nullopt;
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
}

}  // namespace levin
