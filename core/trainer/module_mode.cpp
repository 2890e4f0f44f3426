#include <levin/core/trainer/module_mode.h>

namespace levin {

EvaluationScope::EvaluationScope(RankCore& core, RunningStage stage, metrics::Collector* collector)
    : core_(core),
      previous_stage_(core.running),
      previous_collector_(core.active_metrics),
      previous_visible_(core.epoch_values_visible) {
  core.drop_early_copies();  // of the training batch that follows
  // Values of the training step stay readable while the evaluation collects its own.
  if (previous_collector_ != nullptr) {
    core.callback_metrics();
    core.progress_bar_metrics(false);
  }
  if (previous_stage_ != RunningStage::kSanityCheck) core.running = stage;
  core.active_metrics = collector;
  core.epoch_values_visible = false;
  for (const auto& module : core.module().modules(/*include_self=*/true)) training_.push_back(module->is_training());
  core.module().eval();
  if (core.options.inference_mode)
    inference_.emplace(true);
  else
    no_grad_.emplace();
}

EvaluationScope::~EvaluationScope() {
  core_.drop_early_copies();
  inference_.reset();
  no_grad_.reset();
  size_t index = 0;
  // Module::train() would also set the children, which come later in this order and set themselves again.
  for (const auto& module : core_.module().modules(/*include_self=*/true)) {
    if (index < training_.size()) module->train(training_[index]);
    ++index;
  }
  core_.running = previous_stage_;
  core_.active_metrics = previous_collector_;
  core_.epoch_values_visible = previous_visible_;
  core_.evaluation_loader = 0;
}

}  // namespace levin
