// The option `adapters` of a trainer, for modules that know nothing of it.

#include "../support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/cli/cli.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/load_weights.h>
#include <levin/core/nn/adapters.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TinyModule;

class ConfiguredAdapters : public ::testing::Test {
 protected:
  ConfiguredAdapters() {
    options_ = testing::quiet(2);
    options_.adapters = {.name = "lora", .rank = 2, .alpha = 4, .targets = {"first"}};
    options_.default_root_dir = folder_;
  }
  std::shared_ptr<TinyModule> module() const {
    seed_everything(4);
    return make<TinyModule>({});
  }
  static std::map<std::string, at::Tensor> values(const Module& module) {
    std::map<std::string, at::Tensor> values;
    for (const auto& [name, parameter] : named_unique_parameters(module)) values[name] = parameter.detach().clone();
    return values;
  }
  static std::string message_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  const std::string folder_ = testing::fresh_folder("configured_adapters");
  TrainerOptions options_;
};

TEST_F(ConfiguredAdapters, AreAddedOnceAndTrainedAlone) {
  const auto net = module();
  const auto before = values(*net);
  Trainer trainer(options_);
  trainer.fit(net, testing::tiny_loader(), testing::tiny_loader(16, 8, false));
  EXPECT_THAT(adapter_names(*net), ElementsAre("default"));
  const auto after = values(*net);
  EXPECT_EQ(after.size(), before.size() + 2);
  for (const auto& [name, tensor] : before) EXPECT_TRUE(at::equal(after.at(name), tensor)) << name;
  EXPECT_GT(after.at("first.adapters.default.lora_B").abs().max().item<double>(), 1e-3);
  trainer.validate(net, testing::tiny_loader(16, 8, false));
  Trainer(options_).fit(net, testing::tiny_loader());
  EXPECT_EQ(values(*net).size(), before.size() + 2);
}

TEST_F(ConfiguredAdapters, ResumeToTheBit) {
  const auto whole = module();
  Trainer(options_).fit(whole, testing::tiny_loader());
  TrainerOptions part = options_;
  part.max_steps = 7;
  Trainer first(part);
  const auto cut = module();
  first.fit(cut, testing::tiny_loader());
  first.save_checkpoint(folder_ + "/checkpoint");
  const auto resumed = module();
  Trainer(options_).fit(resumed, testing::tiny_loader(), DataLoaders(), folder_ + "/checkpoint");
  EXPECT_TRUE(testing::identical(testing::weights(*resumed), testing::weights(*whole)));
  EXPECT_FALSE(testing::identical(testing::weights(*cut), testing::weights(*whole)));
}

TEST_F(ConfiguredAdapters, AreMadeAgainByLoadFromCheckpoint) {
  for (const char* quantize : {"", "int8"}) {
    SCOPED_TRACE(quantize);
    options_.adapters.quantize = quantize;
    const auto net = module();
    Trainer trainer(options_);
    trainer.fit(net, testing::tiny_loader());
    const std::string path = folder_ + "/checkpoint";
    trainer.save_checkpoint(path);
    const auto loaded = load_from_checkpoint<TinyModule>(path);
    EXPECT_THAT(adapter_names(*loaded), ElementsAre("default"));
    EXPECT_TRUE(testing::identical(testing::weights(*loaded), testing::weights(*net)));
  }
}

TEST_F(ConfiguredAdapters, TakeInitialWeightsOfTheModuleWithoutThem) {
  seed_everything(9);
  const auto given = make<TinyModule>({});
  save_weights(*given, folder_ + "/weights.safetensors");
  options_.init_from.path = folder_ + "/weights.safetensors";
  const auto net = module();
  Trainer(options_).fit(net, testing::tiny_loader());
  const auto expected = values(*given);
  const auto after = values(*net);
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(after.at(name), tensor)) << name;
  EXPECT_GT(after.at("first.adapters.default.lora_B").abs().max().item<double>(), 1e-3);
}

