#include <levin/core/loops/evaluation_loop.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/rank_status.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/connectors/join_scope.h>
#include <levin/core/data/batch_state.h>
#include <levin/core/data/joined_predictions.h>
#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/loops/evaluation_scope.h>
#include <levin/core/precision/precision.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace levin {
namespace {

/// The batches of all ranks in the order of the examples: each in one, or in the parts of the ranks where one would not
/// hold all of them.
std::vector<Batch> gathered(Collective& collective, const std::vector<Batch>& own) {
  std::vector<std::vector<Batch>> parts;
  State batches = State::list();
  for (const Batch& batch : own) batches.push_back(to_state(batch));
  for (const std::string& bytes : collective.gather_bytes(state_to_bytes(batches))) {
    const State rank = state_from_bytes(bytes);
    if (parts.size() < rank.as_list().size()) parts.resize(rank.as_list().size());
    for (size_t i = 0; i < rank.as_list().size(); ++i)
      if (Batch part = to_batch(rank.as_list()[i]); !part.empty()) parts[i].push_back(std::move(part));
  }
  std::vector<Batch> all;
  all.reserve(parts.size());
  for (auto& of_batch : parts) {
    if (of_batch.empty())
      all.emplace_back();
    else if (are_slices_of_one_batch(of_batch))
      all.push_back(Batch::concatenate(of_batch));
    else
      std::move(of_batch.begin(), of_batch.end(), std::back_inserter(all));
  }
  return all;
}

/// Makes what a program is given ordinary tensors, without gradients, of which a loss may be made.
struct OrdinaryTensors {
  c10::InferenceMode off{false};
  at::NoGradGuard no_grad;
};

/// What a report of where ranks are calls the evaluation under way.
const char* evaluation_name(RunningStage stage) {
  switch (stage) {
    case RunningStage::kSanityCheck:
      return "sanity check";
    case RunningStage::kTest:
      return "test";
    case RunningStage::kPredict:
      return "prediction";
    default:
      return "validation";
  }
}

}  // namespace

/// The hooks of validation or of test, and what they are called.
struct EvaluationLoop::Hooks {
  struct Names {
    const char* model_eval;
    const char* model_train;
    const char* start;
    const char* epoch_start;
    const char* batch_start;
    const char* step;
    const char* step_end;
    const char* batch_end;
    const char* epoch_end;
    const char* end;
    const char* fetch;
    const char* batch;
  };
  Names names;
  void (Module::*model_eval)();
  void (Module::*model_train)();
  void (Callback::*start)(Trainer&, Module&);
  void (Module::*module_start)();
  void (Callback::*epoch_start)(Trainer&, Module&);
  void (Module::*module_epoch_start)();
  void (Callback::*batch_start)(Trainer&, Module&, const Batch&, int64_t, int64_t);
  void (Module::*module_batch_start)(const Batch&, int64_t, int64_t);
  StepOutput (Module::*step)(const Batch&, int64_t);
  StepOutput (Module::*step_end)(StepOutput);
  void (Callback::*batch_end)(Trainer&, Module&, const StepOutput&, const Batch&, int64_t, int64_t);
  void (Module::*module_batch_end)(const StepOutput&, const Batch&, int64_t, int64_t);
  void (Callback::*epoch_end)(Trainer&, Module&);
  void (Module::*module_epoch_end)();
  void (Callback::*end)(Trainer&, Module&);
  void (Module::*module_end)();

