#include <levin/core/loops/fit_loop.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/type_name.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/gather_on_first.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/connectors/join_scope.h>
#include <levin/core/devices/cpu_cores.h>
#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/loops/worker_hint.h>
#include <levin/core/metrics/taken_back_updates.h>
#include <levin/core/options/capable_strategies.h>
#include <levin/core/options/metrics_due.h>
#include <levin/core/precision/precision.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <typeinfo>
#include <utility>
#include <variant>

namespace levin {
namespace {

/// Logs nothing in its scope.
class MutedScope {
 public:
  explicit MutedScope(TrainerState& state) : state_(state), former_(std::exchange(state.joining, true)) {}
  ~MutedScope() { state_.joining = former_; }
  MutedScope(const MutedScope&) = delete;
  MutedScope& operator=(const MutedScope&) = delete;

 private:
  TrainerState& state_;
  const bool former_;
};

}  // namespace

FitLoop::FitLoop(Connectors& connectors, TrainingStep& step, EvaluationLoop& evaluation)
    : options_(connectors.options),
      state_(connectors.state),
      progress_(state_.progress),
      tracer_(connectors.tracer),
      strategy_(*options_.strategy),
      model_(strategy_.divided_model()),
      callbacks_(connectors.callbacks),
      data_(connectors.data),
      logger_(connectors.logger),
      optimizers_(connectors.optimizers),
      stop_(connectors.stop),
      checkpoints_(connectors.checkpoints),
      step_(step),
      evaluation_(evaluation) {}

void FitLoop::sanity_check() {
  if (!data_.validates() || options_.sanity_steps == 0 || state_.resumed) return;
  const RngStateGuard keep_random_state(strategy_.root_device());
  std::vector<int64_t> batches = data_.validation_batches();
  if (options_.sanity_steps > 0)
    for (auto& count : batches) count = count < 0 ? options_.sanity_steps : std::min(count, options_.sanity_steps);
  state_.running = RunningStage::kSanityCheck;
  const ProfilerSpan span(tracer_.profiler(), "sanity_check");
  callbacks_.callbacks("on_sanity_check_start", &Callback::on_sanity_check_start);
  EvaluationProgress from_the_start;
  evaluation_.run(RunningStage::kValidate, data_.loaders().val, batches, from_the_start);
  logger_.forget_metrics();
  callbacks_.callbacks("on_sanity_check_end", &Callback::on_sanity_check_end);
  state_.running = RunningStage::kTrain;
}

void FitLoop::begin() {
  last_validation_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(progress_.seconds_since_validation));
  stop_.start_batches();
  report_.emplace(state_, optimizers_);
  unlogged_step_.clear();
  state_.in_fit_loop = true;
}

void FitLoop::run() {
  is_driven_ = false;
  begin();
  run_epochs();
  if (!stop_.is_interrupted()) {
    log_last_step();
    optimizers_.warn_of_unfollowed_metrics();
  }
  report_->say_end(stop_.end_reason(epoch_has_batches()));
  state_.in_fit_loop = false;
}

void FitLoop::run_epochs() {
  const int64_t reload_every = options_.given.reload_dataloaders_every_n_epochs;
  // A run that was interrupted goes on with what follows its last batch, also where nothing is left to train.
  const bool goes_on =
      state_.resumed && progress_.batch > 0 && progress_.phase != FitPhase::kEpochDone && !progress_.ended_inside;
  for (bool first = true; (first && goes_on) || !stop_.should_end(); first = false) {
    if (has_all_epochs()) return;
    const bool begins = !first || progress_.phase == FitPhase::kEpochDone;
    if (progress_.phase == FitPhase::kEpochDone && progress_.start_next_epoch()) data_.count_batches();
    if (!epoch_has_batches()) return;
    if (begins && reload_every > 0 && progress_.epoch % reload_every == 0 && progress_.batch == 0) {
      data_.select_loaders();
      data_.count_batches();
    }
    noting_errors([this] { run_epoch(); }, [this](ErrorNotes& notes) { note_early_end(notes); });
  }
}

