// The module of a language model's folder under the strategies that divide a model.

#include "../support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/models/causal_lm.h>
#include <levin/core/models/generate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWords = 19;

const std::map<std::string, std::string> kFamilies{
    {"llama", R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2})"},
    {"tied", R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
      "num_hidden_layers": 3, "num_attention_heads": 4, "tie_word_embeddings": true, "initializer_range": 0.2})"},
    {"gemma",
     R"({"model_type": "gemma3_text", "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 3,
      "sliding_window_pattern": 2, "initializer_range": 0.2})"},
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 19, "n_positions": 16, "n_embd": 16, "n_layer": 3, "n_head": 4,
      "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0, "initializer_range": 0.2})"}};

class CausalLmTest : public ::testing::Test {
 protected:
  std::string folder_of(const std::string& family) const {
    const std::string folder = testing::fresh_folder("causal_lm_" + family);
    std::ofstream(folder + "/config.json") << kFamilies.at(family);
    return folder;
  }
};

struct LmRun {
  std::vector<at::Tensor> weights;
  double val_loss = 0;
};

/// Two epochs of 16 rows, eight a step over all ranks, of which a part does not count. By SGD, since gradients of
/// biases of keys are rounding alone, which Adam makes as large as any.
LmRun run_lm(const std::string& folder, const std::string& strategy, int64_t ranks, bool with_documents,
             const std::function<void(TrainerOptions&)>& change = {}) {
  seed_everything(7);
  const auto module = make<CausalLm>({.path = folder, .pretrained = false});
  const at::Tensor tokens = at::arange(16 * 9).mul(7).remainder(kWords).view({16, 9});
  at::Tensor next = tokens.add(3).mul(5).remainder(kWords);
  next.narrow(0, 3, 1).fill_(-100);
  next.narrow(0, 9, 4).narrow(1, 0, 5).fill_(-100);
  Batch rows{{"tokens", tokens}, {"next", next}};
  if (with_documents) rows.set("positions", at::arange(9).remainder(4).expand({16, 9}).contiguous());
  const auto dataset = std::make_shared<data::TensorDataset>(rows);
  TrainerOptions options = testing::quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = ranks;
  options.optimizer =
      parse_options<TrainerOptions>(Config::parse("optimizer: {name: sgd, lr: 0.2, momentum: 0.9}", {}), "").optimizer;
  if (change) change(options);
  const bool divides_rows = strategy.find("sharded") != std::string::npos;
  const DataLoader loader(dataset, {.batch_size = divides_rows ? 8 / ranks : 8});
  Trainer trainer(options);
  trainer.fit(module, loader, loader);
  return {testing::weights(*module), trainer.callback_metrics().at("val_loss")};
}

void expect_run(const LmRun& result, const LmRun& expected) {
  ASSERT_EQ(result.weights.size(), expected.weights.size());
  for (size_t i = 0; i < result.weights.size(); ++i)
    EXPECT_LT((result.weights[i] - expected.weights[i]).abs().max().item<double>(), 1e-5) << i;
  EXPECT_NEAR(result.val_loss, expected.val_loss, 1e-5);
}

TEST_F(CausalLmTest, TrainsAlikeUnderAllStrategies) {
  for (const auto& [family, _] : kFamilies)
    for (const bool with_documents : {false, true}) {
      SCOPED_TRACE(family + (with_documents ? " with documents" : ""));
      const std::string folder = folder_of(family);
      const LmRun expected = run_lm(folder, "single_device", 1, with_documents);
      for (const int stage : {1, 3})
        expect_run(run_lm(folder, "{name: sharded_threads, stage: " + std::to_string(stage) + "}", 2, with_documents),
                   expected);
      expect_run(run_lm(folder, "{name: pipeline_threads, micro_batches: 4}", 2, with_documents), expected);
    }
}

TEST_F(CausalLmTest, RecordedAndCheckpointedStepsAreOrdinaryOnes) {
  const auto required = parse_options<TrainerOptions>(Config::parse("graph: required", {}), "").graph;
  for (const std::string family : {"gemma", "gpt2"}) {
    SCOPED_TRACE(family);
    const std::string folder = folder_of(family);
    const auto run = [&](const std::function<void(TrainerOptions&)>& change) {
      return run_lm(folder, "single_device", 1, true, [&](TrainerOptions& options) {
        options.max_epochs = 4;
        change(options);
      });
    };
    const LmRun expected = run([](TrainerOptions&) {});
    const LmRun recorded = run([&](TrainerOptions& options) { options.graph = required; });
    EXPECT_TRUE(testing::identical(recorded.weights, expected.weights));
    const LmRun checkpointed =
        run([](TrainerOptions& options) { options.activation_checkpointing.units = {"DecoderLayer"}; });
    EXPECT_TRUE(testing::identical(checkpointed.weights, expected.weights));
  }
}

