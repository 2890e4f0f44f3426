// docs/fine-tuning.md, as a user has it: LoRA on chats, from a folder of transformers and back to it and to PEFT.

#include "../data/small_tokenizer.h"
#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/cli/cli.h>
#include <levin/core/cli/generate_command.h>
#include <levin/core/data/instruction_data.h>
#include <levin/core/models/causal_lm.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;

class AdapterJourney : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = testing::missing_module("peft"); !missing.empty()) GTEST_SKIP() << missing;
    packages_ = testing::torch_packages();
    if (packages_.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
    python("base");
    nlohmann::json tokenizer = testing::small_tokenizer();
    int64_t id = 259;
    for (const char* token : {"<|im_start|>", "<|im_end|>"})
      tokenizer["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}, {"normalized", false}});
    std::ofstream(root_ + "/base/tokenizer.json") << tokenizer.dump();
    std::ofstream(root_ + "/base/tokenizer_config.json")
        << nlohmann::json{{"eos_token", "<end>"},
                          {"chat_template",
                           "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                           "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
                           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"}}
               .dump();
    std::ofstream chats(root_ + "/chats.jsonl");
    const std::vector<std::pair<std::string, std::string>> said{
        {"Name a sea.", "The North Sea."}, {"Name a river.", "The Elbe."}, {"Name a hill.", "The Brocken."}};
    for (int i = 0; i < 40; ++i) {
      const auto& [question, answer] = said[i % said.size()];
      chats << nlohmann::json{{"messages",
                               {{{"role", "user"}, {"content", question}},
                                {{"role", "assistant"}, {"content", answer}}}}}
                   .dump()
            << "\n";
    }
    std::ofstream(root_ + "/chats.yaml") << fmt::format(R"(
model: {{name: causal_lm, path: {0}/base}}
adapters: {{name: lora, rank: 8, alpha: 16, targets: ["*.q_proj", "*.v_proj"], save_adapters_only: true}}
data: {{name: instruction, files: [{0}/chats.jsonl], val_fraction: 0.1, tokenizer: {0}/base, context: 64, batch_size: 4,
  cache_folder: {0}/cache}}
optimizer: {{name: adamw, lr: 0.01}}
trainer:
  max_epochs: 4
  accelerator: cpu
  run_dir: {0}/run
  logger: false
  callbacks: [model_checkpoint: {{monitor: val_loss, save_last: true}}]
)",
                                                        root_);
  }
  void python(const std::string& command) const {
    const auto run = testing::run_program(
        {testing::test_python(), "-W", "ignore", testing::source_path("tests/models/adapters.py"), command, root_},
        {.environment = {{"PYTHONPATH", packages_}, {"HF_HUB_OFFLINE", "1"}}});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
  }
  int cli(std::vector<std::string> words) {
    Cli cli;
    cli.modules.add<CausalLm>("causal_lm", "a language model of a folder of Hugging Face");
    cli.data.add<data::InstructionData>("instruction", "chats, prompts and texts of JSON lines");
    add_generate_command(cli);
    cli.after_command = [&](const CliRun& run) {
      auto& model = dynamic_cast<CausalLm&>(*run.module);
      if (run.command == "fit" && run.trainer->is_global_zero()) {
        model.save_adapter(root_ + "/adapter");
        model.save_folder(root_ + "/trained");
      }
      if (run.command == "generate") return;
      metrics_ = run.trainer->callback_metrics();
      const at::NoGradGuard no_gradients;
      const at::Tensor tokens = at::arange(60, 80).unsqueeze(0);
      FileSystem::current().replace_file(root_ + "/logits.safetensors", [&](WritableFile& file) {
        write_safetensors(file,
                          std::vector<NamedTensor>{{"tokens", tokens},
                                                   {"logits", model.predict_step({{"tokens", tokens}}, 0)["logits"]}});
      });
    };
    words.insert(words.begin(), "writer");
    words.push_back("--config=" + root_ + "/chats.yaml");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    ::testing::internal::CaptureStderr();
    const int status = cli.run(static_cast<int>(argv.size()), argv.data());
    err_ = ::testing::internal::GetCapturedStderr();
    return status;
  }

  const std::string root_ = testing::fresh_folder("adapter_journey");
  std::string packages_;
  std::string err_;
  MetricMap metrics_;
};

TEST_F(AdapterJourney, FromAFolderOfTransformersAndBackMergedAndUnmerged) {
  ASSERT_EQ(cli({"fit"}), 0) << err_;
  const double trained = metrics_.at("val_loss");
  // The checkpoint has the adapters alone.
  const State tree = open_checkpoint(root_ + "/run/checkpoints/last");
  EXPECT_EQ(tree.at("model").as_map().size(), 8);
  for (const auto& [name, tensor] : tree.at("model").as_map()) EXPECT_THAT(name, HasSubstr(".adapters.default.lora_"));
  python("read");
  ASSERT_EQ(cli({"validate", "--ckpt=last"}), 0) << err_;
  EXPECT_NEAR(metrics_.at("val_loss"), trained, 1e-6);
  ASSERT_EQ(cli({"validate", "--adapters.name=''"}), 0) << err_;
  EXPECT_GT(metrics_.at("val_loss"), trained + 0.1) << "without the adapters";
  ASSERT_NE(cli({"fit", "--adapters.targets=['*.query']"}), 0);
  EXPECT_THAT(err_, HasSubstr("adapters.targets: '*.query' matches no linear layer or embedding"));
}

TEST_F(AdapterJourney, OverWeightsInFourBitsToTextOnTheTerminal) {
  const std::vector<std::string> options{"--adapters.quantize=nf4", "--adapters.targets=['*_proj']"};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return cli(words);
  };
  ASSERT_EQ(with({"fit"}, options), 0) << err_;
  const double trained = metrics_.at("val_loss");
  EXPECT_EQ(open_checkpoint(root_ + "/run/checkpoints/last").at("model").as_map().size(), 28);
  ASSERT_EQ(with({"validate", "--ckpt=last"}, options), 0) << err_;
  EXPECT_NEAR(metrics_.at("val_loss"), trained, 1e-6);
  python("read_merged");
  // The text is that of a model of the merged weights.
  const auto text = [&](const std::vector<std::string>& more) {
    ::testing::internal::CaptureStdout();
    const int status = with({"generate", "--prompt=Name a sea.", "--temperature=0", "--max_new_tokens=20"}, more);
    std::string out = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(status, 0) << err_;
    return out;
  };
  const std::string merged = text({"--model.path=" + root_ + "/trained", "--adapters.name=''"});
  EXPECT_EQ(text({options[0], options[1], "--ckpt=last"}), merged);
  EXPECT_NE(text({"--adapters.name=''"}), merged);
}

}  // namespace
}  // namespace levin
