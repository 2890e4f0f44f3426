#pragma once

#include "tests/conformance/strategy_case.h"

#include <levin/core/nn/sequential.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace levin::testing {

/// Examples with a number "id", and a "count" of 0 to 3 that may weigh them.
Batch examples(int64_t size);

enum class Weighing { kExamples, kNumber, kTensor };

struct WeighedNetOptions {
  int64_t weighing = 0;  ///< a Weighing
  bool skips = false;    ///< parts of a batch that have an example whose number can be divided by 5
  bool notes = true;     ///< which examples it was trained on
  bool finite = false;   ///< a loss of weight zero is a number
  double wrong_weight = 0;
  bool lbfgs = false;
  bool manual = false;  ///< steps by hand, in every batch
  static void describe(Schema<WeighedNetOptions>& schema) {
    schema.field("weighing", &WeighedNetOptions::weighing, "how losses are weighed");
    schema.field("skips", &WeighedNetOptions::skips, "skips batches");
    schema.field("notes", &WeighedNetOptions::notes, "says which examples it was trained on");
    schema.field("finite", &WeighedNetOptions::finite, "a loss of weight zero is a number");
    schema.field("wrong_weight", &WeighedNetOptions::wrong_weight, "a weight instead of the right one");
    schema.field("manual", &WeighedNetOptions::manual, "steps by hand");
    schema.field("lbfgs", &WeighedNetOptions::lbfgs, "an optimizer that evaluates the loss itself");
  }
};

/// A regression that says which examples it was trained on.
class WeighedNet : public Module {
 public:
  using Options = WeighedNetOptions;
  explicit WeighedNet(const Options& options);

  at::Tensor errors(const Batch& batch) { return (net_(batch["x"]) - batch["y"]).square(); }

  StepOutput training_step(const Batch& batch, int64_t) override;
  StepOutput validation_step(const Batch& batch, int64_t) override;
  OptimizerConfigs configure_optimizers() override;

  /// The examples trained on since the last call, by all ranks.
  static std::set<int64_t> trained();

 private:
  Options options_;
  Sequential net_{nullptr};
};

std::shared_ptr<WeighedNet> make_net(const WeighedNetOptions& options);

/// A step from one gradient over these examples, as by hand.
void step_by_hand(WeighedNet& net, const std::vector<int64_t>& ids, bool counts);

struct Division {
  int64_t size = 20;
  int64_t batch_size = 4;
  int64_t accumulate = 3;
  bool streams = false;
  WeighedNetOptions net = {};
  std::string text(const StrategyCase& on) const {
    return fmt::format("{} examples in batches of {}, windows of {}, streams {}, weighing {}, skips {}, on {} x {}",
                       size, batch_size, accumulate, streams, net.weighing, net.skips, on.ranks, on.strategy);
  }
};

/// Trains an epoch; the weights are on the CPU again.
std::shared_ptr<WeighedNet> train_divided(const Division& division, const StrategyCase& on,
                                          const std::function<void(TrainerOptions&)>& configure = {},
                                          const std::string& ckpt = "");

class LossWeight : public ::testing::TestWithParam<StrategyCase> {
 protected:
  void SetUp() override {
    if (!GetParam().has_devices()) GTEST_SKIP() << "no CUDA device can be used here";
  }
  bool shares_batches() const {
    const std::string name = GetParam().strategy;
    return name == "dp" || name == "single_device" || GetParam().is_one_pipeline();
  }
  int64_t data_ranks() const {
    if (shares_batches()) return 1;
    return GetParam().is_pipeline() ? 2 : GetParam().ranks;
  }
  /// Stage 3 gathers parameters in backward as others do, and so must know what they do.
  bool takes_skips() const { return GetParam().stage < 3; }
  /// Trains in windows of several sizes, and by hand in 32 bits.
  void expect_steps_of_windows(const std::function<void(TrainerOptions&)>& configure, double bound);
  /// Whether a loss of weight zero must be a number: where no rank may skip, and on devices that nothing waits for.
  bool needs_finite() const { return !takes_skips() || !GetParam().is_on_cpu(); }
};

}  // namespace levin::testing
