#include <levin/core/base/seed.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/options/registries.h>
#include <levin/strategies/ddp/ddp.h>

#include "tests/support/tiny.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

std::shared_ptr<data::TensorDataset> examples(int64_t count) {
  const at::Tensor x = at::randn({count, 4}, at::detail::createCPUGenerator(5));
  return std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.sum(1, true)}});
}

using Configure = std::function<void(TrainerOptions&)>;

std::vector<at::Tensor> trained_weights(const std::shared_ptr<Module>& module, const std::string& strategy,
                                        int64_t ranks, int64_t count = 48, const Configure& configure = {}) {
  seed_everything(3);
  TrainerOptions options = quiet(3);
  options.devices = ranks;
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  if (configure) configure(options);
  Trainer trainer(options);
  trainer.fit(module, DataLoader(examples(count), {.batch_size = 4, .shuffle = true}));
  return weights(*module);
}

std::shared_ptr<Module> tiny() {
  seed_everything(2);
  return make<TinyModule>({.dropout = 0.2});
}

/// Every way of starting, with buckets too small for all gradients, in which c10d's Reducer combines them, and in
/// place.
void expect_the_same_bits(const std::function<std::shared_ptr<Module>()>& module, const std::string& start_method,
                          int64_t ranks, int64_t count = 48, const Configure& configure = {}) {
  const std::string name = "{name: ddp, start_method: " + start_method;
  const auto in_buckets = trained_weights(module(), name + ", first_bucket_cap_mb: 0.00001}", ranks, count, configure);
  const auto in_place = trained_weights(module(), name + "}", ranks, count, configure);
  EXPECT_TRUE(identical(in_place, in_buckets)) << start_method << " on " << ranks << " ranks, " << count << " examples";
}

TEST(InPlaceReduction, GivesTheBitsOfBuckets) {
  for (const char* start_method : {"thread", "fork"})
    for (const int64_t ranks : {2, 3}) expect_the_same_bits(tiny, start_method, ranks);
}

TEST(InPlaceReduction, GivesTheBitsOfBucketsWhereRanksHaveUnequalNumbersOfBatches) {
  expect_the_same_bits(tiny, "thread", 2, 45);
  expect_the_same_bits(tiny, "thread", 3, 41);
  // With three ranks it would differ by rounding: where c10d's Reducer finds gradients when it makes its buckets anew,
  // in its second step, it divides by the number of ranks instead of multiplying by its inverse.
  expect_the_same_bits(tiny, "thread", 4, 45, [](TrainerOptions& options) { options.accumulate_grad_batches = 2; });
}

TEST(InPlaceReduction, GivesTheBitsOfBucketsWithAccumulationClippingAndMixedPrecision) {
  expect_the_same_bits(tiny, "thread", 2, 48, [](TrainerOptions& options) {
    options.accumulate_grad_batches = 3;
    options.gradient_clip_val = 0.1;
  });
  expect_the_same_bits(tiny, "thread", 3, 48, [](TrainerOptions& options) { options.precision = "bf16-mixed"; });
  expect_the_same_bits(tiny, "thread", 2, 48, [](TrainerOptions& options) { options.precision = "16-mixed"; });
}

/// Autograd gives both of its vectors one gradient, in the same memory.
class SharedGradientModule : public Module {
 public:
  using Options = TinyOptions;
  explicit SharedGradientModule(const Options& /*options*/) {
    a_ = register_parameter("a", at::ones({4}));
    b_ = register_parameter("b", at::ones({2, 2}));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return ((a_ + b_.view({4})) * batch["x"]).sum(1, true).sub(batch["y"]).square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.1});
  }

 private:
  at::Tensor a_, b_;
};

TEST(InPlaceReduction, GradientsThatShareMemoryAreCombinedOnceEach) {
  expect_the_same_bits([] { return make<SharedGradientModule>({}); }, "thread", 2);
}

class UnusedParameterModule : public TinyModule {
 public:
  explicit UnusedParameterModule(const Options& options) : TinyModule(options) {
    extra_ = register_module("extra", torch::nn::Linear(2, 2));
  }

 private:
  torch::nn::Linear extra_{nullptr};
};

TEST(InPlaceReduction, NamesAParameterThatTheLossDoesNotDependOn) {
  try {
    trained_weights(make<UnusedParameterModule>({}), "{name: ddp_threads}", 2);
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("parameter extra.weight got no gradient"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("find_unused_parameters"));
  }
}

}  // namespace
}  // namespace levin::testing