TEST_F(ConfiguredAdapters, OnSeveralRanksAreThoseOfOne) {
  const auto one = module();
  options_.devices = 1;
  Trainer(options_).fit(one, testing::tiny_loader());
  for (const std::string strategy : {"ddp_threads", "{name: sharded_threads, stage: 3}"}) {
    SCOPED_TRACE(strategy);
    TrainerOptions ranks = options_;
    ranks.devices = 2;
    ranks.strategy = parse_options<TrainerOptions>(Config::parse("{strategy: " + strategy + "}", {}), "").strategy;
    const auto net = module();
    Trainer(ranks).fit(net, testing::tiny_loader(40, 4));
    const auto expected = values(*one);
    for (const auto& [name, tensor] : values(*net))
      EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), 1e-5) << name;
  }
}

TEST_F(ConfiguredAdapters, SayWhatDoesNotFit) {
  const auto net = module();
  add_adapters(*net, {.name = "lora", .rank = 1, .targets = {"second"}});
  EXPECT_THAT(message_of([&] { Trainer(options_).fit(net, testing::tiny_loader()); }),
              HasSubstr("adapters.adapter: the module has an adapter 'default' with other options; hint: another name, "
                        "or `adapters` in one place alone"));
  options_.adapters.targets = {"third"};
  EXPECT_THAT(message_of([&] { Trainer(options_).fit(module(), testing::tiny_loader()); }),
              HasSubstr("adapters.targets: 'third' matches no linear layer or embedding; valid: first, second"));
}

struct TinyDataOptions {
  static void describe(Schema<TinyDataOptions>&) {}
};

class TinyDataModule : public DataModule {
 public:
  using Options = TinyDataOptions;
  explicit TinyDataModule(const Options&) {}
  DataLoader train_dataloader() override { return testing::tiny_loader(); }
  DataLoaders val_dataloader() override { return testing::tiny_loader(8, 8, false); }
};

TEST_F(ConfiguredAdapters, AreOfAConfigurationsTopLevel) {
  std::ofstream(folder_ + "/tiny.yaml") << R"(model: tiny
data: tiny_data
adapters: {name: lora, rank: 2, alpha: 4, targets: [first], save_adapters_only: true}
trainer: {max_epochs: 2, logger: false, enable_progress_bar: false, enable_model_summary: false, accelerator: cpu,
  default_root_dir: )" << folder_ << "}\n";
  std::map<std::string, at::Tensor> trained;
  const auto run = [&](std::vector<std::string> words) {
    Cli cli;
    cli.modules.add<TinyModule>("tiny", "two layers");
    cli.data.add<TinyDataModule>("tiny_data", "sums");
    cli.after_command = [&](const CliRun& ran) { trained = values(*ran.module); };
    words.insert(words.begin(), "tiny");
    words.push_back("--config=" + folder_ + "/tiny.yaml");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    ::testing::internal::CaptureStderr();
    const int status = cli.run(static_cast<int>(argv.size()), argv.data());
    const std::string err = ::testing::internal::GetCapturedStderr();
    return status == 0 ? err : "failed: " + err;
  };
  EXPECT_THAT(run({"fit", "--adapters.rank=1"}), HasSubstr("adapters of 1 layer: 12 of 61 parameters are trained"));
  EXPECT_THAT(trained.at("first.adapters.default.lora_A").sizes(), ElementsAre(1, 4));
  const auto after_fit = trained;
  EXPECT_THAT(run({"validate", "--adapters.rank=1", "--ckpt=last"}), ::testing::Not(HasSubstr("failed")));
  EXPECT_TRUE(at::equal(trained.at("first.adapters.default.lora_B"), after_fit.at("first.adapters.default.lora_B")));
  EXPECT_THAT(run({"fit", "--adapters.rnk=1"}), HasSubstr("rank"));
}

}  // namespace
}  // namespace levin
