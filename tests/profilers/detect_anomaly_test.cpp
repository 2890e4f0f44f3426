#include <levin/core/base/debug_checks.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit.h>

#include "support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

using testing::CapturedLog;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

/// The gradient of a square root at zero, times zero, is NaN.
class RootImpl : public torch::nn::Module {
 public:
  at::Tensor forward(at::Tensor x) { return (x * 0).sqrt() * 0; }
};
LEVIN_UNIT(Root);

class Faulty : public TinyModule {
 public:
  explicit Faulty(const testing::TinyOptions& options) : TinyModule(options) {
    block_ = register_module("block", testing::Block());
    root_ = register_module("root", Root());
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const auto hidden = block_(batch["x"]);
    return (inside_unit ? root_(hidden) : (hidden * 0).sqrt() * 0).sum();
  }
  bool inside_unit = true;

 private:
  testing::Block block_{nullptr};
  Root root_{nullptr};
};

TEST(DetectAnomaly, NamesTheOperationAndItsUnit) {
  for (const bool inside_unit : {true, false}) {
    const CapturedLog messages;
    TrainerOptions options = quiet(1);
    options.detect_anomaly = true;
    auto module = make<Faulty>({});
    module->inside_unit = inside_unit;
    try {
      Trainer(options).fit(module, tiny_loader(16));
      FAIL() << "a NaN went unnoticed";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("'SqrtBackward0' returned nan values"));
    }
    EXPECT_THAT(messages.text(),
                HasSubstr(inside_unit ? "SqrtBackward0 failed in backward; its forward ran in the unit "
                                        "root (Root)"
                                      : "SqrtBackward0 failed in backward; its forward ran outside of "
                                        "units; hint"));
    for (const NamedUnit& named : named_units(*module)) EXPECT_TRUE(named.unit->hooks().empty());
  }
}

class Asking : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t index) override {
    checks_in_training |= DebugChecks::are_on();
    return TinyModule::training_step(batch, index);
  }
  StepOutput validation_step(const Batch& batch, int64_t index) override {
    checks_in_validation |= DebugChecks::are_on();
    return TinyModule::validation_step(batch, index);
  }
  bool checks_in_training = false;
  bool checks_in_validation = false;
};

TEST(DetectAnomaly, HasMetricsLookAtTheValuesOfBatches) {
  for (const bool detect_anomaly : {true, false}) {
    TrainerOptions options = quiet(1);
    options.detect_anomaly = detect_anomaly;
    auto module = make<Asking>({});
    Trainer trainer(options);
    trainer.fit(module, tiny_loader(16));
    trainer.validate(module, tiny_loader(16));
    EXPECT_EQ(module->checks_in_training, detect_anomaly);
    EXPECT_EQ(module->checks_in_validation, detect_anomaly);
    EXPECT_FALSE(DebugChecks::are_on());
  }
}

TEST(DetectAnomaly, WithoutItNothingIsSaid) {
  const CapturedLog messages;
  Trainer(quiet(1)).fit(make<Faulty>({}), tiny_loader(16));
  EXPECT_THAT(messages.text(), Not(HasSubstr("SqrtBackward0")));
}

}  // namespace
}  // namespace levin
