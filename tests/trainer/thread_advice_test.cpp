#include <levin/core/trainer/thread_advice.h>

#include <levin/core/devices/cpu_cores.h>

#include "../support/self_program.h"
#include "../support/tiny.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

namespace levin {
namespace {

using ::testing::HasSubstr;

TEST(ThreadAdvice, NoneWhereThreadsHaveTheirCores) {
  EXPECT_EQ(thread_advice({.threads = 8, .ranks = 1, .usable = 8, .free = 8}), "");
  EXPECT_EQ(thread_advice({.threads = 8, .ranks = 1, .usable = 8, .free = 4.6}), "") << "not clearly busy";
  EXPECT_EQ(thread_advice({.threads = 2, .ranks = 1, .usable = 2, .free = 1.6}), "");
  EXPECT_EQ(thread_advice({.threads = 2, .ranks = 4, .usable = 8, .free = 7}), "");
  EXPECT_EQ(thread_advice({.threads = 2, .ranks = 1, .usable = 1.5, .free = 1.5}), "") << "a fraction of one too many";
}

TEST(ThreadAdvice, NoneForOneThread) {
  EXPECT_EQ(thread_advice({.threads = 1, .ranks = 1, .usable = 8, .free = 0}), "");
  EXPECT_EQ(thread_advice({.threads = 1, .ranks = 4, .usable = 2, .free = 2}), "");
}

TEST(ThreadAdvice, SaysWhatToSetOnABusyHost) {
  EXPECT_EQ(thread_advice({.threads = 8, .ranks = 1, .usable = 8, .free = 2.2}),
            "8 threads for operators, but about 2 of 8 cores are free: every operator waits for its slowest thread; "
            "hint: OMP_NUM_THREADS=2");
  EXPECT_THAT(thread_advice({.threads = 2, .ranks = 1, .usable = 2, .free = 0.1}),
              ::testing::AllOf(HasSubstr("about 0 of 2 cores are free"), HasSubstr("OMP_NUM_THREADS=1")));
  EXPECT_THAT(thread_advice({.threads = 4, .ranks = 2, .usable = 8, .free = 4}),
              ::testing::AllOf(HasSubstr("4 threads for operators in each of 2 ranks"),
                               HasSubstr("about 4 of 8 cores are free"), HasSubstr("OMP_NUM_THREADS=2")));
}

TEST(ThreadAdvice, SaysWhatToSetUnderAQuota) {
  EXPECT_EQ(thread_advice({.threads = 64, .ranks = 1, .usable = 2.5, .free = 2.5}),
            "64 threads for operators, but 2.5 cores for this process: every operator waits for its slowest thread; "
            "hint: OMP_NUM_THREADS=3");
  EXPECT_THAT(thread_advice({.threads = 8, .ranks = 4, .usable = 8, .free = 8}),
              ::testing::AllOf(HasSubstr("in each of 4 ranks"), HasSubstr("8 cores for this process"),
                               HasSubstr("OMP_NUM_THREADS=2")));
}

/// Two trainings with more threads than cores.
const testing::SelfProgram two_fits("thread_advice_two_fits", [] {
  at::set_num_threads(2 * static_cast<int>(CpuCores().usable()) + 2);
  for (int i = 0; i < 2; ++i) Trainer(testing::quiet(1)).fit(make<testing::TinyModule>({}), testing::tiny_loader(8));
  return 0;
});

TEST(ThreadAdvice, IsTheFirstLineOfAProgramAndSaidOnce) {
  const auto result = two_fits.run();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(result.err.starts_with("[levin] warning: ")) << result.err;
  EXPECT_LT(result.err.find("threads for operators, but "), result.err.find('\n')) << result.err;
  EXPECT_EQ(result.err.find("threads for operators"), result.err.rfind("threads for operators")) << result.err;
}

}  // namespace
}  // namespace levin
