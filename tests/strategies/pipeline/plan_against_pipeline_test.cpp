#include <levin/core/base/released_storage.h>
#include <levin/core/devices/accounting_allocator.h>
#include "tests/support/tiny.h"

#include <levin/core/nn/sequential.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/trainer/trainer.h>

#include <torch/nn/functional/activation.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace levin::testing {
namespace {

namespace F = torch::nn::functional;

constexpr int64_t kWidth = 128;
constexpr int64_t kBlocks = 6;
constexpr int64_t kBatch = 512;

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

/// What the rank of a stage holds at the beginning of a later step, and what the step adds.
struct Reading {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t added = 0;    ///< at most, by the rank's thread, until backward ends
  int64_t by_step = 0;  ///< the same until the optimizer has stepped
};

class Readings {
 public:
  void set(int64_t rank, const Reading& reading) {
    const std::lock_guard lock(mutex_);
    readings_[rank] = reading;
  }
  Reading of(int64_t rank) const { return readings_.at(rank); }

 private:
  std::mutex mutex_;
  std::map<int64_t, Reading> readings_;
};

Readings& readings() {
  static Readings all;
  return all;
}

int64_t bytes_of(const State& state) {
  if (state.is_tensor()) return static_cast<int64_t>(state.as_tensor().nbytes());
  int64_t bytes = 0;
  if (state.is_map())
    for (const auto& [name, item] : state.as_map()) bytes += bytes_of(item);
  return bytes;
}

class Planned : public Module {
 public:
  Planned() {
    levin::Sequential net;
    for (int64_t i = 0; i < kBlocks; ++i) net->push_back(Block());
    net_ = register_module("net", net);
    scale_ = register_parameter("scale", at::ones({kWidth}));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return F::mse_loss(net_(batch["x"]) * scale_, batch["y"]);
  }
  bool on_train_batch_start(const Batch&, int64_t) override {
    if (trainer().global_step() != 2) return true;
    reading_ = read();
    reading_.added = -AccountingAllocator::of_this_thread().in_use();
    AccountingAllocator::of_this_thread().restart_peak();
    return true;
  }
  void on_after_backward() override {
    if (trainer().global_step() != 2) return;
    reading_.by_step = reading_.added;
    reading_.added += AccountingAllocator::of_this_thread().peak();
  }
  void on_train_batch_end(const StepOutput&, const Batch&, int64_t) override {
    if (trainer().global_step() != 3) return;
    reading_.by_step += AccountingAllocator::of_this_thread().peak();
    readings().set(trainer().global_rank(), reading_);
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-4})};
  }

 private:
  bool has_parameter(const at::Tensor& tensor) const {
    const auto own = parameters();
    return std::ranges::any_of(own, [&](const at::Tensor& parameter) { return parameter.is_same(tensor); });
  }
  Reading read() {
    Reading reading;
    for (const at::Tensor& parameter : parameters()) {
      reading.parameters += is_released(parameter) ? 0 : static_cast<int64_t>(parameter.storage().nbytes());
      if (parameter.grad().defined()) reading.gradients += static_cast<int64_t>(parameter.grad().nbytes());
    }
    for (const auto& [name, shard] : trainer().parameter_names().items())
      if (shard.grad().defined() && !has_parameter(shard))
        reading.gradients += static_cast<int64_t>(shard.grad().nbytes());
    for (const OptimizerHandle* handle : trainer().optimizers())
      reading.optimizer += bytes_of(optim::optimizer_state_dict(handle->optimizer(), trainer().parameter_names()));
    return reading;
  }

  levin::Sequential net_{nullptr};
  at::Tensor scale_;
  Reading reading_;
};

DataLoader loader(int64_t batch_size) {
  const auto x = at::arange(8 * kBatch * kWidth, at::kFloat).sin().reshape({8 * kBatch, kWidth});
  return DataLoader(std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.cos()}}), {.batch_size = batch_size});
}

/// Trains as a row says, on thread ranks.
void fit(const PlanRow& row) {
  TrainerOptions options = quiet(1);
  options.max_steps = 4;
  options.devices = static_cast<int>(row.devices());
  Config strategy = Config::parse("{start_method: thread}", {});
  strategy.merge(strategy_config(row));
  options.strategy = Spec<Strategy>(strategy);
  Trainer(options).fit(make<Planned>(), loader(kBatch));
}

TrainingNeeds needs_of_a_quarter() {
  const auto planner = std::make_shared<MemoryPlanner>(PlanOptions{}, quiet(1));
  Trainer trainer(planning_options(quiet(1), planner));
  trainer.tune(make<Planned>(), loader(kBatch / 4));
  TrainingNeeds needs = planner->needs();
  needs.batch_size = kBatch;
  return needs;
}

/// Something before the sequential and something behind it.
class WithEnds : public Module {
 public:
  WithEnds() {
    encoder_ = register_module("encoder", torch::nn::Linear(8, 16));
    levin::Sequential net;
    net->push_back(torch::nn::Linear(16, 64));
    net->push_back(torch::nn::Linear(64, 32));
    net_ = register_module("net", net);
    head_ = register_module("head", torch::nn::Linear(32, 100));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return head_(net_(encoder_(batch["x"].narrow(1, 0, 8)))).square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-4});
  }

 private:
  torch::nn::Linear encoder_{nullptr};
  levin::Sequential net_{nullptr};
  torch::nn::Linear head_{nullptr};
};

