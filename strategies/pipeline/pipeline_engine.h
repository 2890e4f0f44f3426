#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/comm/pipeline_schedule.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/nn/sequential.h>
#include <levin/strategies/pipeline/device_times.h>
#include <levin/strategies/pipeline/stage_ring.h>
#include <levin/strategies/pipeline/tensor_spec.h>
#include <levin/strategies/replicas/split_batch.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

class DeferredWeightGradients;
class ReplicaGradients;
class SavedTensorScope;
class ShardedModel;

/// What divides batches, for split_batch.
inline constexpr BatchSplitter kMicroBatches = {.component = "pipeline",
                                                .what = "strategy pipeline divides each batch into micro-batches",
                                                .hint = "micro_batches: 1"};

struct PipelineEngineOptions {
  std::string sequential = "net";       ///< its name, for messages
  std::vector<size_t> chunk_ends = {};  ///< the elements of chunk c are [chunk_ends[c - 1], chunk_ends[c])
  std::string schedule = "1f1b";        ///< see pipeline_schedule
  int64_t micro_batches = 1;            ///< at most; a batch with fewer examples has fewer
  std::string checkpoint = "never";     ///< always, except_last (micro-batch of a batch) or never
  at::Device device{at::kCPU};          ///< of this rank
  /// What gathers the parameters of a chunk of this rank for each micro-batch, by chunk; none: they are whole.
  std::map<int64_t, ShardedModel*> sharded = {};
  /// Ranks of the same stage, which gather together, so that all run equally many micro-batches; nullptr: alone.
  std::shared_ptr<Collective> replicas = nullptr;
};

/// Runs the module's own steps over a levin::Sequential whose chunks lie on the ranks of a group, one micro-batch after
/// the other as a schedule says.
///
/// Every rank runs training_step on every micro-batch. Where the last chunk is, the sequential gets what the chunk
/// before has sent, whatever it is given, and what the step makes of its result counts. Elsewhere it runs the rank's
/// chunk, sends the result on and returns zeros of the right shape, and what the step makes of those does not count.
/// Backward begins where the schedule says, from the gradient that has arrived: nothing waits inside of autograd.
///
/// Random numbers: the steps of all ranks must draw the same ones (they begin with the same generator state); elements
/// draw from streams of their own, so that the steps stay in step, and a run does not depend on where it is cut.
class PipelineEngine final : private SequentialRunner {
 public:
  /// The sequential outlives it. `stages`: the ranks of all stages, in order. `activations` go to the next stage,
  /// `gradients` to the one before; they are closed where a rank has several chunks.
  PipelineEngine(SequentialImpl& sequential, std::shared_ptr<Collective> stages, StageRing activations,
                 StageRing gradients, PipelineEngineOptions options);
  ~PipelineEngine() override;
  PipelineEngine(const PipelineEngine&) = delete;
  PipelineEngine& operator=(const PipelineEngine&) = delete;

  int64_t stage() const { return stages_->rank(); }
  int64_t stages() const { return stages_->world_size(); }
  bool is_last_stage() const { return stage() == stages() - 1; }

  /// Runs forward and backward of a batch. The output is that of the whole batch where the last stage is; elsewhere
  /// only its loss, without a graph. Losses of micro-batches are weighted by their sizes. `sync`: the batch ends its
  /// window. `replicas`: told when the last backward of each chunk runs; nullptr: nobody is. `timed`: for `done` on a
  /// device; the CPU's are free.
  StepOutput train(const Batch& batch, StepPhases& phases, bool sync, ReplicaGradients* replicas, bool timed);

  /// Opens a scope in which forwards of the sequential run through all stages, each rank gets their results, and there
  /// is no backward. All ranks call it, and run the same forwards.
  std::shared_ptr<void> evaluation();

  /// An action of the last `train`, for a trace.
  struct Done {
    PipelineAction action;
    int64_t waited_from;  ///< nanoseconds of DeviceTimes: for its message until `from`
    int64_t from;
    int64_t to;
  };
  /// The actions of the last `train`, if it was timed. Waits for the device.
  std::vector<Done> done() const;
  /// Number of micro-batches in the last `train`.
  int64_t micro_batches() const { return static_cast<int64_t>(sizes_.size()); }
  /// Most micro-batches, over all chunks of the rank, that were under way at once in the last `train`.
  int64_t most_held() const { return most_held_; }

 private:
  using Tensors = std::vector<at::Tensor>;
  enum class Mode { kNone, kProbe, kTrain, kEvaluate };
  /// Ends a step that is run only to see what it gives to the sequential. No std::exception: user code is not to take
  /// it for one of its errors.
  struct Seen {
    Tensors inputs;
  };
  /// A forward whose backward has not been.
  struct Held {
    Tensors inputs;
    Tensors outputs;
  };
  /// What running a chunk once has given and shown.
  struct ChunkRun {
    Tensors outputs;
    std::vector<TensorSpec> specs;     ///< of the outputs
    std::vector<bool> changed_inputs;  ///< in place
  };
  /// An action that is over: numbers of moments.
  struct Timed {
    PipelineAction action;
    size_t waited_from;
    size_t from;
    size_t to;
  };
  struct Message {
    std::vector<Arrival> arrivals;
    std::vector<std::unique_ptr<Work>> works;
  };
  using Key = std::pair<int64_t, int64_t>;  ///< chunk and micro-batch