void FitLoop::note_early_end(ErrorNotes& notes) const {
  ControlPlane* control = strategy_.control_plane();
  if (control == nullptr || !is_of_communication(std::current_exception())) return;
  const auto ends = control->early_ends();
  const auto end_of = [&](int64_t rank) {
    const auto found = std::find_if(ends.begin(), ends.end(), [&](const ControlPlane::EarlyEnd& end) {
      return end.rank == rank && end.epoch == progress_.epoch;
    });
    return found == ends.end() ? std::optional<int64_t>() : found->batch;
  };
  const int64_t here = strategy_.rank();
  const auto own = end_of(here);
  for (int64_t other = 0; other < strategy_.world_size(); ++other) {
    const auto of_other = end_of(other);
    // A rank that noted nothing may still come to it, unless it is this one.
    const bool differs = own ? of_other != own : of_other && begun_batch_ >= *of_other;
    if (!differs) continue;
    if (notes.moment.empty()) notes.moment = fmt::format("epoch {}", progress_.epoch);
    const Module& module = *state_.module;
    notes.moment += fmt::format(
        ", in which on_train_batch_start of {} returned false on rank {} for batch {}, and not on rank {} (it must "
        "return the same on every rank)",
        short_class_name(typeid(module)), own ? here : other, own ? *own : *of_other, own ? other : here);
    return;
  }
}

void FitLoop::run_epoch() {
  const ProfilerSpan span(tracer_.profiler(), "train_epoch");
  start_epoch();
  // A run resumed right after a batch, or inside a validation, first does what belongs to that batch.
  if (progress_.phase == FitPhase::kValidation) {
    if (!validate()) return;
  } else if (progress_.batch > 0 && state_.resumed) {
    if (!finish_batch()) return;
  }
  state_.resumed = false;
  const bool complete = progress_.last_batch_done || train_batches();
  data_.drop_prefetched();
  if (!stop_.is_interrupted()) finish_epoch(complete);
}

void FitLoop::start_epoch() {
  begun_batch_ = -1;
  if (progress_.epoch_started) return;
  logger_.train_metrics().begin({.training_batches = progress_.moment()});
  callbacks_.call("on_train_epoch_start", &Callback::on_train_epoch_start, &Module::on_train_epoch_start);
  progress_.epoch_started = true;
}

bool FitLoop::train_batches() {
  if (IndependentSteps* steps = find_independent_steps(strategy_)) return train_independently(*steps);
  if (stop_.should_end()) return progress_.last_batch_done;
  state_.had_data = progress_.batch > 0 && logger_.train_metrics().has_values();
  auto pass = [this] {
    const Activity activity(tracer_, "start_train_loader");
    return data_.loaders().train.pass(data_.train_position());
  }();
  const auto started = Clock::now();
  auto fetched = data_.fetch_train(pass);
  const bool several_ranks = strategy_.world_size() > 1;
  if (!fetched && progress_.batch == 0 && !several_ranks)
    throw Error("data", fmt::format("the training loader gave no batch in epoch {}; hint: is the data set empty?",
                                    progress_.epoch));
  // With several ranks the end is everybody's: a rank without data goes on until the others have none either.
  const auto& limit = data_.train_batches();
  bool more = fetched.has_value() || (several_ranks && (!limit || progress_.batch < *limit));
  while (more) {
    if (stop_.stops_before_batch(/*may_stop=*/!checkpoints_.waits_for_window())) {
      if (stop_.is_interrupted())
        end_by_signal();
      else if (stop_.ends_on_request() && progress_.batch > 0 && validation_due())
        validate();  // as after a request that was known at the end of the batch before
      return false;
    }
    if (tracer_.profiler() != nullptr) tracer_.profiler()->step();
    bool known_last = false;
    {
      const ProfilerSpan span(tracer_.profiler(), "train_batch");
      const bool reads_now = reads_before_step();
      if (reads_now && !fetched) fetched = data_.fetch_train(pass);
      DataLoader::Pass* const asked_later = reads_now || may_look_ahead() ? nullptr : &pass;
      auto [batch, info] = next_batch(pass, fetched);
      known_last = info.is_last;
      const BatchResult result = noting_errors(
          [&, &batch = batch, &info = info] { return train_batch(std::move(batch), info, fetched, asked_later); },
          [this, batch_idx = info.batch_idx](ErrorNotes& notes) { note_batch(notes, state_, batch_idx); });
      if (result == BatchResult::kEndOfEpoch) {
        progress_.cut_short = true;
        progress_.abandon_window();
        break;
      }
    }
    if (stop_.is_interrupted()) return false;
    if (!finish_batch()) return false;
    if (stop_.should_end() && !progress_.last_batch_done) {
      step_.combine_kept_gradients();  // in manual optimization steps may end training inside of a window
      if (!checkpoints_.waits_for_window()) return false;
    }
    more = !known_last && !progress_.last_batch_done;
  }
  progress_.last_batch_done = true;
  suggest_workers(pass.waited(), Clock::now() - started);
  return true;
}

