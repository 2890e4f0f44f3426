#include <levin/strategies/ddp/ddp2.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/strategies/ranks/local_device.h>
#include <levin/strategies/replicas/replica_group.h>

#include <fmt/format.h>

#include <optional>

namespace levin {
namespace {

/// What the strategy between the hosts sees: this process is one rank, on the first device.
StrategySetup of_the_process(const StrategySetup& setup) {
  StrategySetup process = setup;
  process.devices = {setup.devices.front()};
  process.devices_are_given = false;
  return process;
}

}  // namespace

Ddp2::Ddp2(const Options& options) : Ddp(options) {}

Ddp2::~Ddp2() = default;

StrategyCapabilities Ddp2::capabilities() const {
  return {.several_devices = true,
          .several_nodes = true,
          .half_precision = false,
          .manual_optimization = false,
          .iterable_datasets = Ddp::capabilities().iterable_datasets};
}

void Ddp2::prepare(const StrategySetup& setup) {
  if (options().start_method != StartMethod::kSubprocess)
    throw ConfigError(
        fmt::format("strategy ddp2 runs one process on each host; got start_method: {}; valid: subprocess",
                    options().start_method == StartMethod::kFork ? "fork" : "thread"));
  if (setup.sync_batchnorm)
    throw ConfigError(
        "trainer.sync_batchnorm does not work with strategy ddp2, whose replicas are not ranks; hint: strategy: ddp");
  refuse_shared_devices(setup.devices, kThreadsShareNone);
  devices_ = setup.devices;
  Ddp::prepare(of_the_process(setup));
  if (environment().local_world_size() > 1)
    throw ConfigError(
        fmt::format("strategy ddp2 runs one process on each host, but {} has started {} on this one; "
                    "hint: torchrun --nproc-per-node 1, srun --ntasks-per-node=1",
                    environment().name(), environment().local_world_size()));
}

void Ddp2::setup_environment(const StrategySetup& setup) { Ddp::setup_environment(of_the_process(setup)); }

void Ddp2::setup_module(Module& module) {
  replicas_.reset();
  Ddp::setup_module(module);
  if (devices_.size() > 1) replicas_ = std::make_unique<ReplicaGroup>(module, devices_);
}

StepOutput Ddp2::forward(const Batch& batch, StepPhases& phases) {
  if (replicas_ == nullptr) return phases.forward(batch);
  return phases.step_end(
      replicas_->run(batch, [&](Module& module, const Batch& part) { return phases.step(module, part); }));
}

double Ddp2::loss_share() const { return replicas_ == nullptr ? 1 : replicas_->loss_share(); }

StepOutput Ddp2::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  std::optional<ReplicaGroup::StepScope> scope;
  if (replicas_ != nullptr) scope.emplace(*replicas_);
  return Ddp::forward_backward(batch, phases, window);
}

StepOutput Ddp2::evaluate(const Batch& batch, StepPhases& phases) {
  std::optional<ReplicaGroup::StepScope> scope;
  if (replicas_ != nullptr) scope.emplace(*replicas_);
  return forward(batch, phases);
}

void Ddp2::teardown() {
  replicas_.reset();
  Ddp::teardown();
}

}  // namespace levin