  Tensors run(SequentialImpl& sequential, Tensors inputs) override;
  Tensors run_chunk(int64_t chunk, int64_t micro_batch, Tensors inputs);
  Tensors run_elements(int64_t chunk, int64_t micro_batch, bool checkpoint, Tensors inputs);
  Tensors evaluate(const Tensors& inputs);

  int64_t chunks() const { return static_cast<int64_t>(options_.chunk_ends.size()); }
  int64_t rank_of(int64_t chunk) const { return chunk % stages(); }
  size_t chunk_begin(int64_t chunk) const {
    return chunk == 0 ? 0 : options_.chunk_ends[static_cast<size_t>(chunk - 1)];
  }
  size_t chunk_end(int64_t chunk) const { return options_.chunk_ends[static_cast<size_t>(chunk)]; }
  /// The chunk in whose forward this rank runs the module's step.
  int64_t chunk_of_step() const { return is_last_stage() ? chunks() - 1 : stage(); }

  const std::vector<PipelineAction>& actions(int64_t micro_batches);
  int64_t agreed_micro_batches(const Batch& batch) const;
  ShardedModel* sharded(int64_t chunk) const;
  void infer_shapes(StepPhases& phases);
  void infer_shapes_of_new(const std::vector<std::string>& signatures, StepPhases& phases);
  Tensors first_inputs(StepPhases& phases, const Batch& micro_batch);
  /// Runs a chunk outside of a training step. `arrived`: of its inputs; empty for the step's own. Throws levin::Error
  /// where it changes one of them in place that shared its memory before it was sent.
  ChunkRun run_apart(int64_t chunk, Tensors inputs, const std::vector<TensorSpec>& arrived);
  /// Gives all ranks the specs of a chunk's results, from the rank that has it.
  std::vector<TensorSpec> broadcast_specs(const std::vector<TensorSpec>& results, int64_t chunk);
  const std::vector<TensorSpec>& specs(int64_t chunk, int64_t micro_batch) const;

  void forward(const PipelineAction& action, StepPhases& phases);
  void run_forward(const PipelineAction& action, StepPhases& phases);
  void backward(const PipelineAction& action, bool is_last, StepPhases& phases);
  /// False: the batch was skipped, and there is none.
  bool run_backward(const PipelineAction& action, StepPhases& phases);
  void backward_of_weights(const PipelineAction& action);
  void begin_backward(StepPhases& phases);
  /// Tensors that are undefined are left out; their memory format is that of `specs`.
  void send(StageRing& ring, const Tensors& tensors, const std::vector<TensorSpec>& specs, int64_t chunk,
            int64_t micro_batch);
  void post_receives(const std::vector<PipelineAction>& actions, size_t from);
  void post_receive(const PipelineAction& action);
  Tensors receive(std::map<Key, Message>& messages, Key key);
  void forget_received_gradients();
  size_t mark() { return times_ ? times_->mark() : 0; }
  void forget_step() noexcept;
  StepOutput whole_output();

  SequentialImpl& sequential_;
  std::shared_ptr<Collective> stages_;
  StageRing activations_;
  StageRing gradients_;
  const PipelineEngineOptions options_;
  Mode mode_ = Mode::kNone;
  std::map<int64_t, std::vector<PipelineAction>> actions_;  ///< of this rank, by number of micro-batches
  std::vector<at::Tensor> parameters_;                      ///< of the module
  /// What passes through the chunks.
  struct Passing {
    std::vector<std::vector<TensorSpec>> specs;           ///< results of each chunk
    std::map<int64_t, std::vector<bool>> changed_inputs;  ///< by chunk of this rank: those that it changes in place
  };
  /// By what a micro-batch looks like and which parameters are trained.
  std::map<std::string, Passing> passing_;

  // Of the batch under way.
  std::vector<Batch> micro_batches_;
  std::vector<int64_t> sizes_;  ///< examples of each
  std::vector<const Passing*> passing_of_micro_batch_;
  uint64_t seed_ = 0;
  PipelineAction current_;
  bool called_ = false;  ///< the sequential, in the step under way
  bool has_begun_backward_ = false;
  std::map<Key, Held> held_;
  int64_t most_held_ = 0;
  std::map<Key, std::shared_ptr<DeferredWeightGradients>> deferred_;  ///< where backward comes in halves
  std::vector<StepOutput> outputs_;                                   ///< of the steps, where the last stage is
  std::map<Key, Message> activations_arriving_;
  std::map<Key, Message> gradients_arriving_;
  std::map<Key, Message> activations_leaving_;
  std::deque<Message> gradients_leaving_;  ///< in the order in which they were sent
  std::optional<DeviceTimes> times_;       ///< where it is timed
  size_t ran_from_ = 0;
  std::vector<Timed> timed_;
};

}  // namespace levin
