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

#include <filesystem>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
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
