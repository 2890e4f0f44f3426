// The command generate: what it prints, and where its weights and its tokenizer come from.

#include "../data/small_tokenizer.h"
#include "../support/run_program.h"
#include "../support/tiny.h"

#include <levin/core/base/seed.h>
#include <levin/core/base/utf8.h>
#include <levin/core/cli/cli.h>
#include <levin/core/cli/generate_command.h>
#include <levin/core/data/token_text.h>
#include <levin/core/data/tokens/tokenizer.h>
#include <levin/core/models/causal_lm.h>
#include <levin/core/models/generate.h>
#include <levin/core/models/language_model_files.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

struct CommandOutcome {
  int status = 0;
  std::string out = {};
  std::string err = {};
};

class GenerateCommand : public ::testing::Test {
 protected:
  GenerateCommand() {
    fs::create_directories(model_);
    std::ofstream(model_ + "/tokenizer.json") << testing::small_tokenizer();
    std::ofstream(model_ + "/config.json")
        << R"({"model_type": "llama", "vocab_size": 260, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2})";
    std::ofstream text(root_ + "/text.txt");
    for (int i = 0; i < 300; ++i) text << "the end of the other path; ";
  }

  CommandOutcome run(const std::string& command, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"program",
                                   command,
                                   "--seed=1",
                                   "--model.path=" + model_,
                                   "--model.pretrained=false",
                                   "--data.length=32",
                                   "--data.batch_size=8",
                                   "--optimizer={name: adamw, lr: 0.01}",
                                   "--trainer.accelerator=cpu",
                                   "--trainer.default_root_dir=" + root_ + "/runs",
                                   "--trainer.logger=false",
                                   "--trainer.enable_progress_bar=false",
                                   "--trainer.enable_model_summary=false",
                                   "--trainer.callbacks=[model_checkpoint: {monitor: val_loss, save_last: true}]"};
    if (command != "generate") {
      words.push_back("--data.path=" + root_ + "/text.txt");
      words.push_back("--data.tokenizer=" + model_ + "/tokenizer.json");
    }
    words.insert(words.end(), more.begin(), more.end());
    Cli cli;
    cli.modules.add<CausalLm>("causal_lm", "a language model");
    cli.data.add<data::TokenText>("tokens", "a text");
    add_generate_command(cli);
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    CommandOutcome outcome;
    outcome.status = cli.run(static_cast<int>(argv.size()), argv.data());
    outcome.out = ::testing::internal::GetCapturedStdout();
    outcome.err = ::testing::internal::GetCapturedStderr();
    return outcome;
  }

  const std::string root_ = testing::fresh_folder("generate_command");
  const std::string model_ = root_ + "/model";
};

TEST_F(GenerateCommand, ContinuesAPromptWithTheWeightsOfARun) {
  ASSERT_EQ(run("fit", {"--trainer.max_steps=30", "--trainer.max_epochs=100"}).status, 0);
  // Trained in two steps: the second goes on from the first.
  const CommandOutcome on = run("fit", {"--trainer.max_steps=60", "--trainer.max_epochs=100", "--ckpt=last"});
  ASSERT_EQ(on.status, 0) << on.err;
  for (const std::string ckpt : {"best", "last"}) {
    const CommandOutcome best = run("generate", {"--ckpt", ckpt, "--prompt", "the end of", "--max_new_tokens=40"});
    EXPECT_EQ(best.status, 0) << best.err;
    EXPECT_THAT(best.out, HasSubstr("the end of the other path; the end of")) << ckpt;
    EXPECT_THAT(best.out, ::testing::EndsWith("\n"));
    EXPECT_THAT(best.err, Not(HasSubstr("never trained")));
  }
  const CommandOutcome stopped =
      run("generate", {"--ckpt=best", "--prompt=the end of", "--stop=[' path']", "--generate.max_new_tokens=40"});
  EXPECT_EQ(stopped.out, "the end of the other\n");
  const CommandOutcome beams =
      run("generate", {"--ckpt=best", "--prompt=the end of", "--beams=3", "--max_new_tokens=8"});
  EXPECT_EQ(beams.status, 0) << beams.err;
  EXPECT_THAT(beams.out, HasSubstr("the end of the"));
  const auto sampled = [&](const std::string& seed) {
    const CommandOutcome outcome = run("generate", {"--ckpt=best", "--prompt=Q: {a}", "--temperature=1.5", seed});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("Q: {a}"));
    return outcome.out;
  };
  EXPECT_EQ(sampled("--seed=3"), sampled("--seed=3"));
  EXPECT_NE(sampled("--seed=3"), sampled("--seed=4"));
}

