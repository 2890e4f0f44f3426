#include <levin/core/nn/unit.h>
#include <levin/core/optim/sgd.h>

#include <gmock/gmock.h>
#include <tests/support/tiny.h>
#include <torch/nn/modules/batchnorm.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_dataset;
using testing::tiny_loader;
using testing::weights;

struct SkippingUnitImpl : torch::nn::Module {
  SkippingUnitImpl(int64_t in, int64_t out) : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  torch::nn::Linear linear;
};
LEVIN_UNIT(SkippingUnit);

/// When a rank skips a batch: before its forward, after it, or not.
enum class Skip { kNever, kBefore, kAfter };

struct SkippingOptions {
  bool batch_norm = false;
  bool frozen = false;
  static void describe(Schema<SkippingOptions>& schema) {
    schema.field("batch_norm", &SkippingOptions::batch_norm, "with a BatchNorm");
    schema.field("frozen", &SkippingOptions::frozen, "no parameter is trained");
  }
};

class Skipping : public Module {
 public:
  using Options = SkippingOptions;
  explicit Skipping(const Options& options) : options_(options) {
    first_ = register_module("first", SkippingUnit(4, 6));
    if (options.batch_norm) norm_ = register_module("norm", torch::nn::BatchNorm1d(6));
    second_ = register_module("second", SkippingUnit(6, 6));
    last_ = register_module("last", torch::nn::Linear(6, 1));
    if (!options.frozen) return;
    for (auto& parameter : parameters()) parameter.requires_grad_(false);
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const Skip skip = skips(trainer().global_rank(), batch_idx);
    if (skip == Skip::kBefore) return {};
    at::Tensor x = first_(batch["x"]);
    if (norm_) x = norm_(x);
    const at::Tensor loss = torch::nn::functional::mse_loss(last_(second_(x)), batch["y"]);
    if (skip == Skip::kAfter) return {};
    return loss;
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1});
  }

  /// By rank and batch, of all ranks' modules.
  inline static std::function<Skip(int64_t, int64_t)> skips;

 private:
  Options options_;
  SkippingUnit first_{nullptr};
  torch::nn::BatchNorm1d norm_{nullptr};
  SkippingUnit second_{nullptr};
  torch::nn::Linear last_{nullptr};
};

/// Weights after two ranks have trained, or what they ended with.
struct Outcome {
  std::vector<at::Tensor> weights;
  std::string message;
};

Outcome train_two_ranks(const std::string& strategy, const std::function<Skip(int64_t rank, int64_t batch)>& skips,
                        const std::function<void(TrainerOptions&)>& configure = {},
                        std::optional<DataLoader> loader = {}, const SkippingOptions& module_options = {}) {
  Skipping::skips = skips;
  torch::manual_seed(3);
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = 2;
  if (configure) configure(options);
  const auto module = make<Skipping>(module_options);
  try {
    Trainer(options).fit(module, loader ? std::move(*loader) : tiny_loader(40, 4));
  } catch (const std::exception& error) {
    return {.weights = {}, .message = error.what()};
  }
  return {.weights = weights(*module), .message = ""};
}

Skip nobody(int64_t, int64_t) { return Skip::kNever; }

constexpr const char* kStageThree = "{name: sharded_threads, stage: 3}";

TEST(SkippedBatches, CountAsZeroUnderEveryWayToShare) {
  const auto skips = [](int64_t rank, int64_t batch) { return rank == 1 && batch >= 2 ? Skip::kAfter : Skip::kNever; };
  const Outcome expected = train_two_ranks("ddp_threads", skips);
  EXPECT_EQ(expected.message, "");
  const Outcome other = train_two_ranks("ddp_threads", nobody);
  EXPECT_FALSE(expected.weights.front().allclose(other.weights.front()));
  for (const char* strategy :
       {"{name: sharded_threads, stage: 1}", "{name: sharded_threads, stage: 2}", kStageThree,
        "{name: sharded_threads, stage: 3, prefetch: 2}", "{name: sharded_threads, stage: 3, prefetch: 0}"}) {
    const Outcome sharded = train_two_ranks(strategy, skips);
    EXPECT_EQ(sharded.message, "") << strategy;
    for (size_t i = 0; i < sharded.weights.size(); ++i)
      EXPECT_TRUE(sharded.weights[i].allclose(expected.weights[i], 1e-5, 1e-6)) << strategy << " tensor " << i;
  }
}

