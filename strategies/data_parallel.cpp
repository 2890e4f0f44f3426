#include <levin/strategies/data_parallel.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/strategies/learning_rate_scale.h>
#include <levin/strategies/ranks/local_device.h>
#include <levin/strategies/ranks/rank_options.h>
#include <levin/strategies/replicas/replica_group.h>

namespace levin {

void DataParallelOptions::describe(Schema<DataParallelOptions>& schema) {
  describe_scale_lr(schema, "replicas");
  describe_hang_timeout(schema);
}

DataParallel::DataParallel(const Options& options) : options_(options) {}
DataParallel::~DataParallel() = default;

StrategyCapabilities DataParallel::capabilities() const {
  return {.several_devices = true, .several_nodes = false, .half_precision = false, .manual_optimization = false};
}

void DataParallel::setup_environment(const StrategySetup& setup) {
  LEVIN_CHECK(!setup.devices.empty(), "dp was given no device");
  if (setup.sync_batchnorm && setup.devices.size() > 1)
    throw ConfigError(
        "trainer.sync_batchnorm does not work with strategy dp, whose replicas are not ranks; valid: false; hint: use "
        "strategy ddp or ddp_threads");
  refuse_shared_devices(setup.devices, kThreadsShareNone);
  devices_ = setup.devices;
  rank_.begin(devices_.front(), setup.rank_status, options_.hang_timeout);
}

void DataParallel::setup_module(Module& module) {
  replicas_.reset();
  move_to_device(module, root_device());
  if (devices_.size() > 1) replicas_ = std::make_unique<ReplicaGroup>(module, devices_);
}

StepOutput DataParallel::forward(const Batch& batch, StepPhases& phases) {
  return phases.step_end(
      replicas_->run(batch, [&](Module& module, const Batch& part) { return phases.step(module, part); }));
}

StepOutput DataParallel::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  if (replicas_ == nullptr) return Strategy::forward_backward(batch, phases, window);
  StepOutput output;  // keeps the replicas' graphs until none of them runs
  const ReplicaGroup::StepScope scope(*replicas_);
  output = forward(batch, phases);
  if (!output.has_loss()) return output;
  phases.before_backward(output);
  phases.weigh(output, replicas_->loss_share());
  phases.backward(output);
  phases.after_backward();
  return output;
}

StepOutput DataParallel::evaluate(const Batch& batch, StepPhases& phases) {
  if (replicas_ == nullptr) return phases.forward(batch);
  const ReplicaGroup::StepScope scope(*replicas_);
  return forward(batch, phases);
}

double DataParallel::learning_rate_scale() const {
  return levin::learning_rate_scale(options_.scale_lr, std::ssize(devices_));
}

void DataParallel::teardown() {
  replicas_.reset();
  rank_.end();
}

}  // namespace levin
