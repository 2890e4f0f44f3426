#include <levin/core/optim/accumulation_schedule.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace levin::optim {
namespace {

AccumulationSchedule parsed(const std::string& yaml) {
  return ConfigCodec<AccumulationSchedule>::parse(Config::parse(yaml, {}), "trainer.accumulate_grad_batches");
}

TEST(AccumulationSchedule, SaysHowManyBatchesAnEpochHasAStep) {
  const AccumulationSchedule schedule{{2, 8}, {4, 3}};
  std::vector<int64_t> batches;
  for (int64_t epoch = 0; epoch < 6; ++epoch) batches.push_back(schedule.at(epoch));
  EXPECT_EQ(batches, (std::vector<int64_t>{1, 1, 8, 8, 3, 3}));
  EXPECT_EQ(AccumulationSchedule(4).at(1000), 4);
  EXPECT_TRUE(AccumulationSchedule().is_off());
  EXPECT_FALSE(schedule.is_off());
}

TEST(AccumulationSchedule, CountsStepsAndEpochsAsALoopWould) {
  for (const AccumulationSchedule& schedule :
       {AccumulationSchedule(1), AccumulationSchedule(3), AccumulationSchedule{{0, 8}, {1, 4}, {5, 1}}}) {
    for (const int64_t batches : {1, 5, 8, 11}) {
      int64_t steps = 0;
      for (int64_t epochs = 1; epochs < 9; ++epochs) {
        const int64_t before = steps;
        for (int64_t batch = 0; batch < batches; batch += schedule.at(epochs - 1)) ++steps;
        EXPECT_EQ(schedule.steps(epochs, batches), steps) << epochs << " epochs of " << batches;
        for (int64_t wanted = before + 1; wanted <= steps; ++wanted)
          EXPECT_EQ(schedule.epochs(wanted, batches), epochs) << wanted << " steps of " << batches;
      }
      EXPECT_EQ(schedule.steps(0, batches), 0);
      EXPECT_EQ(schedule.epochs(0, batches), 0);
    }
  }
}

TEST(AccumulationSchedule, IsReadAndWrittenAsANumberOrAMapping) {
  EXPECT_EQ(parsed("4"), 4);
  EXPECT_EQ(parsed("{0: 8, 4: 2}"), (AccumulationSchedule{{0, 8}, {4, 2}}));
  EXPECT_EQ(ConfigCodec<AccumulationSchedule>::dump(4).to_flow(), "4");
  EXPECT_EQ(ConfigCodec<AccumulationSchedule>::dump(parsed("{4: 2, 0: 8}")).to_flow(), "{0: 8, 4: 2}");
  EXPECT_EQ(parsed(ConfigCodec<AccumulationSchedule>::dump(parsed("{3: 2}")).to_flow()), parsed("{3: 2}"));
}

TEST(AccumulationSchedule, RefusesWhatIsNoSchedule) {
  const auto message = [](const std::string& yaml) -> std::string {
    try {
      parsed(yaml);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message("{first: 8}").find("trainer.accumulate_grad_batches (an epoch)"), std::string::npos);
  EXPECT_NE(message("{first: 8}").find("'first'"), std::string::npos);
  EXPECT_NE(message("{2: many}").find("trainer.accumulate_grad_batches.2"), std::string::npos);
  EXPECT_NE(message("[8, 4]").find("{0: 8, 4: 2}"), std::string::npos);
}

}  // namespace
}  // namespace levin::optim
