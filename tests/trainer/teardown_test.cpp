// After an error each part that was set up is torn down, once, on every rank, and the first error is the one thrown.

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/data/combined_data.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/callback.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::quiet;
using testing::tiny_loader;

struct JournalOptions {
  std::string folder;
  std::string name;
  std::string fails;             ///< "PART.HOOK" of each hook that throws, with a space on both sides
  int64_t fails_on = -1;         ///< the rank; -1: any
  int64_t fails_in_process = 0;  ///< 0: any

  static void describe(Schema<JournalOptions>& schema) {
    using O = JournalOptions;
    schema.field("folder", &O::folder, "where the journal is");
    schema.field("name", &O::name, "part");
    schema.field("fails", &O::fails, "hooks that throw");
    schema.field("fails_on", &O::fails_on, "rank");
    schema.field("fails_in_process", &O::fails_in_process, "process");
  }
};

/// What is thrown by no std::exception.
struct NoStandardException {};

/// Writes down what the parts of a call go through, whichever thread or process they are of.
class HookJournal {
 public:
  explicit HookJournal(const JournalOptions& options) : options_(options) {}

  void pass(const std::string& hook) const {
    const bool is_setup = hook == "setup";
    if (!is_setup) note(hook);
    const bool is_here = (options_.fails_on < 0 || log::rank() == options_.fails_on) &&
                         (options_.fails_in_process == 0 || getpid() == options_.fails_in_process);
    const std::string place = options_.name + "." + hook;
    if (is_here && options_.fails.find(" " + place + " ") != std::string::npos) {
      if (hook == "on_exception") throw NoStandardException();
      throw std::out_of_range("the error of " + place);
    }
    if (is_setup) note(hook);
  }

 private:
  void note(const std::string& hook) const {
    std::ofstream(options_.folder + "/journal", std::ios::app)
        << std::to_string(log::rank()) + " " + options_.name + " " + hook + "\n";
  }

  JournalOptions options_;
};

class JournalModule : public testing::TinyModule {
 public:
  using Options = JournalOptions;
  explicit JournalModule(const Options& options) : TinyModule(testing::TinyOptions{}), journal_(options) {}

  void setup(Stage) override { journal_.pass("setup"); }
  void teardown(Stage) override { journal_.pass("teardown"); }
  void configure_model() override { journal_.pass("configure_model"); }
  OptimizerConfigs configure_optimizers() override {
    journal_.pass("configure_optimizers");
    return TinyModule::configure_optimizers();
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    journal_.pass("training_step");
    return TinyModule::training_step(batch, batch_idx);
  }
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    journal_.pass("validation_step");
    return TinyModule::validation_step(batch, batch_idx);
  }
  StepOutput test_step(const Batch& batch, int64_t batch_idx) override {
    journal_.pass("test_step");
    return TinyModule::test_step(batch, batch_idx);
  }
  Batch predict_step(const Batch& batch, int64_t batch_idx) override {
    journal_.pass("predict_step");
    return TinyModule::predict_step(batch, batch_idx);
  }

 private:
  HookJournal journal_;
};

class JournalData : public DataModule {
 public:
  using Options = JournalOptions;
  explicit JournalData(const Options& options) : journal_(options) {}

  void setup(Stage) override { journal_.pass("setup"); }
  void teardown(Stage) override { journal_.pass("teardown"); }
  DataLoader train_dataloader() override { return tiny_loader(); }
  DataLoaders val_dataloader() override { return tiny_loader(); }
  DataLoaders test_dataloader() override { return tiny_loader(); }
  DataLoaders predict_dataloader() override { return tiny_loader(); }

 private:
  HookJournal journal_;
};

class JournalCallback : public Callback {
 public:
  using Options = JournalOptions;
  explicit JournalCallback(const Options& options) : journal_(options) {}

  void setup(Trainer&, Module&, Stage) override { journal_.pass("setup"); }
  void teardown(Trainer&, Module&, Stage) override { journal_.pass("teardown"); }
  void on_exception(Trainer&, Module&, const std::exception_ptr&) override { journal_.pass("on_exception"); }
  void on_fit_start(Trainer&, Module&) override { journal_.pass("on_fit_start"); }
  void on_train_end(Trainer&, Module&) override { journal_.pass("on_train_end"); }
  void on_fit_end(Trainer&, Module&) override { journal_.pass("on_fit_end"); }

 private:
  HookJournal journal_;
};

struct JournalLine {
  int64_t rank;
  std::string part;
  std::string hook;
};

std::vector<JournalLine> read_journal(const std::string& folder) {
  std::vector<JournalLine> lines;
  std::ifstream file(folder + "/journal");
  for (JournalLine line; file >> line.rank >> line.part >> line.hook;) lines.push_back(line);
  return lines;
}