  static const Hooks& of(RunningStage stage) {
    static const Hooks kValidation = {
        {"on_validation_model_eval", "on_validation_model_train", "on_validation_start", "on_validation_epoch_start",
         "on_validation_batch_start", "validation_step", "validation_step_end", "on_validation_batch_end",
         "on_validation_epoch_end", "on_validation_end", "fetch_validation_batch", "validation_batch"},
        &Module::on_validation_model_eval,
        &Module::on_validation_model_train,
        &Callback::on_validation_start,
        &Module::on_validation_start,
        &Callback::on_validation_epoch_start,
        &Module::on_validation_epoch_start,
        &Callback::on_validation_batch_start,
        &Module::on_validation_batch_start,
        &Module::validation_step,
        &Module::validation_step_end,
        &Callback::on_validation_batch_end,
        &Module::on_validation_batch_end,
        &Callback::on_validation_epoch_end,
        &Module::on_validation_epoch_end,
        &Callback::on_validation_end,
        &Module::on_validation_end};
    static const Hooks kTest = {{"on_test_model_eval", "on_test_model_train", "on_test_start", "on_test_epoch_start",
                                 "on_test_batch_start", "test_step", "test_step_end", "on_test_batch_end",
                                 "on_test_epoch_end", "on_test_end", "fetch_test_batch", "test_batch"},
                                &Module::on_test_model_eval,
                                &Module::on_test_model_train,
                                &Callback::on_test_start,
                                &Module::on_test_start,
                                &Callback::on_test_epoch_start,
                                &Module::on_test_epoch_start,
                                &Callback::on_test_batch_start,
                                &Module::on_test_batch_start,
                                &Module::test_step,
                                &Module::test_step_end,
                                &Callback::on_test_batch_end,
                                &Module::on_test_batch_end,
                                &Callback::on_test_epoch_end,
                                &Module::on_test_epoch_end,
                                &Callback::on_test_end,
                                &Module::on_test_end};
    return stage == RunningStage::kTest ? kTest : kValidation;
  }
};

/// One batch's step as a strategy runs it.
class EvaluationLoop::Step final : public StepPhases {
 public:
  Step(TrainerState& state, Tracer& tracer, Precision& precision, const Hooks& hooks)
      : state_(state), tracer_(tracer), precision_(precision), hooks_(hooks) {}
  void set_batch(int64_t batch_idx) { batch_idx_ = batch_idx; }

  Module& module() override { return *state_.module; }
  StepOutput step(Module& module, const Batch& batch) override {
    const Activity activity(tracer_, hooks_.names.step);
    const ForwardScope forward(precision_);
    return call_user(
        state_, hooks_.names.step, module, [&] { return (module.*hooks_.step)(batch, batch_idx_); }, batch, batch_idx_,
        state_.evaluation_loader);
  }
  StepOutput step_end(StepOutput output) override {
    const ForwardScope forward(precision_);
    return call_user(state_, hooks_.names.step_end, *state_.module,
                     [&] { return (state_.module.get()->*hooks_.step_end)(std::move(output)); });
  }
  void before_backward(StepOutput&) override { no_backward(); }
  void weigh(const StepOutput&, double) override { no_backward(); }
  const LossWeight& window_weight() const override { no_backward(); }
  void backward(StepOutput&) override { no_backward(); }
  void after_backward() override { no_backward(); }
  std::shared_ptr<void> forward_scope() override { return std::make_shared<ForwardScope>(precision_); }

 private:
  [[noreturn]] static void no_backward() { throw InternalError("an evaluation has no backward"); }

  TrainerState& state_;
  Tracer& tracer_;
  Precision& precision_;
  const Hooks& hooks_;
  int64_t batch_idx_ = 0;
};

EvaluationLoop::EvaluationLoop(Connectors& connectors)
    : options_(connectors.options),
      state_(connectors.state),
      tracer_(connectors.tracer),
      strategy_(*options_.strategy),
      model_(strategy_.divided_model()),
      callbacks_(connectors.callbacks),
      data_(connectors.data),
      logger_(connectors.logger),
      checkpoints_(connectors.checkpoints),
      stop_(connectors.stop) {}

