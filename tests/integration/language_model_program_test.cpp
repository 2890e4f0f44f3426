// The example with language models: from a folder to a sample, from a text to a small model that samples, and back to
// Python.

#include "../data/small_tokenizer.h"
#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/torch_python.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using ::testing::StartsWith;

const std::string kLanguageModel = testing::build_path("bin/language_model");

std::string sentences() {
  const std::vector<std::string> who = {"the quick fox", "a lazy dog", "my vexed wizard", "one jumping bird"};
  const std::vector<std::string> what = {" sees ", " hears ", " follows ", " keeps ", " finds "};
  std::string text;
  for (size_t i = 0; i < 400; ++i) text += who[i % 4] + what[i % 5] + who[i / 3 % 4] + ".\n";
  return text;
}

class LanguageModelProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kLanguageModel)) GTEST_SKIP() << "there is no " << kLanguageModel << "; hint: build the examples";
    testing::write_text(folder_.path("text.txt"), sentences());
    testing::write_text(folder_.path("prompt.txt"), "the quick");
  }

  ProgramResult run(const std::string& command, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {kLanguageModel, command, "--trainer.accelerator=cpu",
                                      "--trainer.default_root_dir=" + folder_.path("runs")};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_program(words, {.environment = {{"OMP_NUM_THREADS", "1"}}, .folder = folder_.path()});
  }
  ProgramResult fit(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"--config",
                                      testing::source_path("examples/language_model/small.yaml"),
                                      "--data.path=" + folder_.path("text.txt"),
                                      "--data.tokenizer=" + folder_.path("small/tokenizer.json"),
                                      "--model.path=" + folder_.path("small"),
                                      "--data.length=32",
                                      "--optimizer.lr=0.01",
                                      "--trainer.max_steps=200",
                                      "--scheduler.warmup_steps=5",
                                      "--trainer.val_check_interval=1.0"};
    words.insert(words.end(), more.begin(), more.end());
    return run("fit", words);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(LanguageModelProgram, TrainsOnATextAndSamplesUnderAnyStrategy) {
  fs::create_directories(folder_.path("small"));
  testing::write_text(folder_.path("small/tokenizer.json"), testing::small_tokenizer().dump());
  testing::write_text(folder_.path("small/config.json"),
                      R"({"model_type": "llama", "vocab_size": 259, "hidden_size": 32, "intermediate_size": 64,
                          "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": true})");
  const std::vector<std::string> of_model = {"--model.path=" + folder_.path("small"), "--model.pretrained=false",
                                             "--prompt=the quick", "--max_new_tokens=30", "--ckpt=best"};
  const std::vector<std::vector<std::string>> strategies = {
      {}, {"--trainer.strategy={name: sharded_threads, stage: 3}", "--trainer.devices=2", "--data.batch_size=8"}};
  for (const auto& strategy : strategies) {
    const ProgramResult fitted = fit(strategy);
    ASSERT_EQ(fitted.status, 0) << fitted.err;
    const ProgramResult sampled = run("generate", of_model);
    EXPECT_EQ(sampled.status, 0) << sampled.err;
    EXPECT_THAT(sampled.out, StartsWith("the quick fox"));
    // The run's own configuration says what the model is; its strategy needs no ranks here.
    std::vector<std::string> with_config = of_model;
    with_config.insert(with_config.end(), strategy.begin(), strategy.end());
    EXPECT_EQ(run("generate", with_config).out, sampled.out);
  }
}