/// Each part that was set up is torn down once, callbacks after they were told of the error.
void expect_torn_down(const std::vector<JournalLine>& lines) {
  std::map<std::pair<int64_t, std::string>, std::map<std::string, int>> hooks;
  std::map<int64_t, size_t> told;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& [rank, part, hook] = lines[i];
    ++hooks[{rank, part}][hook];
    if (hook == "on_exception") told[rank] = i;
  }
  for (auto& [part, counts] : hooks) {
    EXPECT_LE(counts["setup"], 1);
    EXPECT_EQ(counts["teardown"], counts["setup"]) << part.second << " of rank " << part.first;
  }
  EXPECT_FALSE(told.empty());
}

struct TeardownCase {
  Stage stage;
  std::string fails;
  std::string first;  ///< whose error is thrown
};

class TeardownAfterAnError : public ::testing::TestWithParam<std::tuple<const char*, TeardownCase>> {};

TEST_P(TeardownAfterAnError, IsOfEachPartThatWasSetUpOnce) {
  const auto& [strategy, tested] = GetParam();
  const std::string folder = testing::fresh_folder("teardown");
  const bool is_data = tested.first.starts_with("data.");
  const bool is_alone = std::string(strategy) == "single_device";
  const auto part = [&, &tested = tested](const std::string& name) {
    return JournalOptions{
        .folder = folder, .name = name, .fails = " " + tested.fails + " ", .fails_on = is_data || is_alone ? -1 : 1};
  };
  TrainerOptions options = quiet(1);
  options.strategy = strategy;
  options.devices = is_alone ? 1 : 2;
  options.callbacks = {make<JournalCallback>(part("a")), make<JournalCallback>(part("b"))};
  Trainer trainer(options);
  const auto module = make<JournalModule>(part("module"));
  const auto data = make<JournalData>(part("data"));
  testing::CapturedLog log;
  try {
    switch (tested.stage) {
      case Stage::kFit:
        trainer.fit(module, data);
        break;
      case Stage::kValidate:
        trainer.validate(module, data, "", /*verbose=*/false);
        break;
      case Stage::kTest:
        trainer.test(module, data, "", /*verbose=*/false);
        break;
      case Stage::kPredict:
        trainer.predict(module, data);
    }
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_THAT(error.what(), HasSubstr("the error of " + tested.first));
  }
  EXPECT_EQ(trainer.status(), TrainerStatus::kFailed);
  const std::vector<JournalLine> lines = read_journal(folder);
  expect_torn_down(lines);
  if (std::string(strategy).ends_with("_threads")) {
    const auto of_data = std::find_if(lines.begin(), lines.end(), [](const JournalLine& line) {
      return line.part == "data" && line.hook == "teardown";
    });
    const bool ended_well = tested.first.ends_with(".teardown");
    EXPECT_TRUE(of_data == lines.end() || of_data + 1 == lines.end() || ended_well) << "ranks share the data module";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TeardownAfterAnError,
    ::testing::Combine(
        ::testing::Values("single_device", "ddp_threads", "ddp_spawn", "sharded_threads"),
        ::testing::Values(TeardownCase{Stage::kFit, "data.setup", "data.setup"},
                          TeardownCase{Stage::kFit, "b.setup", "b.setup"},
                          TeardownCase{Stage::kFit, "module.setup", "module.setup"},
                          TeardownCase{Stage::kFit, "module.configure_model", "module.configure_model"},
                          TeardownCase{Stage::kFit, "module.configure_optimizers", "module.configure_optimizers"},
                          TeardownCase{Stage::kFit, "a.on_fit_start", "a.on_fit_start"},
                          TeardownCase{Stage::kFit, "module.training_step", "module.training_step"},
                          TeardownCase{Stage::kFit, "module.validation_step", "module.validation_step"},
                          TeardownCase{Stage::kFit, "b.on_train_end", "b.on_train_end"},
                          TeardownCase{Stage::kFit, "a.on_fit_end", "a.on_fit_end"},
                          TeardownCase{Stage::kFit, "data.teardown", "data.teardown"},
                          TeardownCase{Stage::kFit, "a.teardown", "a.teardown"},
                          TeardownCase{Stage::kFit, "module.teardown", "module.teardown"},
                          // What follows fails, too.
                          TeardownCase{Stage::kFit, "module.training_step a.on_exception  a.teardown  module.teardown",
                                       "module.training_step"},
                          TeardownCase{Stage::kFit, "module.training_step  a.on_exception  a.teardown  data.teardown",
                                       "module.training_step"},
                          TeardownCase{Stage::kValidate, "module.validation_step", "module.validation_step"},
                          TeardownCase{Stage::kTest, "module.test_step", "module.test_step"},
                          TeardownCase{Stage::kPredict, "module.predict_step", "module.predict_step"})));

JournalOptions part_of_journal(const std::string& folder, const std::string& name, const std::string& fails) {
  return {.folder = folder, .name = name, .fails = " " + fails + " "};
}

std::vector<std::string> set_up_hooks(const std::string& folder) {
  std::vector<std::string> hooks;
  for (const JournalLine& line : read_journal(folder))
    if (line.hook == "setup" || line.hook == "teardown") hooks.push_back(line.part + " " + line.hook);
  return hooks;
}

TEST(Teardown, ErrorsThatFollowTheFirstAreLogged) {
  const std::string folder = testing::fresh_folder("teardown");
  TrainerOptions options = quiet(1);
  const std::string fails = "module.training_step  a.on_exception  a.teardown ";
  options.callbacks = {make<JournalCallback>(part_of_journal(folder, "a", fails))};
  Trainer trainer(options);
  testing::CapturedLog log;
  EXPECT_THROW(trainer.fit(make<JournalModule>(part_of_journal(folder, "module", fails)), tiny_loader()),
               std::out_of_range);
  EXPECT_THAT(log.text(), HasSubstr("on_exception of JournalCallback failed as well"));
  EXPECT_THAT(log.text(), HasSubstr("teardown of JournalCallback failed as well: the error of a.teardown"));
}

TEST(Teardown, PartsOfCombinedDataAreTornDownWhereALaterOneFails) {
  const std::string folder = testing::fresh_folder("teardown");
  std::map<std::string, Spec<DataModule>> parts;
  for (const char* name : {"a", "b", "c"})
    parts[name] = std::static_pointer_cast<DataModule>(make<JournalData>(part_of_journal(folder, name, "b.setup")));
  Trainer trainer(quiet(1));
  EXPECT_THROW(trainer.fit(make<testing::TinyModule>({}), make<data::CombinedData>({.parts = parts})),
               std::out_of_range);
  EXPECT_THAT(set_up_hooks(folder), ElementsAre("a setup", "a teardown"));
}

TEST(Teardown, PartsOfCombinedDataAreAllTornDownWhereOneFailsAtThat) {
  const std::string folder = testing::fresh_folder("teardown");
  std::map<std::string, Spec<DataModule>> parts;
  for (const char* name : {"a", "b"})
    parts[name] = std::static_pointer_cast<DataModule>(make<JournalData>(part_of_journal(folder, name, "a.teardown")));
  data::CombinedData data({.parts = parts});
  data.setup(Stage::kFit);
  EXPECT_THROW(data.teardown(Stage::kFit), std::out_of_range);
  EXPECT_THAT(set_up_hooks(folder), ElementsAre("a setup", "b setup", "a teardown", "b teardown"));
}

TEST(Teardown, AnExportThatFailsTearsDownWhatItSetUp) {
  const std::string folder = testing::fresh_folder("teardown");
  for (const char* fails : {"module.setup", "module.predict_step", "module.teardown"}) {
    SCOPED_TRACE(fails);
    const std::string own = testing::fresh_folder("teardown");
    Trainer trainer(quiet(1));
    EXPECT_THROW(trainer.export_model(make<JournalModule>(part_of_journal(own, "module", fails)),
                                      make<JournalData>(part_of_journal(own, "data", fails)), folder + "/model.pt"),
                 std::exception);
    std::map<std::string, int> balance;
    for (const std::string& hook : set_up_hooks(own)) balance[hook] += 1;
    EXPECT_EQ(balance["data setup"], 1);
    EXPECT_EQ(balance["data teardown"], 1);
    EXPECT_EQ(balance["module teardown"], balance["module setup"]);
  }
}

/// After ddp_spawn the process that made the call sets up what it needs to take the weights.
TEST(Teardown, IsOfTheProcessThatMadeTheCallToo) {
  const std::string folder = testing::fresh_folder("teardown");
  JournalOptions of_module = part_of_journal(folder, "module", "module.configure_model");
  of_module.fails_in_process = getpid();
  TrainerOptions options = quiet(1);
  options.strategy = "ddp_spawn";
  options.devices = 2;
  Trainer trainer(options);
  EXPECT_THROW(trainer.fit(make<JournalModule>(of_module), make<JournalData>(part_of_journal(folder, "data", ""))),
               std::out_of_range);
  std::map<std::string, int> counts;
  for (const std::string& hook : set_up_hooks(folder)) ++counts[hook];
  EXPECT_EQ(counts["data setup"], 3);
  EXPECT_EQ(counts["data teardown"], 3);
  EXPECT_EQ(counts["module setup"], 3);
  EXPECT_EQ(counts["module teardown"], 3);
}

}  // namespace
}  // namespace levin
