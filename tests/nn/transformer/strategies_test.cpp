// The blocks are units: strategies that divide a model, and activation checkpointing, work on them unchanged.

#include "../../support/tiny.h"

#include <levin/core/base/seed.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/transformer/mixture_of_experts.h>
#include <levin/core/nn/transformer/transformer_stack.h>
#include <levin/core/optim/sgd.h>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace levin {
namespace {

constexpr int64_t kWords = 11;
constexpr int64_t kModelWidth = 16;

nn::TransformerBlockOptions llama_block(double dropout = 0) {
  return {.attention = {.width = kModelWidth, .heads = 4, .key_value_heads = 2, .causal = true},
          .mlp = {.hidden = 24},
          .dropout = dropout};
}

struct WordsImpl : torch::nn::Module {
  WordsImpl() { words = register_module("words", torch::nn::Embedding(kWords, kModelWidth)); }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& tokens, const at::Tensor& positions,
                                                         const at::Tensor& targets) {
    return {words(tokens), positions, targets};
  }
  torch::nn::Embedding words{nullptr};
};
LEVIN_UNIT(Words);

struct ChainOptions {
  bool with_documents = false;
};

/// Layers that carry positions, in a chain that a pipeline cuts.
class ChainModule : public Module {
 public:
  using Options = ChainOptions;
  explicit ChainModule(const Options& options) : with_documents_(options.with_documents) {
    const nn::RotaryEmbedding rotary(nn::RotaryOptions{.dim = 4});
    Sequential net;
    net->push_back(Words());
    for (int i = 0; i < 3; ++i) net->push_back(nn::DecoderLayer(llama_block(), rotary));
    net->push_back(nn::RMSNorm(kModelWidth));
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kModelWidth, kWords).bias(false)));
    net_ = register_module("net", net);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor& tokens = batch["tokens"];
    at::Tensor positions = torch::arange(tokens.size(1));
    if (with_documents_) positions = positions.remainder(4).expand(tokens.sizes());
    const auto logits = net_->forward_all({tokens, positions, torch::empty({0}, torch::kLong)}).front();
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch["next"].flatten());
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1});
  }

 private:
  Sequential net_{nullptr};
  bool with_documents_;
};

struct StackOptions {
  double dropout = 0;
};

/// A stack in one unit, with a memory, over an encoder's.
class StackModule : public Module {
 public:
  using Options = StackOptions;
  explicit StackModule(const Options& given) {
    nn::TransformerStackOptions options{.block = llama_block(given.dropout), .layers = 2};
    encoder_ = register_module("encoder", nn::TransformerEncoder(options));
    options.block.cross_attention = true;
    options.block.attention.query_key_norm = nn::QueryKeyNorm::kHead;
    decoder_ = register_module("decoder", nn::TransformerDecoder(options));
    words_ = register_module("words", torch::nn::Embedding(kWords, kModelWidth));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor memory = encoder_(words_(batch["next"]));
    const at::Tensor y = decoder_(words_(batch["tokens"]), {.memory = memory});
    const auto logits = torch::linear(y, words_->weight);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch["next"].flatten());
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1});
  }

 private:
  nn::TransformerEncoder encoder_{nullptr};
  nn::TransformerDecoder decoder_{nullptr};
  torch::nn::Embedding words_{nullptr};
};

struct ExpertChainOptions {
  double balance = 0;  ///< factor of the balance loss
};

/// Two mixtures of experts in a chain that a pipeline cuts.
class ExpertChain : public Module {
 public:
  using Options = ExpertChainOptions;
  explicit ExpertChain(const Options& options) : balance_(options.balance) {
    Sequential net(torch::nn::Embedding(kWords, kModelWidth));
    for (int i = 0; i < 2; ++i)
      net->push_back(nn::MixtureOfExperts(
          nn::MixtureOfExpertsOptions{.width = kModelWidth, .hidden = 12, .experts = 4, .shared_hidden = 8}));
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kModelWidth, kWords).bias(false)));
    net_ = register_module("net", net);
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor logits = net_(batch["tokens"]);
    at::Tensor loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch["next"].flatten());
    if (balance_ > 0) loss = loss + balance_ * nn::balance_loss(*this);
    return loss;
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1});
  }

 private:
  double balance_;
  Sequential net_{nullptr};
};

