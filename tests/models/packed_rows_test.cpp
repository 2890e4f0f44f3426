// Language models on packed rows: loss and gradients of the documents one by one, and runs that go on exactly.

#include "../data/small_tokenizer.h"
#include "../support/tiny.h"

#include <levin/core/base/seed.h>
#include <levin/core/data/blended_data.h>
#include <levin/core/data/generator.h>
#include <levin/core/data/instruction_data.h>
#include <levin/core/models/causal_lm.h>
#include <levin/core/nn/transformer/language_model_config.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// A folder with configurations of small models, a tokenizer, and files of texts.
class PackedRowsTest : public ::testing::Test {
 protected:
  PackedRowsTest() {
    const auto write = [&](const std::string& name, const std::string& text) {
      std::ofstream(folder_ + "/" + name) << text;
    };
    const std::string sizes = R"("vocab_size": 259, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
      "num_attention_heads": 4, "initializer_range": 0.2)";
    write("llama.json", R"({"model_type": "llama", "num_key_value_heads": 2, )" + sizes + "}");
    write("gemma.json", R"({"model_type": "gemma3_text", "head_dim": 4, "num_key_value_heads": 2, "sliding_window": 5,
      "sliding_window_pattern": 2, )" +
                            sizes + "}");
    write("gpt2.json", R"({"model_type": "gpt2", "vocab_size": 259, "n_positions": 64, "n_embd": 16, "n_layer": 2,
      "n_head": 4, "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0, "initializer_range": 0.2})");
    write("tokenizer.json", testing::small_tokenizer().dump());
    write("tokenizer_config.json", R"({"eos_token": "<end>"})");
    data::Generator random(3, 0);
    for (const char* name : {"a.jsonl", "b.jsonl"}) {
      std::string rows;
      for (int i = 0; i < 40; ++i) {
        std::string text;
        for (int64_t j = random.below(25); j >= 0; --j) text += static_cast<char>('a' + random.below(26));
        rows +=
            nlohmann::json{{"text", text}, {"prompt", text.substr(0, text.size() / 2)}, {"answer", text}}.dump() + "\n";
      }
      write(name, rows);
    }
  }
  data::InstructionDataOptions options(const std::string& file) const {
    return {.files = {folder_ + "/" + file},
            .tokenizer = folder_,
            .chat_template = "none",
            .prompt = "prompt",
            .answer = "answer",
            .context = 48,
            .cache_folder = folder_ + "/cache",
            .batch_size = 100,
            .shuffle = false};
  }
  static Batch only_batch(const data::InstructionDataOptions& options) {
    const auto data = make<data::InstructionData>(options);
    data->prepare_data();
    data->setup(Stage::kFit);
    const DataLoader loader = data->train_dataloader();
    auto pass = loader.pass({});
    Batch batch = *pass.next();
    EXPECT_FALSE(pass.next());
    return batch;
  }

  const std::string folder_ = testing::fresh_folder("packed_rows");
};

/// The sum of the losses of all tokens, and its gradients.
std::pair<double, std::vector<at::Tensor>> sums_of(nn::CausalLanguageModel& model, const Batch& batch) {
  model->zero_grad();
  const at::Tensor count = batch["next"].ne(-100).sum();
  const at::Tensor loss = model->loss(batch["tokens"], batch["next"], batch["positions"]) * count;
  loss.backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad().clone());
  return {loss.item<double>(), gradients};
}

TEST_F(PackedRowsTest, LossAndGradientsAreThoseOfTheDocuments) {
  auto packed = options("a.jsonl");
  auto padded = packed;
  padded.pack = false;
  const Batch rows = only_batch(packed);
  const Batch documents = only_batch(padded);
  ASSERT_EQ(documents.size(), 40);
  ASSERT_LT(rows.size(), 40);
  EXPECT_EQ(rows["next"].ne(-100).sum().item<int64_t>(), documents["next"].ne(-100).sum().item<int64_t>());
  for (const char* family : {"llama", "gemma", "gpt2"}) {
    SCOPED_TRACE(family);
    seed_everything(1);
    nn::CausalLanguageModel model(nn::language_model_options(folder_ + "/" + family + ".json"));
    model->to(at::kDouble);
    const auto [loss, gradients] = sums_of(model, rows);
    double sum = 0;
    std::vector<at::Tensor> summed;
    for (int64_t i = 0; i < documents.size(); ++i) {
      // One by one, without the padding.
      Batch one = documents.slice(i, i + 1);
      const auto length = one["positions"].ge(0).sum().item<int64_t>();
      for (auto& [name, tensor] : one.items()) tensor = tensor.narrow(1, 0, length);
      const auto [own, own_gradients] = sums_of(model, one);
      sum += own;
      if (i == 0) summed = own_gradients;
      for (size_t j = 0; i > 0 && j < own_gradients.size(); ++j) summed[j] += own_gradients[j];
    }
    EXPECT_NEAR(loss, sum, 1e-6);
    for (size_t j = 0; j < summed.size(); ++j)
      EXPECT_LT((gradients[j] - summed[j]).abs().max().item<double>(), 1e-6) << j;
  }
}

TEST_F(PackedRowsTest, RunsOnABlendGoOnExactly) {
  const std::string checkpoint = folder_ + "/checkpoint";
  const auto fit = [&](const std::string& strategy, int64_t ranks, int64_t workers, int64_t save_at,
                       const std::string& resume) {
    seed_everything(11);
    auto a = options("a.jsonl");
    auto b = options("b.jsonl");
    a.shuffle = b.shuffle = true;
    const auto part = [](const data::InstructionDataOptions& part_options) {
      return Spec<DataModule>(std::static_pointer_cast<DataModule>(make<data::InstructionData>(part_options)));
    };
    auto blend = make<data::BlendedData>({.parts = {{"a", part(a)}, {"b", part(b)}},
                                          .mix = {{"a", 0.7}, {"b", 0.3}},
                                          .examples = 24,
                                          .global_batch_size = 4,
                                          .num_workers = workers});
    auto module = make<CausalLm>({.path = folder_ + "/llama.json", .pretrained = false});
    TrainerOptions options = testing::quiet(2);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = ranks;
    options.optimizer =
        parse_options<TrainerOptions>(Config::parse("optimizer: {name: sgd, lr: 0.2, momentum: 0.9}", {}), "")
            .optimizer;
    if (save_at > 0) options.max_steps = save_at;
    Trainer trainer(options);
    if (resume.empty())
      trainer.fit(module, blend);
    else
      trainer.fit(module, blend, resume);
    if (save_at > 0) trainer.save_checkpoint(checkpoint);
    return testing::weights(*module);
  };
  const auto expected = fit("single_device", 1, 0, 0, "");
  fit("single_device", 1, 2, 8, "");  // inside of the second epoch
  EXPECT_TRUE(testing::identical(fit("single_device", 1, 0, 0, checkpoint), expected));
  const auto on_two = fit("{name: sharded_threads, stage: 2}", 2, 1, 0, checkpoint);
  ASSERT_EQ(on_two.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT((on_two[i] - expected[i]).abs().max().item<double>(), 1e-5) << i;
}

}  // namespace
}  // namespace levin
