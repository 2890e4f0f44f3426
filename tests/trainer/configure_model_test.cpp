// Modules whose layers follow from the data: configure_model is called with the data set up, also in processes that are
// not a rank, and says what is missing where there are none.

#include "tests/support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/data_module.h>

#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::identical;
using testing::quiet;

struct SetUpDataOptions {
  int64_t width = 6;
  static void describe(Schema<SetUpDataOptions>& schema) {
    schema.field("width", &SetUpDataOptions::width, "width that the data ask for").at_least(1);
  }
};

/// Knows its width between setup and teardown. The folder of a test has it, as prepare_data wrote it.
class SetUpData : public DataModule {
 public:
  using Options = SetUpDataOptions;
  explicit SetUpData(const Options& options) : options_(options) {}

  void setup(Stage stage) override {
    width_ = options_.width;
    hooks.push_back(std::string("setup ") + to_string(stage));
  }
  void teardown(Stage stage) override {
    width_.reset();
    hooks.push_back(std::string("teardown ") + to_string(stage));
  }
  DataLoader train_dataloader() override { return testing::tiny_loader(); }
  DataLoaders val_dataloader() override { return testing::tiny_loader(8, 8, false); }

  int64_t width() const { return width_.value(); }

  std::vector<std::string> hooks;  ///< of this process

 private:
  Options options_;
  std::optional<int64_t> width_;
};

/// Makes a layer in setup and the others in configure_model, as wide as the data ask for.
class OfTheData : public Module {
 public:
  using Options = testing::TinyOptions;
  explicit OfTheData(const Options& options) : options_(options) {}

  void setup(Stage /*stage*/) override {
    if (!last_) last_ = register_module("last", torch::nn::Linear(trainer().data_module<SetUpData>().width(), 1));
  }
  void configure_model() override {
    if (!first_) first_ = register_module("first", torch::nn::Linear(4, trainer().data_module<SetUpData>().width()));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    return torch::nn::functional::mse_loss(last_(first_(batch["x"])), batch["y"]);
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("val_loss", torch::nn::functional::mse_loss(last_(first_(batch["x"])), batch["y"]));
    return {};
  }
  Batch predict_step(const Batch& batch, int64_t) override { return {{"y", last_(first_(batch["x"]))}}; }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr});
  }

 private:
  Options options_;
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear last_{nullptr};
};

std::string text_of_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TrainerOptions on_two_ranks(const std::string& strategy) {
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = 2;
  return options;
}

class OfTheDataOn : public ::testing::TestWithParam<const char*> {};

