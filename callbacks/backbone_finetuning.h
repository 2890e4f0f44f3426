#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Options of BackboneFinetuning, explained in describe().
struct BackboneFinetuningOptions {
  std::string backbone = "backbone";
  int64_t unfreeze_backbone_at_epoch = 10;
  double multiplier = 2.0;
  double backbone_initial_ratio_lr = 0.1;
  std::optional<double> backbone_initial_lr = {};
  std::optional<double> initial_denom_lr = {};
  bool should_align = true;
  bool train_bn = true;

  static void describe(Schema<BackboneFinetuningOptions>& schema);
};

/// Trains the rest of a model first: a submodule is frozen, and from an epoch on trained in a parameter group of its
/// own with a learning rate that grows to that of the others. Whether configure_optimizers hands over frozen parameters
/// or leaves them out makes no difference. After fit nothing is frozen.
class BackboneFinetuning final : public Callback {
 public:
  using Options = BackboneFinetuningOptions;

  explicit BackboneFinetuning(const Options& options = {});

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void teardown(Trainer& trainer, Module& module, Stage stage) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  /// Returns the submodule; nullptr where the module has none (yet).
  std::shared_ptr<torch::nn::Module> find_backbone(const Module& module) const;
  void freeze(torch::nn::Module& backbone);
  void unfreeze(Trainer& trainer);
  /// Leaves the module as it was before it was frozen.
  void thaw();

  const Options options_;
  std::vector<at::Tensor> frozen_;                                ///< parameters
  std::vector<std::shared_ptr<torch::nn::Module>> frozen_norms_;  ///< BatchNorm layers put in eval mode
  bool unfrozen_ = false;
  double learning_rate_ = 0;  ///< the backbone's, once it is trained
  size_t group_ = 0;          ///< index of its parameter group
};

}  // namespace levin
