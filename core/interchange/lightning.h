#pragma once

#include <levin/core/base/state.h>
#include <levin/core/interchange/pickle_value.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class Pickler;

/// The version of Lightning's checkpoints that Levin writes.
inline constexpr const char* kLightningVersion = "2.6.6";

/// Turns a pickled value into a tree: dicts with text or whole numbers as keys become mappings, tuples lists; of what
/// has no counterpart nothing is left. Throws levin::Error for a tree that would not end.
State state_from_pickle(const PickleValue& value);

/// Makes, of a Levin checkpoint's tree, what `torch.optim`'s load_state_dict takes. `optimizer`: as
/// optim::optimizer_state_dict gives it; `initial_lrs`: of its groups, empty where no schedule changes them. Throws
/// levin::Error for an optimizer that PyTorch does not have in this form.
PickleValue* torch_optimizer_state(PickleDocument& document, Pickler& pickler, const State& optimizer,
                                   const std::vector<double>& initial_lrs);

/// Makes a checkpoint from which Lightning's Trainer.fit(ckpt_path) goes on, and load_from_checkpoint makes a module:
/// of the tree of a whole Levin checkpoint. `weights_only`: without optimizers, schedulers and loops.
PickleValue* lightning_checkpoint(PickleDocument& document, Pickler& pickler, const State& tree, bool weights_only);

/// What a Levin run takes over of a Lightning checkpoint, beside its weights.
struct LightningProgress {
  int64_t epoch = 0;             ///< 0-based, of the last batch done
  bool last_batch_done = false;  ///< all of that epoch's batches are done
  bool epoch_done = false;       ///< that epoch is over
  int64_t batch = 0;             ///< batches done in it
  int64_t total_batches = 0;
  int64_t global_step = 0;
};

/// Throws levin::Error for a file that holds weights alone.
LightningProgress lightning_progress(const State& checkpoint, const std::string& path);

/// Fills the present state of an optimizer (of a run that has just begun) with what torch.optim saved of one with the
/// same groups: parameters go by their place. Throws levin::Error where they do not fit.
State optimizer_state_from_torch(const State& present, const State& saved, const std::string& path);
/// The state of a loss scale, as MixedPrecision loads it; nothing where the checkpoint has none.
std::optional<State> scaler_state_from_lightning(const State& checkpoint);
/// Likewise of a scheduler.
State scheduler_state_from_torch(const State& present, const State& saved);

}  // namespace levin