void FitLoop::check_independent_steps() const {
  const auto refuse = [this](const char* option, const char* hint) {
    throw ConfigError(
        fmt::format("trainer.{} does not work with strategy '{}' as it is set up: its ranks take their "
                    "steps independently of each other, and meet at the end of each epoch; hint: {}",
                    option, strategy_.name(), hint));
  };
  if (!data_.train_batches() || !options_.given.use_distributed_sampler) {
    require_uneven_inputs();
    refuse("use_distributed_sampler: false, or training data of unknown size,", "a data set that knows its size");
  }
  if (!optimizers_.accumulation().is_off()) refuse("accumulate_grad_batches", "leave it at 1");
  if (!options_.given.check_val_every_n_epoch || data_.validation_interval() ||
      std::holds_alternative<std::chrono::seconds>(options_.given.val_check_interval.value()))
    refuse("val_check_interval inside an epoch", "leave it at 1.0");
}

void FitLoop::count_batches_to(int64_t batch, const data::TakenBatches& batches) {
  for (; progress_.batch < batch; ++progress_.batch) {
    progress_.samples += batches.examples(progress_.batch);
    progress_.epoch_samples += batches.examples(progress_.batch);
    ++progress_.total_batches;
    ++progress_.batches_since_validation;
    ++progress_.global_step;
    progress_.ended_inside = false;
    optimizers_.step_schedulers(Interval::kStep);
  }
  progress_.phase = FitPhase::kBatches;
}

bool FitLoop::train_independently(IndependentSteps& steps) {
  if (stop_.should_end()) return progress_.last_batch_done;
  check_independent_steps();
  state_.had_data = progress_.batch > 0 && logger_.train_metrics().has_values();
  int64_t end = *data_.train_batches();
  if (options_.max_steps) end = std::min(end, progress_.batch + *options_.max_steps - progress_.global_step);
  steps.begin_batches(progress_.epoch, progress_.batch, end);
  data::TakenBatches batches(data_.loaders().train, data_.train_position(), [&steps] { return steps.take_batch(); });
  const auto started = Clock::now();
  int64_t done = progress_.batch;
  bool stopped = false;
  while (auto taken = data_.fetch_train(batches)) {
    const int64_t batch = taken->number;
    const int64_t ahead = batch - progress_.batch;
    progress_.total_batches += ahead;
    stopped = stop_.stops_before_batch(/*may_stop=*/true);
    progress_.total_batches -= ahead;
    if (stopped) break;
    last_own_step_ = progress_.global_step;
    count_batches_to(batch, batches);
    if (tracer_.profiler() != nullptr) tracer_.profiler()->step();
    {
      const ProfilerSpan span(tracer_.profiler(), "train_batch");
      const BatchInfo info{.batch_idx = batch, .samples = taken->batch.size()};
      const int64_t step = progress_.global_step;
      std::optional<Batch> none;
      const BatchResult result =
          noting_errors([&] { return train_batch(std::move(taken->batch), info, none, /*pass=*/nullptr); },
                        [&](ErrorNotes& notes) { note_batch(notes, state_, batch); });
      // A batch that was skipped counts as well: the others cannot know.
      progress_.global_step = step;
      if (result == BatchResult::kEndOfEpoch)
        throw Error("module", fmt::format("on_train_batch_start ended the epoch on one rank; strategy '{}' has ranks "
                                          "that take their steps independently of each other",
                                          strategy_.name()));
    }
    count_batches_to(batch + 1, batches);
    done = progress_.batch;
  }
  {
    const Activity activity(tracer_, "meet");
    const int64_t ranks = strategy_.world_size();
    count_batches_to(steps.meet(done, stopped), batches);
    if (strategy_.world_size() < ranks) {
      data_.count_batches();
      checkpoints_.leave_out_ranks();
    }
  }
  progress_.seconds_since_validation = std::chrono::duration<double>(Clock::now() - last_validation_).count();
  progress_.last_batch_done = progress_.batch >= *data_.train_batches();
  if (stop_.is_interrupted()) {
    end_by_signal();
    return false;
  }
  if (progress_.last_batch_done) optimizers_.step_schedulers(Interval::kEpoch);
  suggest_workers(batches.waited(), Clock::now() - started);
  if (!finish_batch()) return false;
  progress_.phase = FitPhase::kBatches;
  return progress_.last_batch_done;
}

