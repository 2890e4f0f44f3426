// The examples of reinforcement learning: each begins to learn, and goes on to the bit where it was interrupted, with
// its buffer and its environments.

#include "../support/run_program.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>
#include <levin/levin.h>

#include <filesystem>
#include <string>
#include <vector>

namespace levin {
namespace {

const std::string kReinforcement = testing::build_path("bin/reinforcement");

struct LearnerCase {
  const char* name;
  const char* config;
  std::vector<std::string> words;
};

std::string name_of_learner(const ::testing::TestParamInfo<LearnerCase>& info) { return info.param.name; }

/// To the bit.
void expect_same(const State& expected, const State& got, const std::string& where) {
  ASSERT_STREQ(expected.type_name(), got.type_name()) << where;
  if (expected.is_tensor()) {
    EXPECT_TRUE(torch::equal(expected.as_tensor(), got.as_tensor())) << where;
  } else if (expected.is_map()) {
    ASSERT_EQ(expected.as_map().size(), got.as_map().size()) << where;
    for (const auto& [key, value] : expected.as_map()) expect_same(value, got.at(key), where + "." + key);
  } else if (expected.is_list()) {
    ASSERT_EQ(expected.as_list().size(), got.as_list().size()) << where;
    for (size_t i = 0; i < expected.as_list().size(); ++i)
      expect_same(expected.as_list()[i], got.as_list()[i], where + "." + std::to_string(i));
  } else if (expected.is_double()) {
    EXPECT_EQ(expected.as_double(), got.as_double()) << where;
  } else if (expected.is_int()) {
    EXPECT_EQ(expected.as_int(), got.as_int()) << where;
  } else if (expected.is_string()) {
    EXPECT_EQ(expected.as_string(), got.as_string()) << where;
  }
}

class ReinforcementProgram : public ::testing::TestWithParam<LearnerCase> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kReinforcement))
      GTEST_SKIP() << "there is no " << kReinforcement << "; hint: build the examples";
  }

  testing::ProgramResult fit(const std::string& root, int64_t steps, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {kReinforcement,
                                      "fit",
                                      "--config",
                                      testing::source_path(std::string("examples/reinforcement/") + GetParam().config),
                                      "--trainer.max_steps=" + std::to_string(steps),
                                      "--trainer.accelerator=cpu",
                                      "--trainer.log_every_n_steps=10",
                                      "--trainer.default_root_dir=" + folder_.path(root)};
    words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_program(words);
  }

  State last(const std::string& root, int64_t version) const {
    return read_checkpoint(folder_.path(root + "/version_" + std::to_string(version) + "/checkpoints/last"));
  }

  testing::TemporaryFolder folder_;
};

TEST_P(ReinforcementProgram, GoesOnToTheBit) {
  const auto whole = fit("whole", 60);
  ASSERT_EQ(whole.status, 0) << whole.out << whole.err;
  const std::string metrics = testing::read_text(folder_.path("whole") + "/version_0/metrics.csv");
  EXPECT_NE(metrics.find("return"), std::string::npos) << metrics;
  const auto before = fit("parts", 33);
  ASSERT_EQ(before.status, 0) << before.out << before.err;
  const auto after = fit("parts", 60, {"--ckpt", "last"});
  ASSERT_EQ(after.status, 0) << after.out << after.err;
  const State expected = last("whole", 0);
  const State got = last("parts", 1);
  for (const char* section : {"model", "optimizers", "module"})
    expect_same(expected.at(section), got.at(section), section);
}

INSTANTIATE_TEST_SUITE_P(
    All, ReinforcementProgram,
    ::testing::Values(
        LearnerCase{"Dqn", "cart_pole_dqn.yaml", {"--model.warm_up=200"}},
        LearnerCase{"PlainDqn", "cart_pole_dqn.yaml", {"--model.warm_up=200", "--model.double_estimate=false"}},
        LearnerCase{"PrioritizedDqn", "cart_pole_dqn.yaml", {"--model.warm_up=200", "--model.prioritized=true"}},
        LearnerCase{"Ppo", "cart_pole_ppo.yaml", {"--model.steps=64"}},
        LearnerCase{"ContinuousPpo", "pendulum_ppo.yaml", {"--model.steps=64"}},
        LearnerCase{"Sac", "pendulum_sac.yaml", {"--model.warm_up=200"}},
        LearnerCase{"SixteenDqn", "cart_pole_dqn.yaml", {"--model.warm_up=200", "--model.environments=16"}},
        LearnerCase{"SixteenPpo", "cart_pole_ppo.yaml", {"--model.steps=32", "--model.environments=16"}},
        LearnerCase{"SixteenSac", "pendulum_sac.yaml", {"--model.warm_up=200", "--model.environments=16"}},
        LearnerCase{"RecordedDqn", "cart_pole_dqn.yaml", {"--model.warm_up=200", "--trainer.graph=required"}},
        LearnerCase{"RecordedPrioritizedDqn",
                    "cart_pole_dqn.yaml",
                    {"--model.warm_up=200", "--model.prioritized=true", "--trainer.graph=required"}},
        LearnerCase{"RecordedPpo", "cart_pole_ppo.yaml", {"--model.steps=64", "--trainer.graph=required"}},
        LearnerCase{"RecordedSac", "pendulum_sac.yaml", {"--model.warm_up=200", "--trainer.graph=required"}},
        LearnerCase{"GridWorld", "grid_world_ppo.yaml", {"--model.steps=64"}}),
    name_of_learner);

}  // namespace
}  // namespace levin
