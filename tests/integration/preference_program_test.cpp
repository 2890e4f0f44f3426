// The example of direct preference optimization: its loss is that of the definition, computed by transformers.

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

using testing::ProgramResult;

TEST(PreferenceProgramReal, HasTheLossOfTheDefinition) {
  const std::string program = testing::build_path("bin/preference");
  const std::string language_model = testing::build_path("bin/language_model");
  for (const std::string& needed : {program, language_model})
    if (!std::filesystem::exists(needed)) GTEST_SKIP() << "there is no " << needed << "; hint: build the examples";
  if (const std::string missing = testing::missing_module("transformers"); !missing.empty()) GTEST_SKIP() << missing;
  const std::string packages = testing::torch_packages();
  if (packages.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";

  const testing::TemporaryFolder folder;
  const auto pairs = [](const std::vector<std::string>& first) {
    std::string lines;
    for (const std::string& chosen : first)
      for (const char* rejected : {"A", "OOO", "IA", "KYKY"})
        lines += R"({"prompt": "Name: ", "chosen": ")" + chosen + R"(", "rejected": ")" + rejected + "\"}\n";
    return lines;
  };
  testing::write_text(folder.path("train.jsonl"), pairs({"BEL", "MAX", "LUNA", "RO"}));
  testing::write_text(folder.path("val.jsonl"), pairs({"SAM", "NELLY"}));
  testing::write_text(folder.path("tokenizer.json"), testing::small_tokenizer().dump());
  const auto python = [&](const std::string& command) {
    const ProgramResult result =
        testing::run_program({testing::test_python(), "-W", "ignore",
                              testing::source_path("tests/integration/preference.py"), command, folder.path()},
                             {.environment = {{"PYTHONPATH", packages}, {"HF_HUB_OFFLINE", "1"}}});
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    return result.out;
  };
  const auto run = [&](const std::string& of, const std::string& command, const std::vector<std::string>& more) {
    std::vector<std::string> words = {of,
                                      command,
                                      "--model.path=" + folder.path("model"),
                                      "--adapters={name: lora, rank: 4, alpha: 8, targets: ['*_proj']}",
                                      "--trainer.accelerator=cpu",
                                      "--trainer.default_root_dir=" + folder.path("runs")};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result =
        testing::run_program(words, {.environment = {{"OMP_NUM_THREADS", "1"}}, .folder = folder.path()});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };

  python("make");
  const std::vector<std::string> data = {
      "--data.files=[" + folder.path("train.jsonl") + "]", "--data.val_files=[" + folder.path("val.jsonl") + "]",
      "--data.columns={prompt: text, chosen: text, rejected: text}", "--data.batch_size=4", "--model.beta=0.5"};
  std::vector<std::string> words = data;
  words.insert(words.end(), {"--optimizer={name: adamw, lr: 0.01}", "--trainer.max_epochs=3", "--trainer.logger=csv",
                             "--trainer.callbacks=[model_checkpoint: {save_last: true}]"});
  run(program, "fit", words);
  words = data;
  words.push_back("--ckpt=last");
  const std::string validated = run(program, "validate", words);
  run(language_model, "save", {"--ckpt=last", "--folder=" + folder.path("trained")});
  const std::string expected = python("check");
  EXPECT_NEAR(value_of("val_loss", validated), value_of("val_loss", expected), 2e-4) << validated << expected;
  EXPECT_NEAR(value_of("val_accuracy", validated), value_of("val_accuracy", expected), 1e-3) << validated << expected;
  EXPECT_LT(value_of("val_loss", expected), 0.6) << "it is to have learned something";
}

}  // namespace
}  // namespace levin