bool EvaluationLoop::visit(const DataLoader& loader, const DataLoaderPosition& start, EvaluationProgress& progress,
                           const char* span, const char* fetch, const Visitor& visitor) {
  state_.evaluation_loader = progress.loader;
  const int64_t limit = state_.evaluation_batches[static_cast<size_t>(progress.loader)];
  if (limit >= 0 && progress.batch >= limit) return true;
  const bool in_fit = state_.stage == Stage::kFit;
  const bool several_ranks = strategy_.world_size() > 1;
  const bool together = model_.forwards_together();
  const bool stops = stops_for_signals();
  auto pass = loader.pass(start);
  EvaluatingLoader place(tracer_.rank_status(), evaluation_name(state_.running), progress.loader);
  std::optional<Batch> next;
  while (limit < 0 || progress.batch < limit) {
    place.begin_batch(progress.batch);
    if (!in_fit && tracer_.profiler() != nullptr) tracer_.profiler()->step();
    const ProfilerSpan batch_span(tracer_.profiler(), span);
    auto fetched = next ? std::exchange(next, std::nullopt) : data_.fetch(pass, fetch, progress.loader);
    if (together) {
      const ProfilerSpan any_span(tracer_.profiler(), "any_rank");
      const auto [any_data, any_signal] = strategy_.any_rank(fetched.has_value(), stop_.signal_received());
      if (!any_data || (any_signal && stops)) break;
    } else if (!fetched) {
      break;
    }
    if (!fetched) {
      const JoinScope join(state_, /*joins=*/true);
      visitor(data_.transfer(data_.join_batch(loader), progress.loader), progress.batch);
      ++progress.batch;
      continue;
    }
    if (const auto share = pass.share(progress.batch); share && share->own == 0) {
      // Of a batch with fewer examples than ranks, this one has none.
      if (together) {
        const JoinScope join(state_, /*joins=*/true);
        visitor(data_.transfer(std::move(*fetched), progress.loader), progress.batch);
      }
      ++progress.batch;
      continue;
    }
    if (data_.prefetches() && (limit < 0 || progress.batch + 1 < limit))
      next = data_.fetch(pass, fetch, progress.loader);
    visitor(data_.transfer(std::move(*fetched), progress.loader, next), progress.batch);
    ++progress.batch;
    if (in_fit && !several_ranks && state_.running != RunningStage::kSanityCheck) checkpoints_.save_deferred();
    if (stop_.ends_alone()) return false;
    // The others are told at the end.
    if (stops && stop_.signal_received() && several_ranks && !together) break;
    if (ControlPlane* control = strategy_.control_plane()) control->throw_if_failed();
  }
  return true;
}

/// Inside of a window that nothing can be saved in, training goes on to its end.
bool EvaluationLoop::stops_for_signals() const { return !state_.in_fit_loop || !checkpoints_.waits_for_window(); }

bool EvaluationLoop::run(RunningStage stage, const DataLoaders& loaders, const std::vector<int64_t>& batches,
                         EvaluationProgress& progress) {
  const Hooks& hooks = Hooks::of(stage);
  results_.clear();
  if (strategy_.world_size() > 1) strategy_.prepare_evaluation(*state_.module);
  bool is_complete = false;
  {
    const EvaluationScope scope(options_, state_, data_, logger_, stage, &logger_.evaluation_metrics());
    callbacks_.module(hooks.names.model_eval, hooks.model_eval);
    state_.evaluation_batches = batches;
    is_complete = run_in_scope(hooks, loaders, progress);
  }
  callbacks_.module(hooks.names.model_train, hooks.model_train);
  return is_complete;
}

