#include "../support/tiny.h"

#include <ATen/Context.h>

#include <optional>
#include <string>

namespace levin {
namespace {

using at::Float32MatmulPrecision;
using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

Float32MatmulPrecision in_effect() { return at::globalContext().float32MatmulPrecision(); }

/// Sees the setting at its first training step.
class Watcher : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    if (!seen) seen = in_effect();
    return TinyModule::training_step(batch, batch_idx);
  }
  std::optional<Float32MatmulPrecision> seen;
};

/// What a training step saw.
Float32MatmulPrecision fit(const std::optional<std::string>& precision) {
  TrainerOptions options = quiet(1);
  options.float32_matmul_precision = precision;
  auto module = make<Watcher>({});
  Trainer trainer(options);
  EXPECT_FALSE(module->seen.has_value());
  trainer.fit(module, tiny_loader());
  return module->seen.value();
}

class Float32MatmulPrecisionOption : public ::testing::Test {
 protected:
  void TearDown() override { at::globalContext().setFloat32MatmulPrecision("highest"); }
};

TEST_F(Float32MatmulPrecisionOption, IsSetForTheCallAndStays) {
  EXPECT_EQ(fit("high"), Float32MatmulPrecision::HIGH);
  EXPECT_EQ(in_effect(), Float32MatmulPrecision::HIGH);
  EXPECT_EQ(fit("medium"), Float32MatmulPrecision::MEDIUM);
  EXPECT_EQ(in_effect(), Float32MatmulPrecision::MEDIUM);
  EXPECT_EQ(fit("highest"), Float32MatmulPrecision::HIGHEST);
  EXPECT_EQ(in_effect(), Float32MatmulPrecision::HIGHEST);
}

TEST_F(Float32MatmulPrecisionOption, LeftOutItKeepsWhatTheProgramSet) {
  at::globalContext().setFloat32MatmulPrecision("high");
  EXPECT_EQ(fit(std::nullopt), Float32MatmulPrecision::HIGH);
  EXPECT_EQ(in_effect(), Float32MatmulPrecision::HIGH);
}

TEST_F(Float32MatmulPrecisionOption, ThePlainTrainerChangesNothing) {
  TrainerOptions options = quiet(1);
  options.float32_matmul_precision = "high";
  const Trainer trainer(options);
  EXPECT_EQ(in_effect(), Float32MatmulPrecision::HIGHEST);  // only its calls set it
}

TEST_F(Float32MatmulPrecisionOption, IsSetForEvaluationToo) {
  TrainerOptions options = quiet(1);
  options.float32_matmul_precision = "medium";
  Trainer trainer(options);
  trainer.validate(make<TinyModule>({}), tiny_loader(8, 8, false));
  EXPECT_EQ(in_effect(), Float32MatmulPrecision::MEDIUM);
}

TEST_F(Float32MatmulPrecisionOption, OtherPrecisionsAreRefused) {
  TrainerOptions options = quiet(1);
  options.float32_matmul_precision = "tf32";
  try {
    const Trainer trainer(options);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("trainer.float32_matmul_precision must be one of highest, high, medium; got tf32"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace levin
