// Adapters of language models against PEFT: its files both ways, and training.

#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "../support/torch_python.h"

#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/models/causal_lm.h>
#include <levin/core/nn/adapters.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <functional>
#include <string>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_of_files(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(AdapterFilesOfPeft, ComputeTrainAndGoBack) {
  if (const std::string missing = testing::missing_module("peft"); !missing.empty()) GTEST_SKIP() << missing;
  const std::string packages = testing::torch_packages();
  if (packages.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
  const std::string folder = testing::fresh_folder("adapters");
  const auto python = [&](const std::string& command) {
    const auto run = testing::run_program(
        {testing::test_python(), "-W", "ignore", testing::source_path("tests/models/adapters.py"), command, folder},
        {.environment = {{"PYTHONPATH", packages}, {"HF_HUB_OFFLINE", "1"}}});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
  };
  python("make");
  if (HasFatalFailure()) return;
  for (const std::string name : {"llama", "qwen"}) {
    SCOPED_TRACE(name);
    const std::string of_case = folder + "/" + name;
    const SafetensorsFile results(of_case + "/results.safetensors.out");
    const at::Tensor tokens = results.read("tokens");
    const at::Tensor logits = results.read("logits");
    const auto module = make<CausalLm>({.path = of_case + "/base"});
    module->load_adapter(of_case + "/begin");
    EXPECT_LT(
        (module->predict_step({{"tokens", tokens.slice(0, 0, 2)}}, 0)["logits"] - logits).abs().max().item<double>(),
        1e-5 * logits.abs().max().item<double>());

    TrainerOptions options = testing::quiet(1);
    options.optimizer =
        parse_options<TrainerOptions>(Config::parse("optimizer: {name: adamw, lr: 0.01, weight_decay: 0.01}", {}), "")
            .optimizer;
    Trainer trainer(options);
    trainer.fit(
        module,
        DataLoader(std::make_shared<data::TensorDataset>(Batch{{"tokens", tokens}, {"next", results.read("next")}}),
                   {.batch_size = 2}));
    EXPECT_EQ(trainer.global_step(), 10);
    module->save_adapter(of_case + "/back");
    module->save_folder(of_case + "/merged");
    FileSystem::current().replace_file(of_case + "/written.safetensors.out", [&](WritableFile& file) {
      const torch::NoGradGuard no_gradients;
      write_safetensors(file, std::vector<NamedTensor>{
                                  {"logits", module->predict_step({{"tokens", tokens.slice(0, 0, 2)}}, 0)["logits"]}});
    });
    EXPECT_EQ(SafetensorsFile(of_case + "/back/adapter_model.safetensors").metadata().at("format"), "pt");
  }
  python("check");
}

struct SmallNet : torch::nn::Module {
  explicit SmallNet(int64_t width = 6) {
    embed = register_module("embed", torch::nn::Embedding(11, width));
    up = register_module("up", torch::nn::Linear(width, 8));
    head = register_module("head", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& tokens) { return head(up(embed(tokens))); }

  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear up{nullptr}, head{nullptr};
};

/// A folder with an adapter of a SmallNet.
class AdapterFolderTest : public ::testing::Test {
 protected:
  AdapterFolderTest() {
    net_ = std::make_shared<SmallNet>();
    for (const auto& entry : net_->named_parameters()) weights_[entry.key()] = entry.value().detach().clone();
    add_adapters(*net_,
                 {.name = "rslora", .rank = 2, .alpha = 3, .targets = {"embed", "up"}, .modules_to_save = {"head"}});
    const torch::NoGradGuard no_gradients;
    for (const auto& parameter : net_->parameters())
      if (parameter.requires_grad()) parameter.normal_();
    save_adapter(*net_, folder_);
  }
  std::shared_ptr<SmallNet> base(int64_t width = 6) const {
    auto net = std::make_shared<SmallNet>(width);
    const torch::NoGradGuard no_gradients;
    if (width == 6)
      for (auto& entry : net->named_parameters()) entry.value().copy_(weights_.at(entry.key()));
    return net;
  }
  void change_config(const std::string& name, const nlohmann::json& value) const {
    auto config = nlohmann::json::parse(FileSystem::current().read_file(folder_ + "/adapter_config.json"));
    config[name] = value;
    std::ofstream(folder_ + "/adapter_config.json") << config.dump();
  }
  std::string refused(torch::nn::Module& net) const {
    return message_of_files([&] { load_adapter(net, folder_); });
  }

