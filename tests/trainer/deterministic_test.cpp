#include "../support/tiny.h"

#include <levin/core/base/error.h>

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <string>

namespace levin::testing {
namespace {

constexpr const char* kSaid = "put_ does not have a deterministic implementation";

/// Runs an operator that has no deterministic form on any device.
class Putting : public TinyModule {
 public:
  using TinyModule::TinyModule;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    at::zeros({4}).put_(at::tensor({1, 1}, at::kLong), at::tensor({1.0F, 2.0F}));
    return TinyModule::training_step(batch, batch_idx);
  }
};

class Deterministic : public ::testing::Test {
 protected:
  ~Deterministic() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  /// What is said on standard error by a fit, or by the error that ends it.
  static std::string said_with(Determinism deterministic) {
    TrainerOptions options = quiet(1);
    options.deterministic = deterministic;
    ::testing::internal::CaptureStderr();
    std::string error;
    try {
      Trainer(options).fit(make<Putting>({}), tiny_loader(8));
    } catch (const std::exception& thrown) {
      error = std::string("thrown: ") + thrown.what();
    }
    return ::testing::internal::GetCapturedStderr() + error;
  }
};

TEST_F(Deterministic, ThrowsWarnsOrSaysNothing) {
  const std::string thrown = said_with(true);
  EXPECT_NE(thrown.find("thrown: "), std::string::npos) << thrown;
  EXPECT_NE(thrown.find(kSaid), std::string::npos) << thrown;
  const std::string warned = said_with("warn");
  EXPECT_EQ(warned.find("thrown: "), std::string::npos) << warned;
  EXPECT_NE(warned.find(kSaid), std::string::npos) << warned;
  EXPECT_EQ(said_with(false).find(kSaid), std::string::npos);
}

}  // namespace
}  // namespace levin::testing