bool EvaluationLoop::run_in_scope(const Hooks& hooks, const DataLoaders& loaders, EvaluationProgress& progress) {
  metrics::Collector& collector = logger_.evaluation_metrics();
  const bool several_ranks = strategy_.world_size() > 1;
  const bool validates_in_fit = state_.stage == Stage::kFit && state_.running == RunningStage::kValidate;
  Step step(state_, tracer_, *options_.precision, hooks);
  bool took_part = false;
  State generators;  // where the evaluation may have to start again
  if (several_ranks && validates_in_fit) generators = capture_rng_state(strategy_.root_device());
  // The newest values are those of the latest batch: outside of fit rank 0 knows how many there were.
  int64_t training_batches = state_.progress.moment();
  if (several_ranks && !state_.in_fit_loop)
    training_batches = std::stoll(strategy_.broadcast(std::to_string(training_batches)));
  if (!progress.started) {
    collector.reset();
    collector.begin({.training_batches = training_batches});
    callbacks_.call(hooks.names.start, hooks.start, hooks.module_start);
    callbacks_.call(hooks.names.epoch_start, hooks.epoch_start, hooks.module_epoch_start);
    progress.started = true;
  }
  const auto evaluate = [&](const Batch& batch, int64_t batch_idx) {
    const ProfilerSpan span(tracer_.profiler(), "strategy.evaluate");
    step.set_batch(batch_idx);
    return strategy_.evaluate(batch, step);
  };
  const auto visitor = [&](const Batch& batch, int64_t batch_idx) {
    if (state_.joining) {
      evaluate(batch, batch_idx);
      return;
    }
    collector.begin({.batch_size = batch.size(),
                     .dataloader_idx = progress.loader,
                     .loaders = std::ssize(loaders),
                     .training_batches = training_batches,
                     .evaluation_batches = batch_idx + 1});
    callbacks_.call(hooks.names.batch_start, hooks.batch_start, hooks.module_batch_start, batch, batch_idx,
                    progress.loader);
    took_part = true;
    const StepOutput output = evaluate(batch, batch_idx);
    output.weight().require_valid();
    collector.weigh(output.weight());
    callbacks_.call(hooks.names.batch_end, hooks.batch_end, hooks.module_batch_end, output, batch, batch_idx,
                    progress.loader);
  };
  for (; progress.loader < std::ssize(loaders); ++progress.loader, progress.batch = 0) {
    if (!visit(loaders[static_cast<size_t>(progress.loader)],
               data_.position(state_.in_fit_loop ? state_.progress.epoch : 0, progress.batch), progress,
               hooks.names.batch, hooks.names.fetch, visitor))
      return false;
    if (loaders.size() > 1) collector.end_loader();
  }
  if (several_ranks && stops_for_signals() && stop_.any_rank_signalled()) {
    // Ranks are at different batches: a resumed run starts this evaluation again.
    progress = {};
    collector.reset();
    if (!generators.is_null()) restore_rng_state(generators, strategy_.root_device());
    return false;
  }
  collector.begin({.training_batches = training_batches});
  state_.evaluation_loader = 0;
  logger_.show_epoch_values(true);
  callbacks_.call(hooks.names.epoch_end, hooks.epoch_end, hooks.module_epoch_end);
  if (several_ranks) {
    const ProfilerSpan span(tracer_.profiler(), "synchronize_metrics");
    collector.synchronize_newest(strategy_.collective());
    collector.synchronize_epoch(strategy_.collective(), took_part && model_.owns_outputs());
  }
  collect_results(loaders.size());
  logger_.callback_metrics();  // the last values of steps, which the end of the evaluation forgets
  logger_.log_epoch_row(collector);
  progress = {};
  logger_.set_over(true);
  if (validates_in_fit) {
    // One between two epochs belongs to neither.
    if (state_.progress.phase == FitPhase::kValidation) state_.progress.phase = FitPhase::kAfterValidation;
    state_.progress.validated = true;
    state_.progress.seconds_since_validation = 0;
  }
  callbacks_.call_in_stages(
      hooks.names.end, hooks.end, hooks.module_end, [] {},
      [&] {
        if (validates_in_fit) checkpoints_.save_deferred();
      });
  collector.reset();
  return true;
}

void EvaluationLoop::collect_results(size_t loaders) {
  results_.assign(loaders, {});
  logger_.evaluation_metrics().visit_epoch([&](const metrics::Collector::Value& value) {
    results_.at(static_cast<size_t>(value.dataloader_idx))[value.short_name] = value.value;
  });
}

StepOutput EvaluationLoop::evaluate_batch(Batch host_batch) {
  const Hooks& hooks = Hooks::of(RunningStage::kValidate);
  metrics::Collector& collector = logger_.evaluation_metrics();
  if (strategy_.world_size() > 1) strategy_.prepare_evaluation(*state_.module);
  StepOutput output;
  {
    const EvaluationScope scope(options_, state_, data_, logger_, RunningStage::kValidate, &collector);
    const OrdinaryTensors ordinary;
    callbacks_.module(hooks.names.model_eval, hooks.model_eval);
    collector.reset();
    const Batch batch = data_.transfer(std::move(host_batch), 0);
    collector.begin({.batch_size = batch.size(), .training_batches = state_.progress.moment()});
    Step step(state_, tracer_, *options_.precision, hooks);
    output = strategy_.evaluate(batch, step);
    output.weight().require_valid();
    collector.weigh(output.weight());
    logger_.show_epoch_values(true);
    logger_.callback_metrics();
    collector.reset();
  }
  callbacks_.module(hooks.names.model_train, hooks.model_train);
  return output;
}

