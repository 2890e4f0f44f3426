#pragma once

#include <levin/callbacks/pruning_masks.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Options of ModelPruning, explained in describe().
struct ModelPruningOptions {
  std::string pruning_fn = "l1_unstructured";
  std::vector<std::string> parameters_to_prune = {};
  std::optional<bool> use_global_unstructured = {};
  double amount = 0.5;
  int64_t pruning_dim = 0;
  double pruning_norm = 2;
  std::string schedule = "constant";
  int64_t start_epoch = 1;
  std::optional<int64_t> end_epoch = {};
  int64_t every_n_epochs = 1;
  int64_t verbose = 0;

  static void describe(Schema<ModelPruningOptions>& schema);
};

/// Prunes parameters at the start of epochs: the entries or slices that matter least become zero, and stay zero through
/// all steps that follow, also after a resume. Which ones is chosen as PyTorch's torch.nn.utils.prune does; all ranks
/// have the masks of rank 0. With `schedule: gradual` the sparsity grows as in Zhu and Gupta, "To prune, or not to
/// prune: exploring the efficacy of pruning for model compression", 2017, arXiv:1710.01878. Logs "pruning/sparsity", of
/// all callbacks of this kind together.
///
/// The zeros are in the parameters themselves: every checkpoint and the module after fit have them. For strategies
/// whose ranks hold whole models; on_fit_start throws ConfigError for others.
class ModelPruning final : public Callback {
 public:
  using Options = ModelPruningOptions;

  explicit ModelPruning(const Options& options = {});

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void on_before_optimizer_step(Trainer& trainer, Module& module, OptimizerHandle& optimizer) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_save_checkpoint(Trainer& trainer, Module& module, State& checkpoint) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

  /// The share of pruned entries in the parameters that are pruned, between 0 and 1.
  double sparsity() const { return entries_ > 0 ? static_cast<double>(pruned_) / static_cast<double>(entries_) : 0; }

 private:
  bool is_structured() const { return options_.pruning_fn.ends_with("_structured"); }
  std::vector<std::pair<std::string, at::Tensor>> find_parameters(const Module& module) const;
  void check_epochs(const Trainer& trainer) const;
  bool is_due(int64_t epoch) const;
  /// The share that is pruned at an epoch: of what is left, or with `gradual` of all.
  double amount_at(int64_t epoch) const;
  void take_stock(bool report);

  const Options options_;
  PruningMasks masks_;
  std::optional<int64_t> seed_;  ///< of random masks
  int64_t pruned_ = 0;           ///< entries
  int64_t entries_ = 0;          ///< of all that may be pruned
  int64_t seen_steps_ = 0;       ///< optimizer steps after which the masks were applied
  bool averages_ = false;        ///< another callback puts averaged weights into the module
};

}  // namespace levin
