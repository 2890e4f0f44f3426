#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/nn/unit.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin {

/// Options of NanMonitor, explained in describe().
struct NanMonitorOptions {
  std::string action = "stop";
  std::optional<int64_t> every_n_steps = {};
  bool units = true;

  static void describe(Schema<NanMonitorOptions>& schema);
};

/// Names the first value of training that is NaN or infinite: a field of the batch, an output of a unit (the innermost
/// one), the loss, a gradient or a parameter, with its step, epoch, batch and rank, and ends training with that as
/// error.
///
/// Of each of these the largest magnitude is taken on its device, in the order in which they come about: one pass over
/// the values, and nobody waits. The numbers are read, together, every `every_n_steps` (after 256 batches at the
/// latest), and parameters looked at then. Gradients are looked at before each optimizer step, except under loss
/// scaling, where they may overflow. All ranks report the same: the earliest of what any of them saw.
class NanMonitor final : public Callback, private UnitHook {
 public:
  using Options = NanMonitorOptions;

  explicit NanMonitor(const Options& options = {});

  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_before_backward(Trainer& trainer, Module& module, const at::Tensor& loss) override;
  void on_before_optimizer_step(Trainer& trainer, Module& module, OptimizerHandle& optimizer) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_validation_start(Trainer& trainer, Module& module) override;

 private:
  /// In the order in which they come about in a batch.
  enum class Kind { kBatch, kOutput, kLoss, kGradient, kParameter };

  /// Origin of a magnitude.
  struct Source {
    Kind kind;
    size_t name;         ///< index in names_
    int64_t output = 0;  ///< which of a unit's results
  };
  /// Magnitudes in the order in which their values came about: a tensor of one element each.
  struct Magnitudes {
    std::vector<Source> sources;
    std::vector<at::Tensor> values;
    void add(const Source& source, const at::Tensor& tensor);
    void append(const Magnitudes& others);
    void clear();
  };
  struct Place {
    int64_t step = 0;  ///< the optimizer step that the batch belongs to, from 1
    int64_t epoch = 0;
    int64_t batch_idx = 0;
    int64_t moment = 0;  ///< batches of the run before it: the same on every rank
  };
  /// The magnitudes of a batch, in one tensor.
  struct Observation {
    Place place;
    std::vector<Source> sources;
    at::Tensor values;
    std::vector<double> read;  ///< the values, once they were read
  };

  void after_forward(UnitCall& call) override;
  void watch_units(Trainer& trainer, Module& module);
  void detach();
  size_t add_name(std::string name);
  size_t name_of(const Unit* unit, const torch::nn::Module* module);
  void add_tensors(Kind kind, const std::vector<at::Tensor>& parameters, Magnitudes& to);
  void keep(Trainer& trainer, const Place& place, Magnitudes& magnitudes);
  void read(Trainer& trainer);
  void read_values(Trainer& trainer);
  std::string find_first(Trainer& trainer) const;
  std::string describe(Trainer& trainer, size_t observation, size_t source) const;

  const Options options_;
  std::vector<Unit*> units_;  ///< units that it hooks
  /// Of units and parameters first, in the module's order, so that these indices are the same on every rank.
  std::vector<std::string> names_;
  size_t names_of_module_ = 0;
  std::unordered_map<const Unit*, size_t> unit_names_;
  std::unordered_map<const at::TensorImpl*, size_t> parameter_names_;
  std::map<std::string, size_t> batch_names_;
  bool watches_ = false;
  bool watches_gradients_ = false;
  Place place_;  ///< the batch under way
  std::atomic<bool> in_batch_{false};
  /// Replicas run units at the same time. No member says that it is guarded: between forwards the rank's thread alone
  /// uses them all, without the lock.
  Mutex mutex_;
  Magnitudes batch_;
  Magnitudes units_seen_;
  Magnitudes units_recorded_;                ///< in a graph, which writes them again at each replay
  std::vector<at::Tensor> recorded_places_;  ///< of magnitudes, [1] each, which recordings write to
  size_t most_units_ = 0;                    ///< magnitudes of units in a batch so far
  bool recorded_now_ = false;                ///< in the batch under way
  Magnitudes after_units_;                   ///< loss and gradients
  std::vector<Observation> observations_;    ///< that were not read
  int64_t unread_batches_ = 0;
  Observation last_read_;  ///< of the last batch before them
};

}  // namespace levin
