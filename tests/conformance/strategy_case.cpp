#include "tests/conformance/strategy_case.h"

#include "tests/support/eventually.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/data/pad_collate.h>
#include <levin/core/data/token_batch_sampler.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>

#include <new>
#include <numeric>

namespace levin::testing {

namespace F = torch::nn::functional;

namespace {

torch::nn::LSTM make_lstm(int64_t hidden, int64_t layers) {
  return torch::nn::LSTM(torch::nn::LSTMOptions(1, hidden).num_layers(layers).batch_first(true));
}

/// What it gives after the last feature, [N, hidden].
at::Tensor read_features(torch::nn::LSTM& lstm, const at::Tensor& x) {
  return std::get<0>(lstm(x.unsqueeze(2))).select(1, -1);
}

}  // namespace

ReaderImpl::ReaderImpl(int64_t features) : lstm_(register_module("lstm", make_lstm(features, 2))) {}
at::Tensor ReaderImpl::forward(const at::Tensor& x) { return read_features(lstm_, x); }

Net::Net(const Options& options) : options_(options) {
  automatic_optimization = !options.manual;
  Dense first(4, 8);
  if (options.freeze_first)
    for (auto& parameter : first->parameters()) parameter.set_requires_grad(false);
  Sequential net(first);
  if (options.batch_norm)
    net->push_back(torch::nn::BatchNorm1d(8));
  else
    net->push_back([](const at::Tensor& x) { return x; });
  net->push_back([](const at::Tensor& x) { return x.relu(); });
  net->push_back(torch::nn::Dropout(options.dropout));
  if (options.lstm)
    net->push_back(Reader(8));
  else
    net->push_back(Dense(8, 8));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Dropout(options.dropout));
  net->push_back(Dense(8, 1));
  net_ = register_module("net", net);
  branch_ = register_module("branch", Dense(4, 1));
  if (options.lstm) lstm_ = register_module("lstm", make_lstm(1, 1));
}

TensorPlan Net::tensor_plan() const {
  const bool late = options_.batch_norm;
  return {{.pattern = late ? "net.4" : "net.0", .cut = TensorCut::kColumn},
          {.pattern = late ? "net.7" : "net.4", .cut = TensorCut::kRow}};
}

at::Tensor Net::forward(const at::Tensor& x, bool with_branch) {
  at::Tensor y = net_(x);
  if (lstm_) y = y + read_features(lstm_, x);
  return with_branch ? y + branch_(x) : y;
}