TEST(PlanAgainstPipeline, MeasuresWhatEachPartComputes) {
  const auto planner = std::make_shared<MemoryPlanner>(PlanOptions{}, quiet(1));
  Trainer trainer(planning_options(quiet(1), planner));
  trainer.tune(make<WithEnds>(), loader(16));
  const ChainNeeds& chain = planner->needs().chain;
  ASSERT_EQ(chain.elements.size(), 2);
  // Of each weight a multiplication and an addition; the head's part is a third of its forward and backward.
  EXPECT_EQ(chain.flops_before, 2 * 8 * 16);
  EXPECT_EQ(chain.elements[0].flops, 2 * 16 * 64);
  EXPECT_EQ(chain.elements[1].flops, 2 * 64 * 32);
  EXPECT_EQ(chain.flops_after, 2 * 32 * 100);
  // The encoder's input needs no gradient.
  EXPECT_EQ(planner->needs().flops_per_example, 3 * 2 * (8 * 16 + 16 * 64 + 64 * 32 + 32 * 100) - 2 * 8 * 16);
}

TEST(PlanAgainstPipeline, MeasuresTheSequential) {
  const TrainingNeeds needs = needs_of_a_quarter();
  ASSERT_EQ(needs.chain.elements.size(), kBlocks);
  constexpr double kRow = 4 * kWidth;
  for (const auto& element : needs.chain.elements) {
    EXPECT_EQ(element.weights.elements, 8 * kWidth * kWidth + 5 * kWidth);
    EXPECT_EQ(element.result.per_example, kRow);
    // Its input, and what is four times as wide before and after GELU.
    EXPECT_EQ(element.saved.per_example, 9 * kRow);
  }
  EXPECT_EQ(needs.chain.outside.elements, kWidth);
  EXPECT_EQ(needs.chain.saved_before.per_example, 0);
  // The sequential's result, its product with the scale and the targets.
  EXPECT_EQ(needs.chain.saved_after.per_example, 3 * kRow);
}

TEST(PlanAgainstPipeline, PredictsWhatTheStageThatNeedsMostHolds) {
  AccountingAllocator::install();
  const TrainingNeeds needs = needs_of_a_quarter();
  const PlanRow planned = plan_row(needs, int64_t{1} << 30, {.pipeline = 2});
  const PlanRow* const row = &planned;
  fit(*row);

  // The first stage, which has two micro-batches in flight.
  const Reading measured = readings().of(0);
  EXPECT_EQ(measured.parameters, row->parameters);
  // The scale's gradient and state are the last stage's.
  constexpr auto kScale = static_cast<int64_t>(kWidth * sizeof(float));
  EXPECT_EQ(measured.gradients, row->gradients - kScale);
  EXPECT_NEAR(static_cast<double>(measured.optimizer), static_cast<double>(row->optimizer), 64);
  // Backward has gradients of activations besides, of one micro-batch and less than of two blocks.
  EXPECT_GE(measured.added, row->activations);
  EXPECT_LE(measured.added, row->activations + 2 * (kBatch / 8) * 9 * kScale);
  EXPECT_NEAR(static_cast<double>(measured.added), static_cast<double>(row->activations + row->backward),
              0.03 * static_cast<double>(row->total()));
}

class PlanAgainstRanksOfAStage : public ::testing::TestWithParam<PlanRow> {};

TEST_P(PlanAgainstRanksOfAStage, PredictsWhatTheyNeed) {
  AccountingAllocator::install();
  const TrainingNeeds needs = needs_of_a_quarter();
  const PlanRow row = plan_row(needs, int64_t{1} << 30, GetParam());
  fit(row);
  int64_t most = 0;
  for (int64_t rank = 0; rank < row.devices(); ++rank) {
    const Reading measured = readings().of(rank);
    most = std::max(most, measured.parameters + measured.gradients + measured.optimizer + measured.by_step);
  }
  EXPECT_NEAR(static_cast<double>(row.total()), static_cast<double>(most), 0.03 * static_cast<double>(most));
}

INSTANTIATE_TEST_SUITE_P(All, PlanAgainstRanksOfAStage,
                         ::testing::Values(PlanRow{.pipeline = 2, .shard = 2, .stage = 1},
                                           PlanRow{.pipeline = 2, .replicate = 2},
                                           PlanRow{.pipeline = 3, .schedule = "zero_bubble"},
                                           PlanRow{.pipeline = 2, .schedule = "interleaved", .chunks = 2}),
                         [](const auto& tested) {
                           const PlanRow& row = tested.param;
                           if (row.schedule == "zero_bubble") return "ZeroBubble";
                           if (row.schedule == "interleaved") return "Interleaved";
                           return row.shard > 1 ? "Shards" : "Replicas";
                         });

}  // namespace
}  // namespace levin::testing
