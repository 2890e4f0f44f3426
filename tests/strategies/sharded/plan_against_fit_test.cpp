#include <levin/core/base/released_storage.h>
#include <levin/core/devices/accounting_allocator.h>
#include "tests/support/tiny.h"

#include <levin/core/nn/sequential.h>
#include <levin/core/optim/layerwise_optimizers.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <torch/nn/functional/activation.h>

#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace levin::testing {
namespace {

namespace F = torch::nn::functional;

constexpr int64_t kWidth = 128;
constexpr int64_t kBlocks = 6;
constexpr int64_t kBatch = 192;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    in = register_module("in", torch::nn::Linear(kWidth, 4 * kWidth));
    out = register_module("out", torch::nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x) { return x + out(F::gelu(in(x))); }
  torch::nn::Linear in{nullptr};
  torch::nn::Linear out{nullptr};
};
LEVIN_UNIT(Block);

/// What one rank holds at the beginning of a later step.
struct Reading {
  int64_t parameters = 0;  ///< bytes of the memory of the module's parameters and of what the optimizer steps
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t allocated = 0;    ///< by the rank's thread
  int64_t activations = 0;  ///< what its forward adds to that
  int64_t peak = 0;         ///< the most of the step
};

class Readings {
 public:
  void set(int64_t rank, const Reading& reading) {
    const std::lock_guard lock(mutex_);
    readings_[rank] = reading;
  }
  Reading of(int64_t rank) const { return readings_.at(rank); }
  void clear() { readings_.clear(); }

 private:
  std::mutex mutex_;
  std::map<int64_t, Reading> readings_;
};

Readings& readings() {
  static Readings all;
  return all;
}

/// Bytes of the memory behind tensors, each once.
class Memory {
 public:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || is_released(tensor) || !seen_.insert(tensor.storage().unsafeGetStorageImpl()).second)
      return;
    bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
  }
  void add(const State& state) {
    if (state.is_tensor()) add(state.as_tensor());
    if (state.is_map())
      for (const auto& [name, item] : state.as_map()) add(item);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::set<const void*> seen_;
  int64_t bytes_ = 0;
};

class Planned : public Module {
 public:
  Planned() {
    levin::Sequential blocks;
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    blocks_ = register_module("blocks", blocks);
    scale_ = register_parameter("scale", at::ones({kWidth}));
    register_buffer("offset", at::zeros({4 * kWidth}));
  }

  StepOutput training_step(const Batch& batch, int64_t) override {
    MemoryAccount& account = AccountingAllocator::of_this_thread();
    const bool reads = trainer().global_step() == 2;
    if (reads) {
      reading_ = read();
      reading_.allocated = account.in_use();
      account.restart_peak();
    }
    const at::Tensor loss = F::mse_loss(blocks_(batch["x"]) * scale_, batch["y"]);
    if (reads) reading_.activations = account.in_use() - reading_.allocated;
    return loss;
  }
  void on_after_backward() override {
    if (trainer().global_step() != 2) return;
    reading_.peak = AccountingAllocator::of_this_thread().peak();
    readings().set(trainer().global_rank(), reading_);
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-4})};
  }

 private:
  Reading read() {
    Memory weights;
    Memory gradients;
    Memory state;
    int64_t counters = 0;  // of steps of parameters that this rank has none of, which no checkpoint has
    for (const at::Tensor& parameter : parameters()) weights.add(parameter);
    for (const auto& [name, local_shard] : trainer().parameter_names().items()) {
      if (local_shard.numel() == 0) counters += static_cast<int64_t>(sizeof(float));
      weights.add(local_shard);
      gradients.add(local_shard.grad());
    }
    for (const OptimizerHandle* handle : trainer().optimizers())
      state.add(optim::optimizer_state_dict(handle->optimizer(), trainer().parameter_names()));
    return {.parameters = weights.bytes(), .gradients = gradients.bytes(), .optimizer = state.bytes() + counters};
  }

  levin::Sequential blocks_{nullptr};
  at::Tensor scale_;
  Reading reading_;
};

/// With an optimizer that needs whole tensors, and whose state is Adam's.
class PlannedWhole : public Planned {
 public:
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::LAMB>(parameters(), optim::LAMBOptions{.lr = 1e-4})};
  }
};

DataLoader loader(int64_t batch_size) {
  const auto x = at::arange(16 * kBatch * kWidth, at::kFloat).sin().reshape({16 * kBatch, kWidth});
  return DataLoader(std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.cos()}}), {.batch_size = batch_size});
}

/// Measured with a quarter of the batch.
template <class M = Planned>
TrainingNeeds needs_of(const TrainerOptions& options) {
  const auto planner = std::make_shared<MemoryPlanner>(PlanOptions{}, options);
  Trainer trainer(planning_options(options, planner));
  trainer.tune(make<M>(), loader(kBatch / 4));
  TrainingNeeds needs = planner->needs();
  EXPECT_EQ(needs.batch_size, kBatch / 4);
  needs.batch_size = kBatch;
  return needs;
}

PlanRow predicted(const TrainingNeeds& needs, PlanRow way, bool checkpoints) {
  way.checkpoints = checkpoints;
  return plan_row(needs, int64_t{1} << 30, way);
}

struct Case {
  const char* precision;
  bool checkpoints;
};