FitLoop::BatchAndInfo FitLoop::next_batch(DataLoader::Pass& pass, std::optional<Batch>& fetched) {
  const auto& train_batches = data_.train_batches();
  const int64_t ranks = strategy_.data_parallel_rank().size;
  const auto planned = pass.share(progress_.batch);
  const auto share = data_.train_ranks() > 1 ? planned : std::nullopt;
  // A batch of fewer examples than ranks, inside of the epoch, comes with one to join on.
  const bool is_lent = fetched.has_value() && share && share->own == 0;
  BatchInfo info{.batch_idx = progress_.batch, .has_data = fetched.has_value() && !is_lent};
  const bool limit_hit = train_batches && progress_.batch + 1 >= *train_batches;
  const bool reads_later = reads_before_step();
  const bool looks_ahead = !reads_later && may_look_ahead();
  const bool had_batch = fetched.has_value();
  std::optional<Batch> next;
  if (!limit_hit && had_batch && looks_ahead) next = data_.fetch_train(pass);
  // Of a combined loader: what this rank was given is another's.
  if (fetched && share && share->own == 0) info.has_data = false;
  // Nothing is learnt from a batch to join on: with it this rank reduces what the others reduce.
  Batch batch = fetched ? std::move(*fetched) : data_.join_batch(data_.loaders().train);
  info.samples = batch.size();
  info.examples = planned ? planned->own : batch.size();
  info.usual_examples = data_.loaders().train.options().batch_size;
  if (ranks == 1) {
    info.is_last = limit_hit || (reads_later ? pass.remaining() == 0 : looks_ahead && !next.has_value());
  } else if (share) {
    // Known beforehand: the examples of the batch are weighted alike, whichever rank has them.
    info.is_last = limit_hit;
    info.weight = static_cast<double>(share->own * data_.train_ranks()) / static_cast<double>(share->all);
    info.samples = share->all;
  } else {
    require_uneven_inputs();
    info.uneven_inputs = true;
    info.has_next = looks_ahead ? next.has_value() : had_batch;
    info.weight_is_known = false;
    info.is_last = limit_hit;
    info.samples *= ranks;
  }
  if (train_batches && !info.uneven_inputs) info.remaining = *train_batches - progress_.batch - 1;
  if (progress_.window_index == 0 && planned && !info.uneven_inputs &&
      (info.remaining || optimizers_.accumulation().is_off())) {
    const int64_t following = std::min(optimizers_.accumulation().at(progress_.epoch) - 1, info.remaining.value_or(0));
    for (int64_t i = 0; i <= following; ++i) info.examples_of_window += pass.share(progress_.batch + i)->all;
  }
  fetched = std::move(next);
  return {std::move(batch), info};
}

bool FitLoop::reads_before_step() const {
  const DataLoader& train = data_.loaders().train;
  const bool is_counted = strategy_.data_parallel_rank().size == 1 || data_.train_ranks() > 1;
  return is_counted && train.dataset() != nullptr && train.options().num_workers == 0 &&
         strategy_.root_device().is_cpu();
}

bool FitLoop::may_look_ahead() const {
  if (data_.loaders().train.looks_ahead()) return true;
  const int64_t window =
      progress_.window_index == 0 ? optimizers_.accumulation().at(progress_.epoch) : progress_.window_size;
  return progress_.window_index + 1 < window;
}

bool FitLoop::fetch_after_step(DataLoader::Pass& pass, std::optional<Batch>& next, const BatchInfo& info) {
  next = data_.fetch_train(pass);
  if (info.uneven_inputs) return strategy_.any_rank(next.has_value(), false).first;
  return next.has_value() || strategy_.data_parallel_rank().size > 1;  // of batches that are counted beforehand
}

void FitLoop::require_uneven_inputs() const {
  if (strategy_.capabilities().iterable_datasets) return;
  throw ConfigError(
      fmt::format("trainer.strategy '{}' must know how much data each rank has, which data sets without a size and "
                  "use_distributed_sampler: false leave open; valid: {}",
                  strategy_.name(), capable_strategies(&StrategyCapabilities::iterable_datasets)));
}