/// The weights after two epochs of 16 rows, eight a step over all ranks.
template <class M, class Argument>
std::vector<at::Tensor> train(const std::string& strategy, int64_t ranks, Argument argument,
                              const std::string& checkpointed = "") {
  seed_everything(7);
  const auto module = make<M>({argument});
  const at::Tensor tokens = torch::arange(16 * 9).mul(7).remainder(kWords).view({16, 9});
  const auto dataset = std::make_shared<data::TensorDataset>(
      Batch{{"tokens", tokens}, {"next", tokens.add(3).mul(5).remainder(kWords)}});
  TrainerOptions options = testing::quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = ranks;
  if (!checkpointed.empty()) options.activation_checkpointing.units = {checkpointed};
  const bool divides_rows = strategy.find("sharded") != std::string::npos;
  Trainer(options).fit(module, DataLoader(dataset, {.batch_size = divides_rows ? 8 / ranks : 8}));
  return testing::weights(*module);
}

void expect_equal(const std::vector<at::Tensor>& result, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(result.size(), expected.size());
  for (size_t i = 0; i < result.size(); ++i) EXPECT_LT((result[i] - expected[i]).abs().max().item<double>(), 1e-5) << i;
}

TEST(TransformerStrategies, MixturesOfExpertsAreThoseOfOneDevice) {
  const auto expected = train<ExpertChain>("single_device", 1, 0.0);
  for (const auto& [strategy, ranks] : {std::pair("{name: sharded_threads, stage: 3}", 2),
                                        {"{name: sharded_threads, stage: 1}", 2},
                                        {"{pipeline: {size: 2, micro_batches: 2}, start_method: thread}", 2},
                                        {"{tensor: 2, start_method: thread}", 2}}) {
    SCOPED_TRACE(strategy);
    expect_equal(train<ExpertChain>(strategy, ranks, 0.0), expected);
  }
  const auto balanced = train<ExpertChain>("single_device", 1, 0.1);
  EXPECT_GT((balanced[1] - expected[1]).abs().max().item<double>(), 1e-4);
  expect_equal(train<ExpertChain>("single_device", 1, 0.1, "MixtureOfExperts"), balanced);
}

TEST(TransformerStrategies, ShardedChainsAreThoseOfOneDevice) {
  for (const bool with_documents : {false, true})
    expect_equal(train<ChainModule>("{name: sharded_threads, stage: 3}", 2, with_documents),
                 train<ChainModule>("single_device", 1, with_documents));
}

TEST(TransformerStrategies, ShardedStacksAreThoseOfOneDevice) {
  expect_equal(train<StackModule>("{name: sharded_threads, stage: 3}", 2, 0.0),
               train<StackModule>("single_device", 1, 0.0));
}

TEST(TransformerStrategies, PipelinedChainsAreThoseOfOneDevice) {
  for (const bool with_documents : {false, true})
    for (const std::string checkpoint : {"never", "always"})
      expect_equal(train<ChainModule>("{name: pipeline_threads, micro_batches: 4, checkpoint: " + checkpoint + "}", 2,
                                      with_documents),
                   train<ChainModule>("single_device", 1, with_documents));
}

TEST(TransformerStrategies, CheckpointedActivationsChangeNothing) {
  const auto expected = train<ChainModule>("single_device", 1, true);
  EXPECT_TRUE(testing::identical(train<ChainModule>("single_device", 1, true, "DecoderLayer"), expected));
  const auto with_dropout = train<StackModule>("single_device", 1, 0.2);
  EXPECT_TRUE(testing::identical(train<StackModule>("single_device", 1, 0.2, "TransformerBlock"), with_dropout));
  EXPECT_FALSE(testing::identical(train<StackModule>("single_device", 1, 0.0), with_dropout));
}

}  // namespace
}  // namespace levin
