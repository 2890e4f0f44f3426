#include "tests/gpu/gpu_device.h"

#include <levin/build_info.h>
#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/seed.h>
#include <levin/core/metrics/accuracy.h>
#include <levin/core/metrics/agreement.h>
#include <levin/core/metrics/auroc.h>
#include <levin/core/metrics/calibration_error.h>
#include <levin/core/metrics/confusion_matrix.h>
#include <levin/core/metrics/curves.h>
#include <levin/core/metrics/extremes.h>
#include <levin/core/metrics/image_quality.h>
#include <levin/core/metrics/mean.h>
#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/metrics/perplexity.h>
#include <levin/core/metrics/precision_recall.h>
#include <levin/core/metrics/regression.h>
#include <levin/core/metrics/running_mean.h>
#include <levin/core/options/registries.h>

#if LEVIN_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <string>
#include <vector>

/// What the CPU and the device must agree on, though their kernels differ.
namespace levin::testing {
namespace {

class GpuKernels : public OnDevice {};

/// Leaves its optimizer to the trainer's options.
class WithoutOptimizer : public Module {
 public:
  using Options = TinyOptions;
  explicit WithoutOptimizer(const Options&)
      : first_(register_module("first", torch::nn::Linear(4, 8))),
        second_(register_module("second", torch::nn::Linear(8, 1))) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(second_(first_(batch["x"]).tanh()), batch["y"]);
  }

 private:
  torch::nn::Linear first_, second_;
};

TEST_F(GpuKernels, EveryOptimizerStepsAsOnTheCpu) {
  for (const auto& item : registries().optimizers.items()) {
    if (item.name == "sparse_adam") continue;  // takes sparse gradients alone, which this module has none of
    SCOPED_TRACE(item.name);
    const bool wraps = item.name == "lookahead" || item.name == "sam";
    const std::string yaml = "{name: " + item.name + (wraps ? ", base: {name: sgd, lr: 0.01}}" : ", lr: 0.01}");
    const auto train = [&](TrainerOptions options, bool is_recorded) {
      seed_everything(4);
      options.optimizer = Spec<optim::NamedOptimizer>(Config::parse(yaml, {}));
      options.graph = is_recorded;
      const auto module = make<WithoutOptimizer>({});
      Trainer(std::move(options)).fit(module, tiny_loader(40));
      std::vector<at::Tensor> on_cpu;
      for (const at::Tensor& weight : weights(*module)) on_cpu.push_back(weight.cpu());
      return on_cpu;
    };
    const auto expected = train(quiet(2), false);
    for (const bool is_recorded : {false, true}) {
      // SAM runs the step twice, which is not recorded.
      if (is_recorded && item.name == "sam") continue;
      const auto got = train(on_device(2), is_recorded);
      ASSERT_EQ(got.size(), expected.size());
      // Muon's iterations are in bfloat16.
      const double bound = item.name == "muon" ? 1e-2 : 1e-3;
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i].allclose(expected[i], bound, bound))
            << "tensor " << i << ", recorded " << is_recorded << ": differs by "
            << (got[i] - expected[i]).abs().max().item<double>();
    }
  }
}

template <class T, class... Inputs>
void expect_as_on_cpu(T on_cpu, T on_device, const Inputs&... inputs) {
  SCOPED_TRACE(typeid(T).name());
  for (int i = 0; i < 3; ++i) {
    on_cpu.update(inputs...);
    on_device.update(inputs.to(checked_device())...);
  }
  const at::Tensor expected = on_cpu.compute().cpu().to(at::kDouble);
  const at::Tensor got = on_device.compute().cpu().to(at::kDouble);
  EXPECT_TRUE(got.allclose(expected, 1e-4, 1e-5, /*equal_nan=*/true)) << got << "\nin place of\n" << expected;
}
template <class T, class... Inputs>
void expect_as_on_cpu(const typename T::Options& options, const Inputs&... inputs) {
  expect_as_on_cpu(T(options), T(options), inputs...);
}