FitLoop::BatchResult FitLoop::train_batch(Batch host_batch, const BatchInfo& info, std::optional<Batch>& next,
                                          DataLoader::Pass* pass) {
  const int64_t batch_idx = progress_.batch;
  const bool independent = find_independent_steps(strategy_) != nullptr;
  const int64_t steps_before = independent ? last_own_step_ : progress_.global_step;
  const JoinScope join(state_, /*joins=*/!info.has_data);
  const Batch batch = data_.transfer(std::move(host_batch), 0, next);
  logger_.train_metrics().begin(
      {.batch_size = batch.size(), .step_default = true, .training_batches = progress_.moment() + 1});
  callbacks_.callbacks("on_train_batch_start", &Callback::on_train_batch_start, batch, batch_idx);
  if (!callbacks_.module("on_train_batch_start", &Module::on_train_batch_start, batch, batch_idx)) {
    if (ControlPlane* control = strategy_.control_plane()) control->note_early_end(progress_.epoch, batch_idx);
    optimizers_.step_schedulers(Interval::kEpoch);
    return BatchResult::kEndOfEpoch;
  }
  begun_batch_ = batch_idx;
  state_.had_data = state_.had_data || info.has_data;
  const StepOutput& output = step_.run(batch, info);
  // Early, and often enough in epochs that take days.
  if (std::has_single_bit(static_cast<uint64_t>(progress_.total_batches + 1))) step_.tell_refusal();
  check_loss(batch_idx, /*may_wait=*/false);
  bool is_last = info.is_last || step_.data_ended();
  if (pass != nullptr && !is_last) is_last = !fetch_after_step(*pass, next, info);

  if (step_.schedulers_are_due() && !independent) {
    optimizers_.step_schedulers(Interval::kStep);
  }
  if (is_last) optimizers_.step_schedulers(Interval::kEpoch);

  progress_.phase = FitPhase::kBatches;
  callbacks_.call_in_stages(
      "on_train_batch_end", &Callback::on_train_batch_end, &Module::on_train_batch_end, [] {},
      [&] {
        // In manual optimization a batch may take several steps.
        if (progress_.global_step / options_.given.log_every_n_steps > steps_before / options_.given.log_every_n_steps)
          log_step_row(batch_idx);
        else
          logger_.emit_row();
        if (independent) return;  // what follows counts the batches of all ranks: see train_independently
        ++progress_.batch;
        ++progress_.total_batches;
        progress_.ended_inside = false;
        ++progress_.batches_since_validation;
        progress_.samples += info.samples;
        progress_.epoch_samples += info.samples;
        progress_.last_batch_done = is_last;
        progress_.seconds_since_validation = std::chrono::duration<double>(Clock::now() - last_validation_).count();
        checkpoints_.save_deferred();
      },
      output, batch, batch_idx);
  if (stop_.ends_alone() && !independent) end_by_signal();
  return BatchResult::kContinue;
}

void FitLoop::log_step_row(int64_t batch_idx) {
  const bool waits = logger_.train_metrics().on_device();
  logger_.log_step_row();
  check_loss(batch_idx, /*may_wait=*/waits);
}

/// Of several ranks the first one that has a loss speaks: what is NaN on one is soon on all.
void FitLoop::check_loss(int64_t batch_idx, bool may_wait) {
  const bool speaks = model_.outputs_everywhere() ? strategy_.is_global_zero()
                                                  : model_.owns_outputs() && loss_rank(strategy_).rank == 0;
  const at::Tensor& loss = step_.loss();
  // A loss of weight zero may be the mean of nothing.
  const bool counts = step_.output().weight().on_host() != 0.0;
  if (speaks && counts && !state_.joining && loss.defined() && (may_wait || loss.device().is_cpu()))
    report_->check_loss(loss, batch_idx);
}

