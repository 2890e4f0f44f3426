#pragma once

#include <levin/core/connectors/data_connector.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/loops/training_step.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace levin {

/// Gives a module its view of the rank that runs it, each thing by the part of the trainer that owns it.
class ModuleContext final : public detail::ModuleRuntime {
 public:
  ModuleContext(Trainer& trainer, const ResolvedOptions& options, TrainerState& state, DataConnector& data,
                LoggerConnector& logger, OptimizerConnector& optimizers, TrainingStep& step);
  /// Detaches from the module.
  ~ModuleContext() override;

  /// Attaches to the module of a call, in place of the one before.
  void attach(std::shared_ptr<Module> module);
  /// Throws levin::Error where another trainer is at work with the module of `call`.
  void require_free(const Module& module, std::string_view call) const;

  DataConnector& data() { return data_; }

  // ---- ModuleRuntime
  Trainer& trainer() override { return trainer_; }
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void log(std::string_view name, metrics::Metric& metric, const LogOptions& options) override;
  const at::Device& device() const override;
  int64_t dataloader_idx() const override { return state_.evaluation_loader; }
  const std::vector<OptimizerHandle*>& optimizers() override { return optimizers_.all(); }
  OptimizerConfigs configured_optimizers() override { return optimizers_.configured(); }
  void manual_backward(const at::Tensor& loss, const BackwardOptions& options) override;
  void clip_gradients(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm, bool in_step) override;
  at::Tensor all_gather(const at::Tensor& tensor, bool sync_grads) override;
  void use_prefetched(Batch& batch, const at::Device& device) override;

 private:
  void detach();

  Trainer& trainer_;
  TrainerState& state_;
  Strategy& strategy_;
  DataConnector& data_;
  LoggerConnector& logger_;
  OptimizerConnector& optimizers_;
  TrainingStep& step_;
};

}  // namespace levin