  const std::string folder_ = testing::fresh_folder("adapter_files");
  std::shared_ptr<SmallNet> net_;
  std::map<std::string, at::Tensor> weights_;
};

TEST_F(AdapterFolderTest, ComesBackWithItsEmbeddingAndItsHead) {
  const SafetensorsFile file(folder_ + "/adapter_model.safetensors");
  EXPECT_THAT(file.names(), ::testing::UnorderedElementsAre(
                                "base_model.model.embed.lora_embedding_A", "base_model.model.embed.lora_embedding_B",
                                "base_model.model.up.lora_A.weight", "base_model.model.up.lora_B.weight",
                                "base_model.model.head.weight", "base_model.model.head.bias"));
  const auto again = base();
  EXPECT_THAT(load_adapter(*again, folder_, {.adapter = "read"}), ElementsAre("embed", "up"));
  EXPECT_THAT(active_adapters(*again), ElementsAre("read"));
  const at::Tensor tokens = torch::randint(11, {2, 4});
  EXPECT_TRUE(torch::equal(again->forward(tokens), net_->forward(tokens)));
  EXPECT_TRUE(again->head->weight.requires_grad());
}

TEST_F(AdapterFolderTest, OfAnotherBaseIsRefusedByNameAndShape) {
  const auto wide = base(7);
  EXPECT_THAT(refused(*wide), HasSubstr("is an adapter of another base: 'base_model.model.embed.lora_embedding_B' is "
                                        "[6, 2], and would be [7, 2] for this module"));
  EXPECT_TRUE(adapter_names(*wide).empty() && wide->up->weight.requires_grad());
  torch::nn::Sequential other(torch::nn::Linear(6, 8));
  EXPECT_THAT(refused(*other),
              HasSubstr("is an adapter of another base: it has 'base_model.model.embed.lora_embedding_A' "
                        "and 5 more, which has no counterpart in this module"));
  change_config("r", 3);
  EXPECT_THAT(refused(*base()),
              HasSubstr("'base_model.model.embed.lora_embedding_A' is [2, 11], and would be [3, 11]"));
}

TEST_F(AdapterFolderTest, WithWhatIsNotSupportedIsRefused) {
  change_config("use_dora", true);
  EXPECT_THAT(refused(*base()), HasSubstr("use_dora is not supported; got true"));
  change_config("use_dora", false);
  change_config("bias", "all");
  EXPECT_THAT(refused(*base()), HasSubstr("bias is not supported; got \"all\""));
  change_config("bias", "none");
  change_config("rank_pattern", {{"up", 4}});
  EXPECT_THAT(refused(*base()), HasSubstr("rank_pattern is not supported"));
  change_config("rank_pattern", nlohmann::json::object());
  change_config("init_lora_weights", "pissa");
  EXPECT_THAT(refused(*base()), HasSubstr("init_lora_weights is not supported: it changes the base's weights"));
  change_config("init_lora_weights", true);
  change_config("peft_type", "IA3");
  EXPECT_THAT(refused(*base()), HasSubstr("peft_type is not supported; got 'IA3'; valid: LORA"));
  std::ofstream(folder_ + "/adapter_config.json") << "{";
  EXPECT_THAT(refused(*base()), HasSubstr("adapter_config.json: is not a JSON object"));
  EXPECT_THAT(message_of_files([&] { load_adapter(*base(), folder_ + "/nowhere"); }), HasSubstr("is not there"));
}

TEST_F(AdapterFolderTest, OfAnActivatedOneIsRefused) {
  change_config("alora_invocation_tokens", {1, 2});
  EXPECT_THAT(refused(*base()), HasSubstr("alora_invocation_tokens is not supported; got [1,2]"));
}

/// As PEFT writes one whose embedding and head were tied, and are not any more.
TEST_F(AdapterFolderTest, WithValuesOfItsOwnForATiedParameterIsRefused) {
  struct Tied final : torch::nn::Module {
    Tied() {
      embed = register_parameter("embed", torch::ones({4, 3}));
      head = register_parameter("head", embed);
      up = register_module("up", torch::nn::Linear(3, 3));
    }
    at::Tensor embed, head;
    torch::nn::Linear up{nullptr};
  };
  const std::string folder = testing::fresh_folder("adapter_tied");
  std::filesystem::copy(folder_ + "/adapter_config.json", folder + "/adapter_config.json");
  const auto message = [&](std::vector<NamedTensor> whole) {
    whole.emplace_back("base_model.model.up.lora_A.weight", torch::ones({2, 3}));
    whole.emplace_back("base_model.model.up.lora_B.weight", torch::ones({3, 2}));
    FileSystem::current().replace_file(folder + "/adapter_model.safetensors", [&](WritableFile& file) {
      write_safetensors(file, whole, {{"format", "pt"}});
    });
    Tied net;
    return message_of_files([&] { load_adapter(net, folder); });
  };
  const at::Tensor values = torch::full({4, 3}, 2.0);
  EXPECT_THAT(
      message({{"base_model.model.head", values}}),
      HasSubstr("has 'base_model.model.head' of its own, and not 'base_model.model.embed', which is the same tied "
                "parameter in this module; hint: PEFT has untied them"));
  EXPECT_THAT(message({{"base_model.model.head", values}, {"base_model.model.embed", values + 1}}),
              HasSubstr("which are one tied parameter of this module"));
  EXPECT_THAT(message({{"base_model.model.head", values}, {"base_model.model.embed", values.clone()}}),
              ::testing::Not(HasSubstr("tied")));
}

}  // namespace
}  // namespace levin
