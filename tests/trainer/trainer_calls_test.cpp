#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/spec.h>
#include <levin/core/connectors/missing_data_hint.h>
#include <levin/core/data/combined_data.h>
#include <levin/core/data/csv.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/image_folder.h>
#include <levin/core/data/tar_shards.h>
#include <levin/core/data/token_text.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/trainer/trainer.h>

#include "../support/tiny.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using testing::quiet;
using testing::tiny_loader;
using testing::TinyModule;

class TinyData : public DataModule {
 public:
  DataLoader train_dataloader() override { return tiny_loader(); }
  DataLoaders val_dataloader() override { return tiny_loader(); }
  DataLoaders test_dataloader() override { return tiny_loader(16); }
};

TEST(TrainerCalls, TestTakesTheModuleOfTheLastCallAndItsBestWeights) {
  for (const char* strategy : {"single_device", "ddp_threads", "ddp_spawn"}) {
    SCOPED_TRACE(strategy);
    TrainerOptions options = quiet(3);
    options.strategy = strategy;
    options.devices = std::string(strategy) == "single_device" ? 1 : 2;
    options.default_root_dir = testing::fresh_folder("calls");
    options.enable_checkpointing = true;
    options.callbacks = {make<ModelCheckpoint>({.monitor = "val_loss"})};
    Trainer trainer(options);
    EXPECT_THROW(trainer.test(), Error);
    const auto module = make<TinyModule>({});
    const auto data = std::make_shared<TinyData>();
    trainer.fit(module, data);
    const double expected = trainer.test(module, data, "best").at(0).at("test_loss");
    EXPECT_EQ(trainer.test().at(0).at("test_loss"), expected);
  }
}

/// Keeps what it is told.
class Notes : public Logger {
 public:
  void log_metrics(std::span<const MetricValue> values, int64_t /*step*/, int64_t /*epoch*/) override {
    for (const auto& value : values) metrics[value.name] = value.value;
  }
  void log_text(const std::string& name, const std::string& text, int64_t step) override {
    texts[name] = text + " at " + std::to_string(step);
  }
  void log_histogram(const std::string& name, std::span<const double> values, int64_t /*step*/) override {
    histograms[name].assign(values.begin(), values.end());
  }
  std::map<std::string, double> metrics;
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<double>> histograms;
};

class Talkative : public TinyModule {
 public:
  using TinyModule::TinyModule;
  void on_train_epoch_end() override {
    log("hidden", 3.0, {.logger = false});
    trainer().log_text("note", "an epoch");
    trainer().log_histogram("numbers", torch::tensor({{1, 2}, {3, 4}}));
  }
};

TEST(TrainerCalls, ACheckpointMayFollowTheTrainingLoader) {
  const std::string folder = testing::fresh_folder("calls");
  const auto module = make<TinyModule>({});
  Trainer first(quiet(1));
  first.fit(module, tiny_loader());
  first.save_checkpoint(folder + "/c");
  const std::string path = folder + "/c";
  Trainer trainer(quiet(2));
  trainer.fit(module, tiny_loader(), path);
  EXPECT_EQ(trainer.global_step(), 10);
  trainer.fit(module, tiny_loader(), path.c_str());
  EXPECT_EQ(trainer.global_step(), 10);
  EXPECT_FALSE(trainer.tune(module, tiny_loader(), path).empty());
  // As before: no, one and several loaders of validation, and no data.
  trainer.fit(module, tiny_loader(), {}, path);
  trainer.fit(module, tiny_loader(), {});
  trainer.fit(module, tiny_loader(), tiny_loader());
  trainer.fit(module, tiny_loader(), {tiny_loader(), tiny_loader()}, "");
  EXPECT_EQ(trainer.global_step(), 10);
  EXPECT_THROW(trainer.fit(module, {}, "auto"), Error) << "there are no data";
  EXPECT_THROW(trainer.fit(module, nullptr, "auto"), Error);
}

TEST(TrainerCalls, TextsHistogramsAndWhatLoggersGot) {
  TrainerOptions options = quiet(2);
  const auto notes = std::make_shared<Notes>();
  options.logger = {notes};
  options.default_root_dir = testing::fresh_folder("calls");
  Trainer trainer(options);
  trainer.fit(std::make_shared<Talkative>(testing::TinyOptions{}), tiny_loader());
  EXPECT_EQ(notes->texts.at("note"), "an epoch at 10");
  EXPECT_EQ(notes->histograms.at("numbers"), (std::vector<double>{1, 2, 3, 4}));
  const MetricMap logged = trainer.logged_metrics();
  EXPECT_FALSE(logged.contains("hidden"));
  EXPECT_TRUE(trainer.callback_metrics().contains("hidden"));
  EXPECT_TRUE(logged.contains("train_loss_epoch"));
  for (const auto& [name, value] : notes->metrics) EXPECT_EQ(logged.at(name), value) << name;
}

/// Descends by SGD, whose step is proportional to the gradient.
class Descends : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = options_.lr});
  }
};

class DescendsTwice : public Descends {
 public:
  using Descends::Descends;
  void backward(const at::Tensor& loss) override { (2 * loss).backward(); }
};