TEST_F(GenerateCommand, TakesFoldersOfHuggingFace) {
  seed_everything(4);
  const auto module = make<CausalLm>({.path = model_, .pretrained = false});
  const std::string folder = root_ + "/saved";
  module->save_folder(folder);
  fs::copy_file(model_ + "/tokenizer.json", folder + "/tokenizer.json");
  const data::Tokenizer tokenizer(folder + "/tokenizer.json");
  const std::string expected =
      "the " + generate(module->model(), tokenizer, {"the "}, {.max_new_tokens = 20})[0].text + "\n";
  const std::vector<std::string> prompt{"--prompt=the ", "--max_new_tokens=20"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), prompt.begin(), prompt.end());
    const CommandOutcome outcome = run("generate", words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome;
  };
  EXPECT_EQ(with({"--ckpt", folder}).out, expected);
  EXPECT_EQ(with({"--model.path=" + folder, "--model.pretrained=true"}).out, expected);
  EXPECT_EQ(with({"--ckpt", folder, "--tokenizer=" + folder + "/tokenizer.json"}).out, expected);
  EXPECT_EQ(with({"--ckpt", folder, "--data.tokenizer=" + folder + "/tokenizer.json"}).out, expected);
  EXPECT_THAT(with({}).err, HasSubstr("weights that were never trained; hint: --ckpt best"));
  // Such a folder is a checkpoint of every call, and so is a file with the module's own names.
  save_weights(*module, root_ + "/own.safetensors");
  EXPECT_EQ(with({"--ckpt", root_ + "/own.safetensors"}).out, expected);
  const CommandOutcome from_folder = run("validate", {"--ckpt", folder});
  EXPECT_EQ(from_folder.status, 0) << from_folder.err;
  EXPECT_EQ(from_folder.out, run("validate", {"--ckpt", root_ + "/own.safetensors"}).out);
}