bool FitLoop::validation_due() const {
  if (!data_.validates() || progress_.phase == FitPhase::kAfterValidation) return false;
  const auto& every_epochs = options_.given.check_val_every_n_epoch;
  if (!validates_in(options_.given, progress_.epoch + 1)) return false;
  // A callback that stops training wants to see how the weights do; a window that cannot be left yet, at its end.
  if (stop_.ends_on_request() && (progress_.last_batch_done || !checkpoints_.waits_for_window())) return true;
  const auto& interval = options_.given.val_check_interval.value();
  if (const auto* time = std::get_if<std::chrono::seconds>(&interval)) {
    const bool due = progress_.seconds_since_validation >= static_cast<double>(time->count());
    if (strategy_.world_size() == 1) return due;
    // Clocks differ: rank 0's decides, but ranks do not ask it in every step.
    return progress_.total_batches % options_.given.log_every_n_steps == 0 &&
           strategy_.broadcast(due ? "y" : "") == "y";
  }
  if (!data_.validation_interval()) return progress_.last_batch_done;
  // Data without a size may end before the interval does.
  if (every_epochs && progress_.last_batch_done && progress_.batch < *data_.validation_interval()) return true;
  const int64_t batches = every_epochs ? progress_.batch : progress_.batches_since_validation;
  return batches % *data_.validation_interval() == 0;
}

bool FitLoop::finish_batch() {
  // Requests of several ranks are agreed on before the next batch, which an epoch's last one does not have.
  if (strategy_.world_size() == 1 || (progress_.last_batch_done && !data_.loaders().val.empty())) stop_.agree();
  if (validation_due()) return validate();
  follow_step_metrics();
  return true;
}

/// Several ranks have to agree on a value, but not in every step.
void FitLoop::follow_step_metrics() {
  if (strategy_.world_size() == 1 || progress_.phase == FitPhase::kAfterValidation ||
      progress_.global_step % options_.given.log_every_n_steps == 0)
    optimizers_.follow_metrics(Interval::kStep);
}

bool FitLoop::validate() {
  const ProfilerSpan span(tracer_.profiler(), "validation");
  const bool is_between_epochs = progress_.phase == FitPhase::kEpochDone;
  if (!is_between_epochs) progress_.phase = FitPhase::kValidation;
  logger_.combine_step_metrics();  // who acts on metrics after the validation acts on these as well
  // One that was not due, at a stop, leaves later ones where they are.
  const auto interval = data_.validation_interval();
  progress_.batches_since_validation = interval ? progress_.batches_since_validation % *interval : 0;
  if (!evaluation_.run(RunningStage::kValidate, data_.loaders().val, data_.validation_batches(),
                       progress_.validation)) {
    if (strategy_.world_size() > 1) progress_.phase = FitPhase::kBatches;  // it is due again
    end_by_signal();
    return false;
  }
  if (!is_between_epochs) progress_.phase = FitPhase::kAfterValidation;
  optimizers_.follow_metrics(Interval::kStep);
  last_validation_ = Clock::now();
  stop_.agree();
  if (stop_.ends_alone()) {
    end_by_signal();
    return false;
  }
  return true;
}

void FitLoop::finish_epoch(bool complete) {
  step_.combine_kept_gradients();  // which what is saved at this moment needs
  step_.tell_refusal();
  if (progress_.batch > 0) unlogged_step_ = unlogged_step();
  logger_.combine_step_metrics();
  logger_.callback_metrics();  // the last values of steps, which the end of the epoch forgets
  progress_.note_epoch_end();
  logger_.train_metrics().begin({.training_batches = progress_.moment()});
  logger_.show_epoch_values(true, /*is_partial=*/!complete);
  const auto synchronize = [&] {
    if (strategy_.world_size() == 1) return;
    const ProfilerSpan span(tracer_.profiler(), "synchronize_metrics");
    logger_.train_metrics().synchronize_epoch(strategy_.collective(), state_.had_data && model_.owns_outputs());
  };
  callbacks_.call_in_stages("on_train_epoch_end", &Callback::on_train_epoch_end, &Module::on_train_epoch_end,
                            synchronize, [&] {
                              if (complete) {
                                optimizers_.follow_metrics(Interval::kStep);
                                optimizers_.follow_metrics(Interval::kEpoch);
                                if (!is_driven_) optimizers_.require_metrics();
                              }
                              progress_.ended_inside = !complete;
                              logger_.log_epoch_row(logger_.train_metrics());
                              if (complete) {
                                progress_.phase = FitPhase::kEpochDone;
                                logger_.train_metrics().reset();
                              }
                              stop_.agree();
                              if (ends_here()) log_last_step();
                              checkpoints_.save_deferred();
                            });
  logger_.show_epoch_values(false);
  if (complete) report_->check_epoch();
  if (progress_.batch > 0) check_loss(progress_.batch - 1, /*may_wait=*/true);
  stop_.agree();
}

