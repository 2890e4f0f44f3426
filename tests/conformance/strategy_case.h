#pragma once

#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/seed.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/unit.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <atomic>
#include <cctype>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::testing {

/// One strategy on so many ranks (or replicas); every strategy must pass the suite.
struct StrategyCase {
  const char* strategy;  ///< or "mesh" of threads, whose sizes are options
  int ranks;
  int stage = 0;             ///< of a sharded strategy
  const char* options = "";  ///< further ones, as in YAML: "schedule: gpipe"
  const char* accelerator = "cpu";
  int first_device = 0;  ///< of another accelerator than the CPU: the index of rank 0's
  bool shares = false;   ///< all ranks, which are processes, have that one
  bool is_on_cpu() const { return std::string(accelerator) == "cpu"; }
  bool has_devices() const { return AcceleratorRegistry::instance().find(accelerator)->device_count() > 0; }
  /// The same where this case runs, on as many ranks as there can be.
  StrategyCase beside(StrategyCase other) const {
    other.accelerator = accelerator;
    other.shares = shares;
    return other;
  }
  bool is_sharded() const { return stage > 0; }
  /// Whether Levin starts its ranks as processes.
  bool starts_processes() const {
    const std::string name = strategy;
    return ranks > 1 && name != "dp" && name != "ddp2" && yaml().find("thread") == std::string::npos;
  }
  bool has_option(const char* name) const { return std::string(options).find(name) != std::string::npos; }
  bool is_pipeline() const { return std::string(strategy).starts_with("pipeline") || has_option("pipeline"); }
  bool is_tensor() const { return std::string(strategy).starts_with("tensor") || has_option("tensor"); }
  bool is_one_pipeline() const {
    return is_pipeline() && !has_option("data_parallel") && !has_option("replicate") && !has_option("shard");
  }
  /// As in YAML, with further options: ", find_unused_parameters: true".
  std::string yaml(const std::string& further = "") const {
    std::string text = strategy == std::string("mesh") ? "{start_method: thread" : std::string("{name: ") + strategy;
    if (is_sharded()) text += ", stage: " + std::to_string(stage);
    if (*options != '\0') text += std::string(", ") + options;
    if (shares && ranks > 1) text += ", backend: gloo";
    return text + further + "}";
  }
  friend std::ostream& operator<<(std::ostream& stream, const StrategyCase& item) {
    return stream << item.yaml() << " on " << item.ranks << " x " << item.accelerator;
  }
};

inline std::string name_of(const ::testing::TestParamInfo<StrategyCase>& info) {
  std::string name = info.param.strategy;
  if (info.param.is_sharded()) name += "_stage_" + std::to_string(info.param.stage);
  bool is_apart = true;
  for (const char* letter = info.param.options; *letter != '\0'; ++letter) {
    if (std::isalnum(static_cast<unsigned char>(*letter)) == 0) {
      is_apart = true;
      continue;
    }
    if (std::exchange(is_apart, false)) name += '_';
    name += *letter;
  }
  name += "_" + std::to_string(info.param.ranks);
  if (info.param.first_device > 0) name += "_from_" + std::to_string(info.param.first_device);
  return name;
}

struct NetOptions {
  double lr = 0.05;
  double dropout = 0;
  bool batch_norm = false;
  bool freeze_first = false;
  bool alternate = false;  ///< odd batches leave out a branch
  bool lstm = false;       ///< an LSTM in the sequential, and one beside it that is no unit
  bool manual = false;     ///< two optimizers, stepped by hand
  std::string mistake;     ///< of one rank alone: "throws", "logs" another name, "hangs"
  int64_t mistaken_rank = 1;
  static void describe(Schema<NetOptions>& schema) {
    schema.field("lr", &NetOptions::lr, "learning rate");
    schema.field("dropout", &NetOptions::dropout, "dropout probability");
    schema.field("batch_norm", &NetOptions::batch_norm, "batch normalisation after the first layer");
    schema.field("freeze_first", &NetOptions::freeze_first, "the first layer is not trained");
    schema.field("alternate", &NetOptions::alternate, "odd batches leave out a branch");
    schema.field("lstm", &NetOptions::lstm, "LSTM layers");
    schema.field("mistake", &NetOptions::mistake, "what one rank alone does wrong");
    schema.field("mistaken_rank", &NetOptions::mistaken_rank, "which one");
    schema.field("manual", &NetOptions::manual, "two optimizers, stepped by hand");
  }
};

class DenseImpl : public torch::nn::LinearImpl {
 public:
  using LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return LinearImpl::forward(x); }
};
/// A linear layer that is a unit.
LEVIN_UNIT(Dense);

/// Two stacked layers of torch::nn::LSTM that read the features one after the other: [N, features] stays so.
class ReaderImpl : public torch::nn::Module {
 public:
  explicit ReaderImpl(int64_t features);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LSTM lstm_;
};
LEVIN_UNIT(Reader);

/// A small regression whose options switch on what strategies find hard: a sequential of eight elements (two chunks for
/// each of four ranks of a pipeline), and a branch beside it.
class Net : public Module, public HasTensorPlan {
 public:
  using Options = NetOptions;
  explicit Net(const Options& options);
  /// Around the batch normalisation, where there is one. With LSTM layers there is nothing to cut.
  TensorPlan tensor_plan() const override;

  at::Tensor forward(const at::Tensor& x, bool with_branch = true);
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override;
  StepOutput test_step(const Batch& batch, int64_t batch_idx) override;
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", forward(features(batch))}}; }
  OptimizerConfigs configure_optimizers() override;

  /// Ends the mistake "hangs": set by another rank, a thread or a fork, that waits no more.
  static std::atomic<bool>& goes_on();

 private:
  /// "x" of a batch; of padded sequences their means.
  static at::Tensor features(const Batch& batch);
  StepOutput evaluate(const Batch& batch, const std::string& stage);

  Options options_;
  Sequential net_{nullptr};
  Dense branch_{nullptr};
  torch::nn::LSTM lstm_{nullptr};
};

/// What a run leaves, on the CPU.
struct Outcome {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> buffers;
  MetricMap metrics;
  std::string last_checkpoint;
};

struct TrainingRun {
  NetOptions net;
  int64_t examples = 40;
  int64_t global_batch = 8;
  int64_t epochs = 2;
  std::function<void(TrainerOptions&)> configure;  ///< further options of the trainer
  std::string ckpt;
  std::function<DataLoader()> training;  ///< another loader than that of the above
  std::function<DataLoader()> validation;
};

/// Examples "x", float [length, 4], of these lengths, padded in batches, and "y", float [1].
std::shared_ptr<data::Dataset> ragged_dataset(std::vector<int64_t> lengths);
/// Batches of them that differ in size, some of which have fewer examples than four ranks.
DataLoader token_batches(int64_t examples, bool shuffle);

/// Trains as the case says, or on one device.
Outcome train(const TrainingRun& run, const StrategyCase& on);
inline Outcome train_on_one_device(const TrainingRun& run) { return train(run, {"single_device", 1}); }

TrainerOptions trainer_options(const TrainingRun& run, const StrategyCase& on);

/// Nothing, or how the first tensors that differ by more than `bound` do.
std::string difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double bound);

}  // namespace levin::testing