Batch EvaluationLoop::predict_batch(Batch host_batch) {
  Batch prediction;
  {
    const EvaluationScope scope(options_, state_, data_, logger_, RunningStage::kPredict, /*collector=*/nullptr);
    const OrdinaryTensors ordinary;
    callbacks_.module("on_predict_model_eval", &Module::on_predict_model_eval);
    prediction = run_predict_step(data_.transfer(std::move(host_batch), 0), 0, 0);
  }
  callbacks_.module("on_predict_model_train", &Module::on_predict_model_train);
  return prediction;
}

std::vector<std::vector<Batch>> EvaluationLoop::predict(const DataLoaders& loaders, const std::vector<int64_t>& batches,
                                                        std::optional<bool> keep) {
  const auto takes_them = [](const auto& callback) { return callback->takes_predictions(); };
  const bool keeps = keep.value_or(std::ranges::none_of(callbacks_.all(), takes_them));
  std::vector<std::vector<Batch>> predictions;
  {
    const EvaluationScope scope(options_, state_, data_, logger_, RunningStage::kPredict, /*collector=*/nullptr);
    callbacks_.module("on_predict_model_eval", &Module::on_predict_model_eval);
    state_.evaluation_batches = batches;
    predictions = predict_in_scope(loaders, keeps);
  }
  callbacks_.module("on_predict_model_train", &Module::on_predict_model_train);
  return predictions;
}

Batch EvaluationLoop::run_predict_step(const Batch& batch, int64_t batch_idx, int64_t dataloader_idx) {
  const Activity activity(tracer_, "predict_step");
  const ForwardScope forward(*options_.precision);
  const auto strategy_scope = model_.forward_scope();
  Module& module = *state_.module;
  DividedExamples* const divided = find_divided_examples(strategy_);
  return call_user(
      state_, "predict_step", module,
      [&] {
        return divided == nullptr ? module.predict_step(batch, batch_idx)
                                  : divided->whole_of(module.predict_step(divided->part_of(batch), batch_idx));
      },
      batch, batch_idx, dataloader_idx);
}

std::vector<std::vector<Batch>> EvaluationLoop::predict_in_scope(const DataLoaders& loaders, bool keeps) {
  std::vector<std::vector<Batch>> predictions(keeps ? loaders.size() : 0);
  EvaluationProgress progress;
  const auto visitor = [&](const Batch& batch, int64_t batch_idx) {
    if (state_.joining) {
      run_predict_step(batch, batch_idx, progress.loader);
      return;
    }
    callbacks_.call("on_predict_batch_start", &Callback::on_predict_batch_start, &Module::on_predict_batch_start, batch,
                    batch_idx, progress.loader);
    const Batch prediction = run_predict_step(batch, batch_idx, progress.loader);
    callbacks_.call("on_predict_batch_end", &Callback::on_predict_batch_end, &Module::on_predict_batch_end, prediction,
                    batch, batch_idx, progress.loader);
    if (!keeps || !model_.owns_outputs() || !counts_examples(strategy_)) return;
    auto& of_loader = predictions[static_cast<size_t>(progress.loader)];
    of_loader.resize(static_cast<size_t>(batch_idx));  // an empty one where this rank had no part
    of_loader.push_back(prediction.to(at::Device(at::kCPU)));
  };
  callbacks_.call("on_predict_start", &Callback::on_predict_start, &Module::on_predict_start);
  callbacks_.call("on_predict_epoch_start", &Callback::on_predict_epoch_start, &Module::on_predict_epoch_start);
  for (; progress.loader < std::ssize(loaders); ++progress.loader, progress.batch = 0)
    if (!visit(loaders[static_cast<size_t>(progress.loader)], data_.position(/*epoch=*/0, /*batch=*/0), progress,
               "predict_batch", "fetch_predict_batch", visitor))
      return predictions;
  if (keeps && strategy_.world_size() > 1) {
    const ProfilerSpan span(tracer_.profiler(), "gather_predictions");
    for (auto& of_loader : predictions) of_loader = gathered(strategy_.collective(), of_loader);
  }
  callbacks_.call("on_predict_epoch_end", &Callback::on_predict_epoch_end, &Module::on_predict_epoch_end);
  callbacks_.call("on_predict_end", &Callback::on_predict_end, &Module::on_predict_end);
  return predictions;
}

}  // namespace levin