std::atomic<bool>& Net::goes_on() {
  static auto* const shared =
      new (::mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          std::atomic<bool>(false);
  return *shared;
}

at::Tensor Net::features(const Batch& batch) {
  const at::Tensor* mask = batch.find("x_mask");
  if (mask == nullptr) return batch["x"];
  const at::Tensor is_there = mask->unsqueeze(2).to(batch["x"].scalar_type());
  return (batch["x"] * is_there).sum(1) / is_there.sum(1);
}

StepOutput Net::training_step(const Batch& batch, int64_t batch_idx) {
  const bool with_branch = !options_.alternate || batch_idx % 2 == 0;
  auto loss = F::mse_loss(forward(features(batch), with_branch), batch["y"]);
  if (!options_.mistake.empty() && trainer().global_rank() == options_.mistaken_rank && batch_idx == 2) {
    if (options_.mistake == "throws") throw Error("net", "rank 1 made a mistake");
    if (options_.mistake == "logs") log("only_here", 1.0);
    if (options_.mistake == "hangs") testing::eventually([] { return goes_on().load(); });
  }
  log("train_loss", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
  if (!options_.manual) return loss;
  auto& body = optimizer(0);
  auto& branch = optimizer(1);
  body.zero_grad();
  branch.zero_grad();
  manual_backward(loss);
  body.step();
  branch.zero_grad();
  manual_backward(F::mse_loss(forward(features(batch)), batch["y"]));
  branch.step();
  return {};
}

StepOutput Net::evaluate(const Batch& batch, const std::string& stage) {
  auto loss = F::mse_loss(forward(features(batch)), batch["y"]);
  log(stage + "_loss", loss, {.sync_dist = true});
  log(stage + "_examples", static_cast<double>(batch.size()), {.reduce = LogReduce::kSum, .sync_dist = true});
  log(stage + "_largest", batch["y"].max(), {.reduce = LogReduce::kMax, .sync_dist = true});
  return loss;
}

StepOutput Net::validation_step(const Batch& batch, int64_t) { return evaluate(batch, "val"); }
StepOutput Net::test_step(const Batch& batch, int64_t) { return evaluate(batch, "test"); }

OptimizerConfigs Net::configure_optimizers() {
  const auto sgd = [this](std::vector<at::Tensor> parameters) {
    return OptimizerConfig{.optimizer = std::make_shared<optim::SGD>(
                               std::move(parameters), optim::SGDOptions{.lr = options_.lr, .momentum = 0.9})};
  };
  std::vector<at::Tensor> body;
  std::vector<at::Tensor> branch = branch_->parameters();
  for (const auto& [name, parameter] : named_unique_parameters(*this))
    if (parameter.requires_grad() && (!options_.manual || !name.starts_with("branch"))) body.push_back(parameter);
  if (!options_.manual) return sgd(std::move(body));
  return {sgd(std::move(body)), sgd(std::move(branch))};
}

TrainerOptions trainer_options(const TrainingRun& run, const StrategyCase& on) {
  TrainerOptions options = quiet(run.epochs);
  options.strategy = Spec<Strategy>(Config::parse(on.yaml(), {}));
  options.accelerator = on.accelerator;
  options.devices = on.ranks;
  if (!on.is_on_cpu()) {
    std::vector<int64_t> indices(static_cast<size_t>(on.ranks), on.first_device);
    if (!on.shares) std::iota(indices.begin(), indices.end(), on.first_device);
    options.devices = indices;
  }
  options.log_every_n_steps = 2;
  if (run.configure) run.configure(options);
  return options;
}

namespace {

class Ragged : public data::Dataset {
 public:
  explicit Ragged(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {}
  int64_t size() const override { return std::ssize(lengths_); }
  Batch get(int64_t index, data::Generator& generator) const override {
    const int64_t length = lengths_[static_cast<size_t>(index)];
    const auto x = at::arange(length * 4, at::kFloat).reshape({length, 4}).mul(0.3).add(index).sin();
    const auto noise = static_cast<float>(0.01 * generator.uniform());
    return {{"x", x + noise}, {"y", x.mean(0).sum(0, true)}};
  }
  data::CollateFunction collate() const override { return data::pad_collate({.fields = {"x"}}); }

 private:
  std::vector<int64_t> lengths_;
};

}  // namespace

std::shared_ptr<data::Dataset> ragged_dataset(std::vector<int64_t> lengths) {
  return std::make_shared<Ragged>(std::move(lengths));
}

DataLoader token_batches(int64_t examples, bool shuffle) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < examples; ++i) lengths.push_back(1 + i * i % 17);
  auto sampler = std::make_shared<data::TokenBatchSampler>(
      lengths, data::TokenBatchSamplerOptions{.max_tokens = 34, .shuffle = shuffle});
  return DataLoader(ragged_dataset(std::move(lengths)), {.num_workers = 1}, std::move(sampler));
}

Outcome train(const TrainingRun& run, const StrategyCase& on) {
  seed_everything(7);
  const auto module = make<Net>(run.net);
  Trainer trainer(trainer_options(run, on));
  const DataLoader training =
      run.training ? run.training()
                   : DataLoader(tiny_dataset(run.examples), {.shuffle = true, .global_batch_size = run.global_batch});
  const DataLoader validation =
      run.validation ? run.validation() : DataLoader(tiny_dataset(19), {.global_batch_size = run.global_batch});
  trainer.fit(module, training, validation, run.ckpt);
  Outcome outcome;
  for (const auto& weight : weights(*module)) outcome.weights.push_back(weight.cpu());
  for (const auto& buffer : module->buffers()) outcome.buffers.push_back(buffer.clone().cpu());
  outcome.metrics = trainer.callback_metrics();
  if (Checkpointer* checkpointer = trainer.checkpoint_callback())
    outcome.last_checkpoint = checkpointer->last_model_path();
  return outcome;
}

std::string difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double bound) {
  if (a.size() != b.size()) return fmt::format("{} tensors against {}", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) return fmt::format("tensor {} has another shape", i);
    const double largest =
        a[i].numel() == 0 ? 0 : (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>();
    if (!(largest <= bound)) return fmt::format("tensor {} differs by {}, more than {}", i, largest, bound);
  }
  return "";
}

}  // namespace levin::testing