TEST_P(OfTheDataOn, LayersAreMadeInTheCallingProcessToo) {
  seed_everything(3);
  Trainer trainer(on_two_ranks(GetParam()));
  auto module = make<OfTheData>({});
  auto data = make<SetUpData>({});
  trainer.fit(module, data);
  EXPECT_EQ(testing::weights(*module).size(), 4U);
  EXPECT_EQ(data->hooks, (std::vector<std::string>{"setup fit", "teardown fit"}));
  // What came back is what was trained: the ranks' own validation and one without them agree.
  const double trained = trainer.validate(module, data, "", /*verbose=*/false).at(0).at("val_loss");
  Trainer alone(quiet(1));
  EXPECT_NEAR(alone.validate(module, data, "", /*verbose=*/false).at(0).at("val_loss"), trained, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Strategies, OfTheDataOn,
                         ::testing::Values("ddp_threads", "ddp_spawn", "sharded_spawn", "parameter_server_spawn"),
                         [](const auto& info) { return std::string(info.param); });

TEST(OfTheData, TheCallingProcessDrawsOnAsWhereItIsARank) {
  const auto drawn_after = [](const std::string& strategy) {
    seed_everything(3);
    Trainer trainer(on_two_ranks(strategy));
    auto module = make<OfTheData>({});
    trainer.fit(module, make<SetUpData>({}));
    return std::pair(testing::weights(*module), at::rand({4}));
  };
  const auto [weights, numbers] = drawn_after("ddp_threads");
  const auto [weights_of_forks, numbers_of_forks] = drawn_after("ddp_spawn");
  EXPECT_TRUE(identical(weights_of_forks, weights));
  EXPECT_TRUE(numbers_of_forks.equal(numbers));
}

TEST(OfTheData, AnExportSetsTheDataUpAndTakesItsExampleFromThem) {
  const std::string folder = testing::fresh_folder("of_the_data");
  auto data = make<SetUpData>({});
  {
    Trainer trainer(quiet(1));
    auto module = make<OfTheData>({});
    trainer.fit(module, data);
    trainer.save_checkpoint(folder + "/ckpt");
  }
  data->hooks.clear();
  Trainer trainer(quiet(1));
  const ExportReport report = trainer.export_model(make<OfTheData>({}), data, folder + "/model.pt", folder + "/ckpt");
  EXPECT_EQ(report.inputs, std::vector<std::string>{"x"});
  EXPECT_TRUE(std::filesystem::exists(folder + "/model.pt"));
  EXPECT_EQ(data->hooks, (std::vector<std::string>{"setup predict", "teardown predict", "setup test", "teardown test",
                                                   "setup fit", "teardown fit"}))
      << "validation has the first batch";
}

TEST(OfTheData, WithoutDataOneMessageSaysWhatIsMissing) {
  const std::string folder = testing::fresh_folder("of_the_data");
  const auto needs_data = AllOf(HasSubstr("needs a data module of type"), HasSubstr("SetUpData; got none; hint"));
  {
    Trainer trainer(quiet(1));
    trainer.fit(make<OfTheData>({}), make<SetUpData>({}));
    trainer.save_checkpoint(folder + "/ckpt");
  }
  Trainer trainer(quiet(1));
  const Batch example{{"x", torch::rand({3, 4})}};
  EXPECT_THAT(text_of_error([&] { trainer.fit(make<OfTheData>({}), testing::tiny_loader()); }), needs_data);
  EXPECT_THAT(text_of_error(
                  [&] { trainer.export_model(make<OfTheData>({}), example, folder + "/model.pt", folder + "/ckpt"); }),
              AllOf(needs_data, HasSubstr("in configure_model of OfTheData, which was given no data module")));
  EXPECT_THAT(text_of_error([&] { load_from_checkpoint<OfTheData>(folder + "/ckpt"); }),
              AllOf(HasSubstr("[checkpoint] configure_model of OfTheData failed without a trainer and its data"),
                    HasSubstr("trainer.test(module, data, ")));
}

/// Reads the data module as it was written before data_module<T>().
class Dereferences : public testing::TinyModule {
 public:
  using TinyModule::TinyModule;
  void configure_model() override {
    if (trainer().data_module() == nullptr) throw std::bad_cast();
  }
};

TEST(OfTheData, AnErrorOfTheModulesOwnKeepsItsTypeAndSaysThatThereWereNoData) {
  Trainer trainer(quiet(1));
  const auto says = ::testing::ThrowsMessage<std::bad_cast>(
      HasSubstr("in configure_model of Dereferences, which was given no data module"));
  EXPECT_THAT([&] { trainer.fit(make<Dereferences>({}), testing::tiny_loader()); }, says);
  EXPECT_THAT(
      [&] {
        trainer.export_model(make<Dereferences>({}), Batch{{"x", torch::rand({3, 4})}}, "never_written.pt");
      },
      says);
}

class OtherData : public DataModule {
  DataLoader train_dataloader() override { return testing::tiny_loader(); }
};

TEST(OfTheData, AnotherDataModuleIsNamed) {
  Trainer trainer(quiet(1));
  EXPECT_THAT(text_of_error([&] { trainer.fit(make<OfTheData>({}), std::make_shared<OtherData>()); }),
              AllOf(HasSubstr("needs a data module of type"), HasSubstr("OtherData; hint")));
}

}  // namespace
}  // namespace levin