TEST_F(GpuKernels, MetricsAreThoseOfTheCpu) {
  using namespace metrics;
  constexpr int64_t kClasses = 5;
  const at::Tensor scores = at::randn({64, kClasses}).softmax(1);
  const at::Tensor labels = at::randint(kClasses, {64});
  const at::Tensor values = at::rand({64}), others = at::rand({64});
  const at::Tensor binary = at::randint(2, {64});
  const at::Tensor images = at::rand({2, 3, 16, 16}), other_images = at::rand({2, 3, 16, 16});
  expect_as_on_cpu<Accuracy>({.num_classes = kClasses}, scores, labels);
  expect_as_on_cpu<Accuracy>({.num_classes = kClasses, .top_k = 2}, scores, labels);
  expect_as_on_cpu<F1Score>({.num_classes = kClasses, .average = "macro"}, scores, labels);
  expect_as_on_cpu<MatthewsCorrelation>({.num_classes = kClasses}, labels, labels.flip(0));
  expect_as_on_cpu<ConfusionMatrix>({.num_classes = kClasses}, scores, labels);
  expect_as_on_cpu<Auroc>({.num_classes = kClasses}, scores, labels);
  expect_as_on_cpu<Auroc>({.num_classes = kClasses, .thresholds = 20}, scores, labels);
  expect_as_on_cpu<CalibrationError>({.num_classes = kClasses}, scores, labels);
  expect_as_on_cpu<MeanSquaredError>({}, values, others);
  expect_as_on_cpu(MeanAbsoluteError(), MeanAbsoluteError(), values, others);
  expect_as_on_cpu(R2Score(), R2Score(), values, others);
  expect_as_on_cpu(PearsonCorrelation(), PearsonCorrelation(), values, others);
  expect_as_on_cpu(SpearmanCorrelation(), SpearmanCorrelation(), values, others);
  expect_as_on_cpu(CosineSimilarity(), CosineSimilarity(), scores, scores.flip(0));
  expect_as_on_cpu<PeakSignalNoiseRatio>({}, images, other_images);
  expect_as_on_cpu<StructuralSimilarity>({}, images, other_images);
  expect_as_on_cpu<Perplexity>({}, scores, labels);
  expect_as_on_cpu(Mean(), Mean(), values);
  expect_as_on_cpu<RunningMean>({}, values);
  expect_as_on_cpu(Max(), Max(), values);
}

#if LEVIN_HAS_CUDA
/// LibTorch's own check that nothing waits for the device: what does throws.
class WaitsAreErrors {
 public:
  static void set(bool are_errors) {
    c10::cuda::warning_state().set_sync_debug_mode(are_errors ? c10::cuda::SyncDebugMode::L_ERROR
                                                              : c10::cuda::SyncDebugMode::L_DISABLED);
  }
  ~WaitsAreErrors() { set(false); }
};

TEST_F(GpuKernels, AStepWaitsForTheDeviceNotOnce) {
  if (is_simulated()) GTEST_SKIP() << "the simulated device counts its waits in SimSingleDevice";
  for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"}) {
    SCOPED_TRACE(precision);
    const WaitsAreErrors until_the_end;
    TrainerOptions options = on_device(1);
    options.log_every_n_steps = 1000;
    options.precision = precision;
    options.gradient_clip_val = 0.5;
    options.callbacks = {
        make<LambdaCallback>({.on_train_batch_start = [](Trainer&, Module&, const Batch&, int64_t index) {
          // The first step makes the optimizer's state, the first value that is logged its place on the device; behind
          // the last one values are read.
          if (index == 3 || index == 9) WaitsAreErrors::set(index == 3);
        }})};
    Trainer trainer(options);
    const DataLoader loader(tiny_dataset(80), {.batch_size = 8, .pin_memory = true});
    EXPECT_NO_THROW(trainer.fit(make<TinyModule>({.dropout = 0.2}), loader));
    EXPECT_EQ(trainer.global_step(), 10);
  }
}
#endif

}  // namespace
}  // namespace levin::testing