/// Pretraining from scratch, as docs/fine-tuning.md has it.
class PretrainingProgram : public LanguageModelProgram {
 protected:
  void SetUp() override {
    LanguageModelProgram::SetUp();
    fs::create_directories(folder_.path("small"));
    fs::create_directories(folder_.path("web"));
    testing::write_text(folder_.path("small/tokenizer.json"), testing::small_tokenizer().dump());
    testing::write_text(folder_.path("small/tokenizer_config.json"), R"({"eos_token": "<end>"})");
    testing::write_text(folder_.path("small/config.json"),
                        R"({"model_type": "llama", "vocab_size": 260, "hidden_size": 32, "intermediate_size": 64,
                            "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": true})");
    const std::string text = sentences();
    for (const char* name : {"web/0.jsonl", "web/1.jsonl", "books.jsonl"}) {
      std::string lines;
      // Documents of 40 to 340 letters, which are not the same in any two files.
      for (size_t i = 0; i < 60; ++i)
        lines += nlohmann::json{{"text", name + text.substr(i * 97, 40 + i * 37 % 300)}}.dump() + "\n";
      testing::write_text(folder_.path(name), lines);
    }
    testing::write_text(folder_.path("pretraining.yaml"), R"(
seed: 5
model: {name: causal_lm, path: small/config.json, pretrained: false}
data:
  name: blend
  mix: {web: 0.7, books: 0.3}
  parts:
    web: {name: instruction, files: [web/*.jsonl], tokenizer: small, context: 64, long_documents: split, cache_folder: cache}
    books: {name: instruction, files: [books.jsonl], tokenizer: small, context: 64, long_documents: split, cache_folder: cache}
  global_batch_size: 4
optimizer: {name: adamw, lr: 0.003}
trainer:
  max_steps: 60
  gradient_clip_val: 1.0
  log_every_n_steps: 1
  callbacks: [model_checkpoint: {every_n_train_steps: 3, save_last: true}]
  logger: csv
)");
  }

  std::vector<std::string> words(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {kLanguageModel,
                                    "fit",
                                    "--config",
                                    "pretraining.yaml",
                                    "--ckpt=auto",
                                    "--trainer.accelerator=cpu",
                                    "--trainer.run_dir=" + name};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void pretrain(const std::string& name, const std::vector<std::string>& more) const {
    const ProgramResult result = testing::run_program(words(name, more), options());
    ASSERT_EQ(result.status, 0) << result.err;
  }
  testing::ProgramOptions options() const {
    return {.environment = {{"OMP_NUM_THREADS", "1"}}, .folder = folder_.path()};
  }
  std::string file(const std::string& name) const {
    const std::string text = testing::read_text(folder_.path(name));
    EXPECT_FALSE(text.empty()) << name;
    return text;
  }
  /// What `levin-checkpoint diff` says of the newest checkpoints of two runs.
  std::string differences(const std::string& one, const std::string& other) const {
    const auto newest = [&](const std::string& run) { return folder_.path(run + "/checkpoints/last"); };
    const ProgramResult result = testing::run_program(
        {testing::build_path("bin/levin-checkpoint"), "diff", newest(one), newest(other)}, options());
    EXPECT_THAT(result.out, HasSubstr("same: ")) << result.err;
    return result.out;
  }
};

TEST_F(PretrainingProgram, OnABlendThatIsKilledEndsWithTheSameBits) {
  for (const std::vector<std::string>& strategy :
       {std::vector<std::string>{}, {"--trainer.strategy={shard: 2}", "--trainer.devices=2"}}) {
    SCOPED_TRACE(strategy.empty() ? "one device" : strategy.front());
    const std::string name = strategy.empty() ? "alone" : "shards";
    pretrain(name, strategy);
    {
      testing::RunningProgram program(words(name + "_killed", strategy), options());
      ASSERT_TRUE(program.wait_until([&] { return fs::exists(folder_.path(name + "_killed/checkpoints/last")); }));
      program.send(SIGKILL);
      program.wait();
    }
    pretrain(name + "_killed", strategy);
    const std::string differing = differences(name, name + "_killed");
    for (const char* part : {"model/", "optimizers/", "ranks/", "data/"})
      EXPECT_THAT(differing, Not(HasSubstr(std::string("\n") + part)));
    EXPECT_EQ(file(name + "/metrics.csv"), file(name + "_killed/metrics.csv"));
  }
}

TEST_F(PretrainingProgram, OnABlendLearnsAlikeOnAnyMesh) {
  pretrain("alone", {});
  for (const char* mesh : {"shard", "tensor"}) {
    SCOPED_TRACE(mesh);
    pretrain(mesh, {std::string("--trainer.strategy={") + mesh + ": 2}", "--trainer.devices=2"});
    const std::string differing = differences("alone", mesh);
    const std::regex pattern("model/(\\S+): max abs difference (\\S+)");
    size_t count = 0;
    for (std::sregex_iterator at(differing.begin(), differing.end(), pattern), end; at != end; ++at, ++count)
      EXPECT_LT(std::stod((*at)[2]), 2e-5) << (*at)[1];
    EXPECT_GT(count, 5u) << differing;
  }
}

TEST_F(LanguageModelProgram, EveryMistakeIsOneMessage) {
  const auto error_of = [&](const std::vector<std::string>& words) {
    const ProgramResult result = run("generate", words);
    EXPECT_NE(result.status, 0);
    return result.err;
  };
  EXPECT_THAT(error_of({"--prompt=a"}), HasSubstr("model.path is not set"));
  EXPECT_THAT(error_of({"--prompt=a", "--model.path=none"}), HasSubstr("there is no file 'none'"));
  EXPECT_THAT(error_of({"--promt=a"}), HasSubstr("unknown key 'promt'; did you mean 'generate.prompt'?"));
}

/// With the packages of Python.
class LanguageModelProgramReal : public LanguageModelProgram {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("transformers"); !missing.empty()) GTEST_SKIP() << missing;
    packages_ = testing::torch_packages();
    if (packages_.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
    LanguageModelProgram::SetUp();
  }
  std::string python(const std::vector<std::string>& words) const {
    std::vector<std::string> all{testing::test_python(), "-W", "ignore"};
    all.insert(all.end(), words.begin(), words.end());
    const auto result =
        testing::run_program(all, {.environment = {{"PYTHONPATH", packages_}, {"HF_HUB_OFFLINE", "1"}}});
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    return result.out;
  }
  std::string script(const std::string& command) const {
    return python({testing::source_path("tests/integration/language_model.py"), command, folder_.path()});
  }

 private:
  std::string packages_;
};

TEST_F(LanguageModelProgramReal, AFolderGivesTheSampleThatTransformersGives) {
  script("make");
  const ProgramResult sampled =
      run("generate", {"--model.path=" + folder_.path("model"), "--prompt=the quick", "--max_new_tokens=40"});
  EXPECT_EQ(sampled.status, 0) << sampled.err;
  EXPECT_EQ(sampled.out, script("generate"));
}

TEST_F(LanguageModelProgramReal, ATextBecomesAModelThatSamplesAndGoesBackToPython) {
  python({testing::source_path("examples/language_model/new_model.py"), folder_.path("text.txt"), folder_.path("small"),
          "--vocabulary=320", "--width=48", "--layers=2"});
  const ProgramResult fitted = fit({});
  ASSERT_EQ(fitted.status, 0) << fitted.err;
  EXPECT_LT(value_of("val_loss", fitted.out), 1.5) << fitted.out;
  const std::vector<std::string> of_model = {"--model.path=" + folder_.path("small"), "--model.pretrained=false",
                                             "--ckpt=best"};
  std::vector<std::string> words = of_model;
  words.insert(words.end(), {"--prompt=the quick", "--max_new_tokens=40"});
  const ProgramResult sampled = run("generate", words);
  EXPECT_EQ(sampled.status, 0) << sampled.err;
  EXPECT_THAT(sampled.out, StartsWith("the quick fox"));

  words = of_model;
  words.push_back("--folder=" + folder_.path("trained"));
  const ProgramResult saved = run("save", words);
  ASSERT_EQ(saved.status, 0) << saved.err;
  EXPECT_EQ(script("check"), sampled.out);
  const ProgramResult again =
      run("generate", {"--model.path=" + folder_.path("small"), "--model.pretrained=false",
                       "--ckpt=" + folder_.path("trained"), "--prompt=the quick", "--max_new_tokens=40"});
  EXPECT_EQ(again.out, sampled.out);
}

}  // namespace
}  // namespace levin