TEST(TrainerCalls, AModuleMayRunBackwardItself) {
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    TrainerOptions options = quiet(2);
    options.strategy = strategy;
    options.devices = std::string(strategy) == "single_device" ? 1 : 2;
    options.accumulate_grad_batches = 2;
    seed_everything(3);
    const auto expected = make<Descends>({.lr = 0.02});
    Trainer(options).fit(expected, tiny_loader());
    seed_everything(3);
    const auto module = make<DescendsTwice>({.lr = 0.01});
    Trainer(options).fit(module, tiny_loader());
    for (size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(testing::weights(*module)[i].allclose(testing::weights(*expected)[i], 1e-5, 1e-7)) << strategy;
  }
}

/// The text of what is thrown; empty: nothing is.
std::string error_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// ---- One call at a time

void wait_until_there(const std::string& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(TrainerCalls, ASecondOneFromAnotherThreadIsRefusedWhereverTheRanksAre) {
  for (const char* strategy : {"single_device", "ddp_threads", "ddp_spawn"}) {
    SCOPED_TRACE(strategy);
    const std::string folder = testing::fresh_folder("calls");
    TrainerOptions options = quiet(1);
    options.strategy = strategy;
    options.devices = std::string(strategy) == "single_device" ? 1 : 2;
    options.callbacks = {
        make<LambdaCallback>(LambdaCallbackOptions{.on_train_start = [folder](Trainer& trainer, Module&) {
          if (!trainer.is_global_zero()) return;
          std::ofstream(folder + "/trains");
          wait_until_there(folder + "/refused");
        }})};
    Trainer trainer(options);
    const auto module = make<TinyModule>({});
    std::vector<std::string> refusals;
    std::thread other([&] {
      wait_until_there(folder + "/trains");
      const auto another = make<TinyModule>({});
      refusals = {error_text([&] { trainer.fit(another, tiny_loader()); }),
                  error_text([&] { trainer.tune(another, tiny_loader()); }),
                  error_text([&] { trainer.validate(another, tiny_loader()); }),
                  error_text([&] { trainer.predict(another, tiny_loader()); }), error_text([&] {
                    trainer.export_model(another, {{"x", at::ones({2, 4})}}, folder + "/m.pt");
                  })};
      std::ofstream(folder + "/refused");
    });
    trainer.fit(module, tiny_loader());
    other.join();
    for (const std::string& refusal : refusals)
      EXPECT_THAT(refusal, ::testing::HasSubstr("was called while the trainer is at work"));
    EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
    EXPECT_EQ(trainer.global_step(), std::string(strategy) == "single_device" ? 5 : 3);
    trainer.fit(module, tiny_loader());
  }
}

TEST(TrainerCalls, OneInsideOfAHookIsRefused) {
  for (const char* strategy : {"single_device", "ddp_threads", "ddp_spawn"}) {
    SCOPED_TRACE(strategy);
    const std::string folder = testing::fresh_folder("calls");
    TrainerOptions options = quiet(1);
    options.strategy = strategy;
    options.devices = std::string(strategy) == "single_device" ? 1 : 2;
    const auto call = [folder](Trainer& trainer, Module&, Stage) {
      const std::string text = error_text([&] { trainer.validate(make<TinyModule>({}), tiny_loader()); });
      std::ofstream(folder + "/" + std::to_string(trainer.global_rank())) << text;
    };
    options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{.setup = call})};
    Trainer(options).fit(make<TinyModule>({}), tiny_loader());
    for (const char* rank : {"0", "1"}) {
      if (std::string(strategy) == "single_device" && std::string(rank) == "1") continue;
      std::ifstream file(folder + "/" + rank);
      const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      EXPECT_THAT(text, ::testing::HasSubstr("validate was called while the trainer is at work"));
    }
  }
}

// ---- What a call leaves

class FailsAfterABatch : public TinyModule {
 public:
  using TinyModule::TinyModule;
  void on_train_batch_end(const StepOutput& /*output*/, const Batch& /*batch*/, int64_t /*batch_idx*/) override {
    throw std::domain_error("one batch is enough");
  }
};

TEST(TrainerCalls, AModuleWithoutWeightsSaysWhichCallLeftItSo) {
  for (const bool fails : {true, false}) {
    SCOPED_TRACE(fails);
    TrainerOptions options = quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(
        std::string("{name: sharded_threads, stage: 3, gather_after_fit: ") + (fails ? "true}" : "false}"), {}));
    options.devices = 2;
    Trainer trainer(options);
    const auto module = fails ? std::static_pointer_cast<Module>(make<FailsAfterABatch>({}))
                              : std::static_pointer_cast<Module>(make<TinyModule>({}));
    const std::string thrown = error_text([&] { trainer.fit(module, tiny_loader()); });
    EXPECT_EQ(thrown.empty(), !fails) << thrown;
    const std::string why = fails ? "fit failed while its ranks had parts of the model"
                                  : "fit left them with its ranks (gather_after_fit: false)";
    // By reading them, in another call, in one of another trainer, and in an export.
    Trainer another(options);
    for (const std::string& text :
         {error_text([&] { module->parameters().front().sum().item(); }),
          error_text([&] { trainer.validate(module, tiny_loader()); }),
          error_text([&] { another.fit(module, tiny_loader()); }), error_text([&] {
            Trainer(quiet(1)).export_model(module, {{"x", at::ones({2, 4})}, {"y", at::ones({2, 1})}}, "unwritten.pt");
          })}) {
      EXPECT_THAT(text, ::testing::HasSubstr(why));
      EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(fails ? "gather_after_fit" : "failed")));
    }
  }
}