bool FitLoop::has_all_epochs() const {
  const int64_t done = progress_.epoch + (progress_.phase == FitPhase::kEpochDone ? 1 : 0);
  return options_.max_epochs && done >= *options_.max_epochs;
}

/// Before the checkpoint of this moment is saved: a run that goes on from there logs nothing more.
bool FitLoop::ends_here() const { return has_all_epochs() || stop_.should_end(); }

void FitLoop::log_last_step() {
  logger_.add_logged_to_row(std::exchange(unlogged_step_, {}));
  logger_.emit_row();
}

MetricMap FitLoop::unlogged_step() {
  MetricMap values;
  // A rank that only joined the last step has logged nothing.
  if (strategy_.world_size() > 1) logger_.train_metrics().synchronize_step(strategy_.collective(), /*took_part=*/false);
  logger_.train_metrics().visit_step([&](const metrics::Collector::Value& value) {
    if (value.logger) values[value.name] = value.value;
  });
  return values;
}

void FitLoop::end_by_signal() {
  stop_.interrupt();
  callbacks_.save_last();
}

void FitLoop::replay_training_data() {
  if (is_driven_)
    throw Error(
        "engine",
        "the training data cannot be run again (as the callback stochastic_weight_averaging does for BatchNorm): "
        "the steps of an engine are the program's own; hint: fit");
  Module& module = *state_.module;
  if (logger_.active() != &logger_.train_metrics() || !module.automatic_optimization)
    throw Error("trainer",
                "the training data can be run again only inside fit, outside of validation, and with automatic "
                "optimization");
  const RngStateGuard keep_random_state(strategy_.root_device());
  const metrics::TakenBackUpdates keep_metrics;
  const at::NoGradGuard no_grad;
  DataLoaderPosition beginning = data_.train_position();
  beginning.batch = beginning.first_example = 0;
  // With threads of its own, so that a pass under way goes on.
  const DataLoader loader = data_.loaders().train.copy();
  auto pass = loader.pass(beginning);
  const bool together = model_.forwards_together();
  const auto& limit = data_.whole_epoch_batches();
  for (int64_t batch_idx = 0; !limit || batch_idx < *limit; ++batch_idx) {
    auto fetched = pass.next();
    if (together ? !strategy_.any_rank(fetched.has_value(), false).first : !fetched) break;
    const auto share = data_.train_ranks() > 1 ? pass.share(batch_idx) : std::nullopt;
    const JoinScope join(state_, /*joins=*/!fetched || (share && share->own == 0));
    const MutedScope muted(state_);
    const Batch batch = data_.transfer(fetched ? std::move(*fetched) : data_.join_batch(loader), 0);
    const ForwardScope forward(*options_.precision);
    {
      const auto scope = model_.forward_scope();
      module.training_step(batch, batch_idx);
    }
    if (ControlPlane* control = strategy_.control_plane()) control->throw_if_failed();
  }
}

// ---- Steps without the loop

void FitLoop::begin_steps() {
  begin();
  is_driven_ = true;
  in_epoch_ = false;
  agreed_batch_ = -1;
  usual_examples_ = 0;
  if (!state_.resumed) return;
  if (progress_.phase == FitPhase::kValidation)
    throw Error(
        "engine",
        "the checkpoint was saved inside of a validation, which an engine cannot go on with: the loaders are "
        "the program's own; hint: resume it with fit, or load a checkpoint from before or after the validation");
  // Windows are divided as before the checkpoint, whatever batch is the first one now.
  if (progress_.total_batches > 0) usual_examples_ = progress_.window_usual_examples;
  // First what belongs to the batch before the checkpoint, as in fit.
  if (progress_.batch > 0 && progress_.phase != FitPhase::kEpochDone) {
    follow_step_metrics();
    if (progress_.last_batch_done) finish_epoch(/*complete=*/true);
  }
  state_.resumed = false;
}

void FitLoop::go_to_next_epoch() {
  if (progress_.phase == FitPhase::kEpochDone || (progress_.last_batch_done && !in_epoch_))
    progress_.start_next_epoch();
}

