#include <levin/core/loops/evaluation_scope.h>

#include <levin/core/interfaces/module.h>

namespace levin {

EvaluationScope::EvaluationScope(const ResolvedOptions& options, TrainerState& state, DataConnector& data,
                                 LoggerConnector& logger, RunningStage stage, metrics::Collector* collector)
    : state_(state), data_(data), logger_(logger), former_stage_(state.running) {
  data_.drop_prefetched();  // of the training batch that follows
  // Values of the training step stay readable while the evaluation collects its own.
  if (logger_.active() != nullptr) {
    logger_.callback_metrics();
    logger_.progress_bar_metrics(/*wait_for_device=*/false);
  }
  if (former_stage_ != RunningStage::kSanityCheck) state_.running = stage;
  former_active_ = logger_.set_active({.collector = collector});
  for (const auto& module : state_.module->modules(/*include_self=*/true)) training_.push_back(module->is_training());
  if (options.given.inference_mode)
    inference_.emplace(true);
  else
    no_grad_.emplace();
}

EvaluationScope::~EvaluationScope() {
  data_.drop_prefetched();
  inference_.reset();
  no_grad_.reset();
  size_t index = 0;
  // Module::train() would also set the children, which come later in this order and set themselves again.
  for (const auto& module : state_.module->modules(/*include_self=*/true)) {
    if (index < training_.size()) module->train(training_[index]);
    ++index;
  }
  state_.running = former_stage_;
  logger_.set_active(former_active_);
  state_.evaluation_loader = 0;
}

}  // namespace levin
