#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/precision/mixed_precision.h>

#include <torch/nn/modules/activation.h>

#include <cmath>

namespace levin::testing {
namespace {

struct Curve {
  const char* precision;
  std::vector<double> losses;
  std::vector<double> scales;
};

const std::vector<Curve>& curves() {
  static const std::vector<Curve> kCurves = {
#include "tests/oracles/precision_oracles.inc"
  };
  return kCurves;
}

constexpr int64_t kBatch = 16;

at::Tensor formula(at::IntArrayRef shape, double scale, double phase) {
  const int64_t count = c10::multiply_integers(shape);
  return at::arange(count, at::kDouble).mul(0.7).add(phase).sin().mul(scale).reshape(shape);
}

/// The model of precision_oracles.py.
class OracleNet : public Module {
 public:
  OracleNet() {
    first_ = register_module("first", torch::nn::Linear(6, 16));
    second_ = register_module("second", torch::nn::Linear(16, 3));
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters()) parameter.copy_(formula(parameter.sizes(), 0.4, phase++));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::cross_entropy(second_(first_(batch["x"]).tanh()), batch["y"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02})};
  }

 private:
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear second_{nullptr};
};

class PrecisionOracle : public ::testing::TestWithParam<size_t> {};

TEST_P(PrecisionOracle, TheLossCurveIsPyTorchs) {
  const Curve& expected = curves().at(GetParam());
  std::vector<at::Tensor> x;
  for (size_t step = 0; step < expected.losses.size(); ++step)
    x.push_back(formula({kBatch, 6}, 1.0, static_cast<double>(step)));
  const auto y = at::arange(kBatch, at::kLong).remainder(3).repeat({static_cast<int64_t>(x.size())});
  const auto data = std::make_shared<data::TensorDataset>(Batch{{"x", at::cat(x)}, {"y", y}});

  std::vector<double> losses;
  std::vector<double> scales;
  TrainerOptions options = quiet(1);
  const std::string name = expected.precision;
  options.precision = name == "16-mixed" ? Spec<Precision>(Config::parse("{name: 16-mixed, growth_interval: 2}", {}))
                                         : Spec<Precision>(name);
  options.callbacks = {make<LambdaCallback>(
      {.on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput& output, const Batch&, int64_t) {
        losses.push_back(output.loss().item<double>());
        if (const auto* mixed = dynamic_cast<const MixedPrecision*>(&trainer.precision()); mixed && mixed->scaler())
          scales.push_back(mixed->scaler()->current_scale());
      }})};
  Trainer trainer(options);
  const auto module = std::make_shared<OracleNet>();
  trainer.fit(module, DataLoader(data, {.batch_size = kBatch}));

  ASSERT_EQ(losses.size(), expected.losses.size());
  // The same kernels on the same numbers: what is left is the order of sums, in the type that they are made in.
  const double bound = name == "64-true" ? 1e-8 : name == "32-true" ? 2e-6 : 0.02;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected.losses[i], bound) << "step " << i;
  EXPECT_EQ(scales, expected.scales);
  const auto type = name.starts_with("64") ? at::kDouble
                    : name == "16-true"    ? at::kHalf
                    : name == "bf16-true"  ? at::kBFloat16
                                           : at::kFloat;
  for (const auto& parameter : module->parameters()) EXPECT_EQ(parameter.scalar_type(), type);
}

INSTANTIATE_TEST_SUITE_P(Formats, PrecisionOracle, ::testing::Range<size_t>(0, 6), [](const auto& info) {
  std::string name = curves().at(info.param).precision;
  std::replace(name.begin(), name.end(), '-', '_');
  return "p" + name;
});

}  // namespace
}  // namespace levin::testing
