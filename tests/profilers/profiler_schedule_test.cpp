#include <levin/core/profilers/profiler_schedule.h>

#include "support.h"

#include <tests/support/run_program.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

namespace levin {
namespace {

std::string letters(const ProfilerSchedule& schedule, int64_t steps) {
  std::string text;
  for (int64_t step = 0; step < steps; ++step) text += ".wrs"[static_cast<int>(schedule.action(step))];
  return text;
}

TEST(ProfilerSchedule, Cycles) {
  EXPECT_EQ(letters({}, 10), ".wrrs.....");
  EXPECT_EQ(letters({.skip_first = 2, .wait = 1, .warmup = 0, .active = 1, .repeat = 2}, 10), "...s.s....");
  EXPECT_EQ(letters({.wait = 0, .warmup = 0, .active = 2, .repeat = 0}, 7), "rsrsrsr");
  EXPECT_EQ(letters({.skip_first = 1, .wait = 3, .active = 1, .repeat = 0, .skip_first_wait = true}, 12),
            ".ws...ws...w");
}

TEST(ProfilerSchedule, IsThatOfTorch) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python with torch; set LEVIN_PYTHON to one";
  std::mt19937 random(7);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  constexpr int64_t kSteps = 60;
  const std::string path = testing::fresh_folder("schedule") + "/cases";
  std::string cases;
  std::string ours;
  for (int i = 0; i < 2000; ++i) {
    const ProfilerSchedule schedule = {.skip_first = up_to(9),
                                       .wait = up_to(6),
                                       .warmup = up_to(4),
                                       .active = 1 + up_to(4),
                                       .repeat = up_to(4),
                                       .skip_first_wait = up_to(1) == 1};
    cases += fmt::format("{} {} {} {} {} {} {}\n", schedule.skip_first, schedule.wait, schedule.warmup, schedule.active,
                         schedule.repeat, schedule.skip_first_wait ? 1 : 0, kSteps);
    ours += letters(schedule, kSteps) + "\n";
  }
  std::ofstream(path) << cases;
  const auto oracle = testing::run_program({testing::python(), testing::script("schedule_oracle.py"), path});
  ASSERT_EQ(oracle.status, 0) << oracle.err;
  EXPECT_EQ(ours, oracle.out);
}

}  // namespace
}  // namespace levin