TEST(SkippedBatches, WindowsOfWhichGradientsAreKeptAreRepeatedAsThey) {
  // The second batch of each window is the one that reduces.
  const auto skips = [](int64_t rank, int64_t batch) {
    return rank == 1 && (batch == 4 || batch == 7) ? Skip::kAfter : Skip::kNever;
  };
  const auto in_pairs = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; };
  const Outcome expected = train_two_ranks("ddp_threads", skips, in_pairs, tiny_loader(64, 4));
  EXPECT_EQ(expected.message, "");
  for (const char* strategy : {"{name: sharded_threads, stage: 3, keep_window_gradients: true}", kStageThree}) {
    const Outcome sharded = train_two_ranks(strategy, skips, in_pairs, tiny_loader(64, 4));
    EXPECT_EQ(sharded.message, "") << strategy;
    for (size_t i = 0; i < sharded.weights.size(); ++i)
      EXPECT_TRUE(sharded.weights[i].allclose(expected.weights[i], 1e-5, 1e-6)) << strategy << " tensor " << i;
  }
}

TEST(SkippedBatches, ARankThatCannotKnowWhatOthersGatherSaysSo) {
  for (const int64_t skipped : {0, 1}) {
    const Outcome outcome = train_two_ranks(kStageThree, [&](int64_t rank, int64_t batch) {
      return rank == 1 && batch == skipped ? Skip::kAfter : Skip::kNever;
    });
    EXPECT_THAT(outcome.message, HasSubstr("this rank skipped one of the first batches")) << skipped;
  }
  const Outcome outcome = train_two_ranks(
      kStageThree, [](int64_t rank, int64_t batch) { return rank == 1 && batch == 3 ? Skip::kBefore : Skip::kNever; });
  EXPECT_THAT(outcome.message, HasSubstr("this rank skipped a batch after 0 of 2 units"));
}

TEST(SkippedBatches, SyncBatchNormNeedsEveryRanksLoss) {
  for (const char* strategy : {"ddp_threads", "{name: sharded_threads, stage: 2}"}) {
    const Outcome outcome = train_two_ranks(
        strategy, [](int64_t rank, int64_t batch) { return rank == 1 && batch == 2 ? Skip::kAfter : Skip::kNever; },
        [](TrainerOptions& options) { options.sync_batchnorm = true; }, {}, {.batch_norm = true});
    EXPECT_THAT(outcome.message, HasSubstr("with sync_batchnorm the other ranks wait for this one")) << strategy;
  }
}

/// Thirty-two examples, of a number that nobody knows beforehand, in batches of two as ranks have them of a sized set.
class UnsizedPairs : public data::IterableDataset {
 public:
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    class Stream : public data::ExampleStream {
     public:
      Stream(int64_t rank, int64_t ranks) : rank_(rank), ranks_(ranks) {}
      std::optional<Batch> next() override {
        const int64_t pair = read_ / 2 * ranks_ + rank_;
        if (2 * pair >= examples_->size()) return std::nullopt;
        data::Generator generator(0, 0);
        return examples_->get(2 * pair + read_++ % 2, generator);
      }

     private:
      int64_t rank_;
      int64_t ranks_;
      int64_t read_ = 0;
      std::shared_ptr<data::TensorDataset> examples_ = tiny_dataset(32);
    };
    return std::make_unique<Stream>(context.reader, context.num_readers);
  }
};

TEST(SkippedBatches, TheFirstOfAWindowLeavesNothingOfTheOneBefore) {
  const auto skips = [](int64_t rank, int64_t batch) { return rank == 0 && batch == 2 ? Skip::kAfter : Skip::kNever; };
  const auto in_pairs = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; };
  const auto loader = [] { return DataLoader(std::make_shared<UnsizedPairs>(), {.batch_size = 2}); };
  const Outcome expected = train_two_ranks("{name: sharded_threads, stage: 2}", skips, in_pairs, loader());
  const Outcome outcome = train_two_ranks("ddp_threads", skips, in_pairs, loader());
  EXPECT_EQ(expected.message + outcome.message, "");
  for (size_t i = 0; i < outcome.weights.size(); ++i)
    EXPECT_TRUE(outcome.weights[i].allclose(expected.weights[i], 1e-5, 1e-6)) << "tensor " << i;
  // The same examples of which the number is known: a batch that is skipped counts as zero.
  const Outcome sized =
      train_two_ranks("ddp_threads", skips, in_pairs, DataLoader(tiny_dataset(32), {.batch_size = 2}));
  for (size_t i = 0; i < outcome.weights.size(); ++i)
    EXPECT_TRUE(outcome.weights[i].allclose(sized.weights[i], 1e-5, 1e-6)) << "tensor " << i;
}

TEST(SkippedBatches, NothingToTrainIsAMessage) {
  const Outcome outcome = train_two_ranks(
      "ddp_threads", nobody, {}, DataLoader(std::make_shared<UnsizedPairs>(), {.batch_size = 2}), {.frozen = true});
  EXPECT_THAT(outcome.message, HasSubstr("nothing to train"));
}

}  // namespace
}  // namespace levin