// ---- Hooks that every call runs

struct RegistersOptions {
  std::string where;
  static void describe(Schema<RegistersOptions>& schema) {
    schema.field("where", &RegistersOptions::where, "the hook, and what is registered");
  }
};

/// Registers in every call what it should make once.
class RegistersAgain : public TinyModule {
 public:
  using Options = RegistersOptions;
  explicit RegistersAgain(const Options& options) : TinyModule(testing::TinyOptions{}), where_(options.where) {}
  void configure_model() override {
    if (where_ == "configure_model module") register_module("net", torch::nn::Linear(2, 2));
    if (where_ == "configure_model parameter") register_parameter("net", at::ones({2}));
    if (where_ == "configure_model buffer") register_buffer("net", at::ones({2}));
  }
  void setup(Stage) override {
    if (where_ == "setup module") register_module("net", torch::nn::Linear(2, 2));
  }

 private:
  std::string where_;
};

TEST(TrainerCalls, AHookThatRegistersAgainIsToldHowItIsWritten) {
  for (const std::string where :
       {"configure_model module", "configure_model parameter", "configure_model buffer", "setup module"}) {
    SCOPED_TRACE(where);
    const std::string hook = where.substr(0, where.find(' '));
    const std::string kind = where.substr(where.find(' ') + 1);
    const auto module = make<RegistersAgain>({.where = where});
    Trainer trainer(quiet(1));
    trainer.validate(module, tiny_loader());
    const auto is_explained =
        ::testing::AllOf(::testing::HasSubstr("[module] " + hook + " of RegistersAgain registers the " + kind +
                                              " 'net', which is there already"),
                         ::testing::HasSubstr("`if (!net) net = register_" + kind + "(\"net\", ...)`"));
    EXPECT_THAT(error_text([&] { trainer.validate(module, tiny_loader()); }), is_explained);
    if (hook == "configure_model")
      EXPECT_THAT(error_text([&] {
                    trainer.export_model(module, {{"x", at::ones({2, 4})}}, "unwritten.pt");
                  }),
                  is_explained);
  }
}

// ---- Data that are missing

TEST(TrainerCalls, MissingDataNameTheOptionsOfTheDataModule) {
  const std::string folder = testing::fresh_folder("calls");
  std::ofstream table(folder + "/table.csv");
  table << "a,b\n1,2\n3,4\n5,6\n7,8\n";
  table.close();
  Trainer trainer(quiet(1));
  const auto module = make<TinyModule>({});
  const auto rows = make<data::Csv>({.path = folder + "/table.csv", .val_fraction = 0});
  for (const std::string& text :
       {error_text([&] { trainer.test(module, rows); }), error_text([&] { trainer.predict(module, rows); })})
    EXPECT_THAT(text, ::testing::AllOf(::testing::HasSubstr("needs data; got none"),
                                       ::testing::HasSubstr("give them: test_path, test_fraction")));
  EXPECT_THAT(error_text([&] { trainer.validate(module, rows); }),
              ::testing::HasSubstr("give them: val_path, val_fraction"));
  const auto both =
      make<data::CombinedData>({.parts = {{"rows", Spec<DataModule>(std::static_pointer_cast<DataModule>(rows))}}});
  EXPECT_THAT(error_text([&] { trainer.test(module, both); }),
              ::testing::HasSubstr("give them: parts.rows.test_path, parts.rows.test_fraction"));
  EXPECT_THAT(error_text([&] { trainer.test(module, DataLoaders()); }), ::testing::Not(::testing::HasSubstr("hint")));
}

TEST(MissingDataHint, IsOfEveryShippedDataModule) {
  EXPECT_EQ(missing_data_hint(make<data::Csv>({.path = "a.csv"}).get(), Stage::kTest),
            "; hint: options of the data module 'levin::data::Csv' that give them: test_path, test_fraction");
  EXPECT_THAT(missing_data_hint(make<data::ImageFolder>({.root = "a"}).get(), Stage::kTest),
              ::testing::HasSubstr("test_fraction"));
  EXPECT_THAT(missing_data_hint(make<data::TarShards>({.shards = {"a.tar"}}).get(), Stage::kPredict),
              ::testing::HasSubstr("test_shards"));
  EXPECT_THAT(missing_data_hint(make<data::TokenText>({.path = "a.txt"}).get(), Stage::kTest),
              ::testing::HasSubstr("test_path"));
  EXPECT_EQ(missing_data_hint(std::make_shared<TinyData>().get(), Stage::kTest), "") << "it has no options";
  EXPECT_EQ(missing_data_hint(nullptr, Stage::kTest), "");
}

}  // namespace
}  // namespace levin