class PlanAgainstFit : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { AccountingAllocator::install(); }

  TrainerOptions options() const {
    TrainerOptions options = quiet(1);
    options.precision = GetParam().precision;
    if (GetParam().checkpoints) options.activation_checkpointing.units = {"Block"};
    return options;
  }

  /// Of rank 1, all of whose memory its own thread asks for; of the only rank beyond what there was before.
  template <class M = Planned>
  Reading fit(const PlanRow& way) const {
    TrainerOptions options = this->options();
    options.max_steps = 4;
    const bool is_alone = way.devices() == 1;
    options.devices = static_cast<int>(way.devices());
    Config strategy = Config::parse(is_alone ? "{}" : "{start_method: thread}", {});
    const Config planned = strategy_config(way);
    planned.is_scalar() ? strategy.set("name", planned) : strategy.merge(planned);
    options.strategy = Spec<Strategy>(strategy);
    readings().clear();
    const DataLoader data = loader(kBatch);
    const int64_t before = is_alone ? AccountingAllocator::of_this_thread().in_use() : 0;
    Trainer trainer(options);
    trainer.fit(make<M>(), data);
    Reading reading = readings().of(is_alone ? 0 : 1);
    reading.allocated -= before;
    reading.peak -= before;
    return reading;
  }
};

constexpr int64_t kFloat = 4;
constexpr int64_t kBuffers = 4 * kWidth * kFloat;
/// Inputs and targets.
constexpr int64_t kBatchBytes = 2 * kBatch * kWidth * kFloat;

TEST_P(PlanAgainstFit, PredictsWhatRanksHold) {
  const TrainingNeeds needs = needs_of(options());
  const int64_t compute_size = needs.compute_size.value_or(kFloat);
  std::vector<PlanRow> ways{PlanRow(), {.replicate = 2}};
  for (const int64_t replicas : {1, 2})
    for (int64_t stage = 1; stage <= 3; ++stage) ways.push_back({.replicate = replicas, .shard = 2, .stage = stage});
  for (const PlanRow& way : ways) {
    const Reading measured = fit(way);
    const PlanRow row = predicted(needs, way, GetParam().checkpoints);
    const int64_t stage = way.stage;
    SCOPED_TRACE(strategy_text(row));

    // What is outside of units is gathered when the step begins.
    const int64_t outside = stage == 3 ? needs.outside.elements * compute_size : 0;
    EXPECT_EQ(measured.parameters + kBuffers, row.parameters + outside);
    // A bucket of ddp has the two numbers of a window as well.
    const auto of_window = static_cast<int64_t>(way.replicate > 1 && way.shard == 1 ? 2 * sizeof(float) : 0);
    EXPECT_EQ(measured.gradients, row.gradients + of_window);
    EXPECT_EQ(measured.optimizer, row.optimizer);

    const int64_t held = row.parameters + row.gradients + row.optimizer;
    EXPECT_GE(measured.allocated, held);
    const int64_t first_unit = stage == 3 ? needs.units.front().elements * compute_size + outside : 0;
    EXPECT_LE(static_cast<double>(measured.allocated), 1.02 * static_cast<double>(held + first_unit + kBatchBytes));

    // From a batch four times smaller.
    int64_t activations = row.activations;
    if (GetParam().checkpoints) activations = needs.kept.bytes.at(kBatch) - (stage > 0 ? needs.kept.weight_copies : 0);
    EXPECT_LE(static_cast<double>(measured.activations), 1.02 * static_cast<double>(activations));
    // The plan counts inputs and targets that operations save, which were there before the forward here.
    EXPECT_GE(measured.activations, activations - kBatchBytes);
    // What is more than predicted is the batch, and a collective's own buffers.
    EXPECT_NEAR(static_cast<double>(measured.peak), static_cast<double>(row.total() + kBatchBytes),
                0.03 * static_cast<double>(row.total()));
  }
}

TEST_P(PlanAgainstFit, PredictsWhatTheRankWithMostWholeTensorsHolds) {
  if (GetParam().checkpoints) GTEST_SKIP() << "what ranks hold between steps is the same";
  const TrainingNeeds needs = needs_of<PlannedWhole>(options());
  EXPECT_FALSE(needs.element_wise);
  EXPECT_TRUE(needs.tensor_wise);
  for (int64_t stage = 1; stage <= 3; ++stage) {
    const PlanRow way{.shard = 2, .stage = stage};
    fit<PlannedWhole>(way);
    const PlanRow row = predicted(needs, way, false);
    const int64_t outside = stage == 3 ? needs.outside.elements * needs.compute_size.value_or(kFloat) : 0;
    const auto most = [](int64_t Reading::*value) {
      return std::max(readings().of(0).*value, readings().of(1).*value);
    };
    EXPECT_EQ(most(&Reading::parameters) + kBuffers, row.parameters + outside) << stage;
    EXPECT_EQ(most(&Reading::gradients), row.gradients) << stage;
    EXPECT_EQ(most(&Reading::optimizer), row.optimizer) << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlanAgainstFit,
                         ::testing::Values(Case{"32-true", false}, Case{"32-true", true}, Case{"bf16-mixed", false},
                                           Case{"bf16-mixed", true}),
                         [](const auto& tested) {
                           const std::string precision = tested.param.precision;
                           return (precision == "32-true" ? "Full" : "Mixed") +
                                  std::string(tested.param.checkpoints ? "Checkpointed" : "");
                         });

}  // namespace
}  // namespace levin::testing