bool FitLoop::has_announced_next() const {
  return strategy_.world_size() > 1 && agreed_batch_ == progress_.total_batches;
}

void FitLoop::agree_on_next_batch() {
  if (has_announced_next()) return;
  agreed_batch_ = progress_.total_batches;
  stop_.stops_before_batch(/*may_stop=*/!checkpoints_.waits_for_window());
}

int64_t FitLoop::usual_examples(int64_t own) {
  if (usual_examples_ == 0)
    usual_examples_ = strategy_.world_size() == 1 ? own : std::stoll(strategy_.broadcast(std::to_string(own)));
  return usual_examples_;
}

StepOutput FitLoop::train_step(Batch batch, bool is_last) {
  go_to_next_epoch();
  agree_on_next_batch();
  if (tracer_.profiler() != nullptr) tracer_.profiler()->step();
  const ProfilerSpan span(tracer_.profiler(), "train_batch");
  const int64_t examples = batch.size();
  const int64_t ranks = strategy_.data_parallel_rank().size;
  // Where they differ in size, a place among them is no place among those of a loader.
  if (progress_.batch == 0)
    progress_.global_batch_size = examples * ranks;
  else if (progress_.epoch_samples != progress_.batch * progress_.global_batch_size)
    progress_.global_batch_size = 0;
  const BatchInfo info{.batch_idx = progress_.batch,
                       .is_last = is_last,
                       .remaining = is_last ? std::optional<int64_t>(0) : std::nullopt,
                       .weight_is_known = ranks == 1,
                       .examples = examples,
                       .usual_examples = usual_examples(std::max<int64_t>(examples, 1)),
                       .has_data = examples > 0,
                       .samples = examples * ranks};
  std::optional<Batch> none;
  const BatchResult result = noting_errors([&] { return train_batch(std::move(batch), info, none, /*pass=*/nullptr); },
                                           [&](ErrorNotes& notes) { note_batch(notes, state_, info.batch_idx); });
  if (result == BatchResult::kEndOfEpoch) {
    progress_.cut_short = true;
    progress_.abandon_window();
    progress_.last_batch_done = true;
    return {};
  }
  follow_step_metrics();
  return step_.output();
}

void FitLoop::begin_epoch() {
  go_to_next_epoch();
  start_epoch();
  in_epoch_ = true;
}

void FitLoop::end_epoch() {
  in_epoch_ = false;
  if (!progress_.last_batch_done) {
    optimizers_.step_schedulers(Interval::kEpoch);
    progress_.last_batch_done = true;
  }
  finish_epoch(/*complete=*/true);
}

const std::vector<MetricMap>& FitLoop::run_validation() {
  validate();
  return evaluation_.results();
}

DataLoaderPosition FitLoop::next_position(const DataLoader& loader) {
  go_to_next_epoch();
  return data_.position_in(loader);
}

bool FitLoop::wants_to_end() {
  // Asked again before the same batch: what was requested since does not wait for a batch that may never come.
  if (has_announced_next()) stop_.agree();
  agree_on_next_batch();
  return ends_here();
}

void FitLoop::end_steps() {
  stop_.end_steps(/*is_announced=*/has_announced_next());
  // Of steps outside of epochs: the end of an epoch has seen to its own.
  if (progress_.batch > 0 && progress_.phase != FitPhase::kEpochDone) unlogged_step_ = unlogged_step();
  log_last_step();
  optimizers_.warn_of_unfollowed_metrics();
  state_.in_fit_loop = false;
}

void FitLoop::suggest_workers(std::chrono::nanoseconds waited, std::chrono::nanoseconds total) const {
  const DataLoader& train = data_.loaders().train;
  if (!train.looks_ahead()) return;
  const std::string own = worker_hint({.waited = waited,
                                       .total = total,
                                       .workers = train.options().num_workers,
                                       .cores = static_cast<int64_t>(CpuCores().usable()),
                                       .is_stream = !train.num_examples()});
  // Another rank's data may be the slow ones: rank 0 then waits in collectives.
  const auto hints = gather_bytes_on_first(strategy_.collective(), own);
  for (size_t rank = 0; rank < hints.size(); ++rank) {
    if (hints[rank].empty()) continue;
    log::rank_zero_info_once(rank == 0 ? hints[rank] : fmt::format("rank {}: {}", rank, hints[rank]));
    return;
  }
}

}  // namespace levin