TEST_F(GenerateCommand, RunsOnTheRanksOfStrategiesThatDivideLayers) {
  ASSERT_EQ(run("fit", {"--trainer.max_steps=20", "--trainer.max_epochs=100"}).status, 0);
  for (const std::vector<std::string>& how : {std::vector<std::string>{"--max_new_tokens=40"},
                                              {"--temperature=1.2", "--top_p=0.95"},
                                              {"--stop=[' pa']"},
                                              {"--beams=3", "--max_new_tokens=12"},
                                              {"--max_new_tokens=40", "--repetition_penalty=1.3", "--seed=5"}}) {
    SCOPED_TRACE(::testing::PrintToString(how));
    const auto on = [&](const std::vector<std::string>& strategy) {
      std::vector<std::string> words{"--ckpt=last", "--prompt=the end of"};
      words.insert(words.end(), how.begin(), how.end());
      words.insert(words.end(), strategy.begin(), strategy.end());
      const CommandOutcome outcome = run("generate", words);
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_EQ(outcome.err, "");
      return outcome.out;
    };
    const std::string expected = on({});
    for (const std::string strategy :
         {"{tensor: 2, start_method: thread}", "{name: sharded, stage: 3, start_method: thread}",
          "{name: sharded, stage: 1, start_method: thread}", "{name: ddp, start_method: thread}"})
      EXPECT_EQ(on({"--trainer.strategy=" + strategy, "--trainer.devices=2"}), expected) << strategy;
    EXPECT_EQ(on({"--trainer.strategy={shard: 2, tensor: 2, start_method: thread}", "--trainer.devices=4"}), expected);
    EXPECT_EQ(on({"--trainer.strategy={replicate: 2, tensor: 2, start_method: fork}", "--trainer.devices=4"}),
              expected);
  }
  const CommandOutcome outcome = run("generate", {"--ckpt=last", "--prompt=a", "--top_k=3", "--trainer.devices=2",
                                                  "--trainer.strategy={tensor: 2, start_method: thread}"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("hint: a temperature above 0"));
}

TEST_F(GenerateCommand, AnswersAChat) {
  const std::string folder = root_ + "/chat";
  fs::copy(model_, folder);
  nlohmann::json described = testing::small_tokenizer();
  for (const char* token : {"<|im_start|>", "<|im_end|>"})
    described["added_tokens"].push_back({{"id", described["added_tokens"].back()["id"].get<int64_t>() + 1},
                                         {"content", token},
                                         {"special", true},
                                         {"normalized", false}});
  std::ofstream(folder + "/tokenizer.json") << described.dump();
  const std::vector<std::string> chat{"--model.path=" + folder, "--chat=true", "--prompt=Hi", "--max_new_tokens=12"};
  CommandOutcome outcome = run("generate", chat);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("has no chat template"));
  std::ofstream(folder + "/chat_template.jinja")
      << "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
         "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  nlohmann::json config = nlohmann::json::parse(testing::read_text(folder + "/config.json"));
  config["vocab_size"] = 264;
  std::ofstream(folder + "/config.json") << config.dump();
  seed_everything(1);
  const auto module = make<CausalLm>({.path = folder, .pretrained = false});
  module->save_folder(root_ + "/chat_weights");
  const data::Tokenizer tokenizer(folder + "/tokenizer.json");
  const auto question = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const auto answer = generate(module->model(), {question}, {.max_new_tokens = 12, .tokenizer = &tokenizer});
  outcome = run("generate", {chat[0], chat[1], chat[2], chat[3], "--ckpt", root_ + "/chat_weights"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, printable_text(answer[0].text) + "\n") << "the answer alone";
}

TEST_F(GenerateCommand, SaysWhatIsWrong) {
  const auto error_of = [&](const std::vector<std::string>& words) {
    const CommandOutcome outcome = run("generate", words);
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(error_of({"--ckpt=best", "--prompt=a"}), HasSubstr("cannot find the best checkpoint"));
  EXPECT_THAT(error_of({}), HasSubstr("has no tokens"));
  EXPECT_THAT(error_of({"--prompt=a", "--top_k=3"}), HasSubstr("hint: a temperature above 0"));
  EXPECT_THAT(error_of({"--prompt=a", "--top_p=2"}), HasSubstr("generate.top_p must be at most 1; got 2"));
  EXPECT_THAT(error_of({"--prompt=a", "--tokenizer=" + root_ + "/none.json"}), HasSubstr("none.json"));
  Cli cli;
  cli.modules.add<testing::TinyModule>("tiny", "another");
  add_generate_command(cli);
  std::vector<std::string> words{"program", "generate", "--prompt=a"};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(cli.run(static_cast<int>(argv.size()), argv.data()), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("generate needs a causal_lm as the model"));
  fs::remove(model_ + "/tokenizer.json");
  EXPECT_THAT(error_of({"--prompt=a"}), HasSubstr("there is no tokenizer.json in"));
  const std::string folder = root_ + "/other";
  fs::create_directories(folder);
  std::ofstream(folder + "/config.json") << "{}";
  EXPECT_THAT(error_of({"--prompt=a", "--ckpt", folder}), HasSubstr("error: "));
}

}  // namespace
}  // namespace levin