TEST_F(CausalLmTest, StartsFromTheFoldersWeightsAndLeavesEmptyBatchesOut) {
  const std::string folder = folder_of("tied");
  seed_everything(3);
  const auto random = make<CausalLm>({.path = folder + "/config.json", .pretrained = false});
  random->save_folder(folder + "/saved");
  const auto module = make<CausalLm>({.path = folder + "/saved"});
  EXPECT_TRUE(testing::identical(testing::weights(*module), testing::weights(*random)));

  const at::Tensor tokens = at::arange(4 * 5).remainder(kWords).view({4, 5});
  const Batch rows{{"tokens", tokens}, {"next", at::full_like(tokens, -100)}};
  TrainerOptions options = testing::quiet(1);
  options.optimizer = parse_options<TrainerOptions>(Config::parse("optimizer: {name: sgd, lr: 1}", {}), "").optimizer;
  options.strategy = Spec<Strategy>(Config::parse("{name: sharded_threads, stage: 3}", {}));
  options.devices = 2;
  Trainer(options).fit(module, DataLoader(std::make_shared<data::TensorDataset>(rows), {.batch_size = 2}));
  EXPECT_TRUE(testing::identical(testing::weights(*module), testing::weights(*random)));
  EXPECT_EQ(module->predict_step(rows, 0)["logits"].sizes(), (at::IntArrayRef{4, 5, kWords}));
}

/// Predicts what follows each row.
class Continuing : public CausalLm {
 public:
  using CausalLm::CausalLm;
  Batch predict_step(const Batch& batch, int64_t /*batch_idx*/) override {
    const at::Tensor rows = batch["tokens"];
    std::vector<std::vector<int64_t>> prompts;
    for (int64_t row = 0; row < rows.size(0); ++row)
      prompts.emplace_back(rows[row].data_ptr<int64_t>(), rows[row].data_ptr<int64_t>() + rows.size(1));
    at::Tensor ends = at::full({rows.size(0), 10}, -1, at::kLong);
    const auto texts = generate(
        model(), prompts, {.max_new_tokens = 10, .end_tokens = std::vector<int64_t>{1, 2, 3}, .keep_in_step = true});
    for (size_t row = 0; row < texts.size(); ++row)
      for (size_t i = 0; i < texts[row].tokens.size(); ++i)
        ends[static_cast<int64_t>(row)][static_cast<int64_t>(i)] = texts[row].tokens[i];
    return {{"ends", ends}};
  }
};

TEST_F(CausalLmTest, GeneratesUnderStrategiesThatDivideTheModel) {
  for (const std::string family : {"llama", "gemma"}) {
    SCOPED_TRACE(family);
    const std::string folder = folder_of(family);
    const auto dataset = std::make_shared<data::TensorDataset>(
        Batch{{"tokens", at::arange(8 * 5).mul(7).remainder(kWords).view({8, 5})}});
    const auto predicted = [&](const std::string& strategy, int64_t ranks) {
      seed_everything(7);
      TrainerOptions options = testing::quiet(1);
      options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
      options.devices = ranks;
      const auto batches = Trainer(options).predict(make<Continuing>({.path = folder, .pretrained = false}),
                                                    DataLoaders{DataLoader(dataset, {.batch_size = 2})});
      std::vector<at::Tensor> ends;
      for (const Batch& batch : batches.at(0)) ends.push_back(batch["ends"]);
      return at::cat(ends);
    };
    const at::Tensor expected = predicted("single_device", 1);
    EXPECT_EQ(expected.size(0), 8);
    EXPECT_TRUE(expected.eq(-1).any().item<bool>()) << "some end early";
    EXPECT_TRUE(predicted("{name: sharded_threads, stage: 3}", 2).equal(expected));
  }
}

TEST_F(CausalLmTest, SaysWhatIsMissing) {
  EXPECT_THAT([] { make<CausalLm>(); }, ::testing::ThrowsMessage<ConfigError>(HasSubstr("model.path is not set")));
  const std::string folder = folder_of("llama");
  EXPECT_THAT([&] { make<CausalLm>({.path = folder + "/none"}); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("there is no file")));
  EXPECT_THROW(make<CausalLm>({.path = folder}), Error) << "no weights";
}

}  // namespace
}  // namespace levin
