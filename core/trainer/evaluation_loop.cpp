#include <levin/core/trainer/evaluation_loop.h>

#include <levin/core/base/error.h>
#include <levin/core/base/signals.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/trainer/module_mode.h>
#include <levin/core/trainer/stand_in.h>

#include <utility>

namespace levin {

/// The hooks of validation or of test, and what they are called.
struct EvaluationLoop::HookSet {
  struct Names {
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

  static const HookSet& of(RunningStage stage) {
    static const HookSet kValidation = {
        {"on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "validation_step",
         "validation_step_end", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end",
         "fetch_validation_batch", "validation_batch"},
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
    static const HookSet kTest = {
        {"on_test_start", "on_test_epoch_start", "on_test_batch_start", "test_step", "test_step_end",
         "on_test_batch_end", "on_test_epoch_end", "on_test_end", "fetch_test_batch", "test_batch"},
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
  Step(RankCore& core, const HookSet& set) : core_(core), set_(set) {}
  void set_batch(int64_t batch_idx) { batch_idx_ = batch_idx; }

  Module& module() override { return core_.module(); }
  StepOutput step(Module& module, const Batch& batch) override {
    const Activity activity(core_, set_.names.step);
    const ForwardScope forward(core_.precision());
    return call_user(
        core_, set_.names.step, module, [&] { return (module.*set_.step)(batch, batch_idx_); }, batch, batch_idx_,
        core_.evaluation_loader);
  }
  StepOutput step_end(StepOutput output) override {
    const ForwardScope forward(core_.precision());
    return call_user(core_, set_.names.step_end, core_.module(),
                     [&] { return (core_.module().*set_.step_end)(std::move(output)); });
  }
  void before_backward(StepOutput&) override { no_backward(); }
  void backward(StepOutput&) override { no_backward(); }
  void after_backward() override { no_backward(); }
  std::shared_ptr<void> forward_scope() override { return std::make_shared<ForwardScope>(core_.precision()); }

 private:
  [[noreturn]] static void no_backward() { throw InternalError("an evaluation has no backward"); }

  RankCore& core_;
  const HookSet& set_;
  int64_t batch_idx_ = 0;
};

bool EvaluationLoop::interrupted_anywhere() const {
  const bool here = SignalScope::received() != 0;
  if (core_.world_size() == 1) return here;
  for (const std::string& there : core_.strategy().collective().gather_bytes(here ? "y" : ""))
    if (!there.empty()) return true;
  return false;
}

bool EvaluationLoop::run(RunningStage stage, const DataLoaders& loaders, const std::vector<int64_t>& batches,
                         EvaluationProgress& progress, bool in_fit) {
  const HookSet& set = HookSet::of(stage);
  if (core_.world_size() > 1) core_.strategy().prepare_evaluation(core_.module());
  const EvaluationScope scope(core_, stage, &core_.evaluation_metrics);
  core_.evaluation_batches = batches;
  Step step(core_, set);
  const bool several_ranks = core_.world_size() > 1;
  const bool together = core_.strategy().forwards_together();
  bool took_part = false;
  const auto fetch = [&](DataLoader::Pass& pass) {
    const Activity activity(core_, set.names.fetch);
    return noting_errors([&] { return pass.next(); },
                         [&](ErrorNotes& notes) { note_batch(notes, core_, pass.position(), progress.loader); });
  };
  const auto evaluate = [&](const Batch& batch) {
    const ProfilerSpan span(core_.profiler, "strategy.evaluate");
    return core_.strategy().evaluate(batch, step);
  };
  const bool resuming = progress.started;
  if (!resuming) {
    core_.evaluation_metrics.reset();
    core_.evaluation_metrics.begin({});
    hooks_.call(set.names.start, set.start, set.module_start);
    hooks_.call(set.names.epoch_start, set.epoch_start, set.module_epoch_start);
    progress.started = true;
  }
  for (; progress.loader < static_cast<int64_t>(loaders.size()); ++progress.loader, progress.batch = 0) {
    const auto index = static_cast<size_t>(progress.loader);
    core_.evaluation_loader = progress.loader;
    const int64_t limit = batches[index];
    if (limit >= 0 && progress.batch >= limit) continue;
    auto pass = loaders[index].pass(core_.position(core_.progress.epoch, progress.batch));
    std::optional<Batch> next;
    while (limit < 0 || progress.batch < limit) {
      if (!in_fit && core_.profiler != nullptr) core_.profiler->step();
      const ProfilerSpan batch_span(core_.profiler, set.names.batch);
      auto fetched = next ? std::exchange(next, std::nullopt) : fetch(pass);
      if (together) {
        const auto [any_data, any_signal] = core_.any_rank(fetched.has_value(), SignalScope::received() != 0);
        if (!any_data || any_signal) break;
      }
      if (!fetched && together) {
        const StandIn stand_in(core_, true);
        const Batch batch = core_.transfer(stand_in_batch(core_, loaders[index]), progress.loader);
        step.set_batch(progress.batch++);
        evaluate(batch);
        continue;
      }
      if (!fetched) break;
      if (core_.prefetch() != nullptr && (limit < 0 || progress.batch + 1 < limit)) next = fetch(pass);
      const Batch batch = core_.transfer(std::move(*fetched), progress.loader, next);
      core_.evaluation_metrics.begin({.batch_size = batch.size(),
                                      .dataloader_idx = progress.loader,
                                      .loaders = static_cast<int64_t>(loaders.size())});
      hooks_.call(set.names.batch_start, set.batch_start, set.module_batch_start, batch, progress.batch,
                  progress.loader);
      took_part = true;
      step.set_batch(progress.batch);
      const StepOutput output = evaluate(batch);
      hooks_.call(set.names.batch_end, set.batch_end, set.module_batch_end, output, batch, progress.batch,
                  progress.loader);
      ++progress.batch;
      if (in_fit && !several_ranks && core_.running != RunningStage::kSanityCheck) checkpoints_.save_deferred();
      if (SignalScope::received() != 0) {
        if (!several_ranks) return false;
        if (!together) break;  // the others are told at the end
      }
      if (ControlPlane* control = core_.strategy().control_plane()) control->throw_if_failed();
    }
    if (loaders.size() > 1) core_.evaluation_metrics.end_loader();
  }
  if (several_ranks && interrupted_anywhere()) {
    // Ranks are at different batches: a resumed run starts this evaluation again.
    progress = {};
    core_.evaluation_metrics.reset();
    return false;
  }
  core_.evaluation_metrics.begin({.loaders = 1});
  core_.evaluation_loader = 0;
  core_.epoch_values_visible = true;
  hooks_.call(set.names.epoch_end, set.epoch_end, set.module_epoch_end);
  if (several_ranks) {
    const ProfilerSpan span(core_.profiler, "synchronize_metrics");
    core_.evaluation_metrics.synchronize_epoch(core_.strategy().collective(),
                                               took_part && core_.strategy().owns_outputs());
  }
  collect_results(loaders.size());
  core_.log_epoch_row(core_.evaluation_metrics);
  progress = {};
  if (in_fit && core_.running == RunningStage::kValidate) core_.progress.phase = FitPhase::kAfterValidation;
  hooks_.call_in_stages(
      set.names.end, set.end, set.module_end, [] {},
      [&] {
        if (in_fit && core_.running == RunningStage::kValidate) checkpoints_.save_deferred();
      });
  core_.epoch_values_visible = false;
  core_.evaluation_metrics.reset();
  return true;
}

void EvaluationLoop::collect_results(size_t loaders) {
  results_.assign(loaders, {});
  core_.evaluation_metrics.visit_epoch([&](const metrics::Collector::Value& value) {
    results_.at(static_cast<size_t>(value.dataloader_idx))[value.short_name] = value.value;
  });
}

std::vector<int64_t> limited_batches(const DataLoaders& loaders, const BatchLimit& limit, const std::string& option,
                                     int64_t world_size) {
  std::vector<int64_t> batches;
  for (const auto& loader : loaders) batches.push_back(limit.resolve(loader.num_batches(world_size), option));
  return batches;
}

}  // namespace levin
