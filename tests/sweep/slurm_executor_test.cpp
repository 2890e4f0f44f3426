#include <levin/core/sweep/slurm_executor.h>

#include <gtest/gtest.h>

namespace levin::sweep {
namespace {

TEST(SlurmExecutorWords, NumbersInARowBecomeRanges) {
  EXPECT_EQ(array_indices({0, 1, 2, 3, 7, 9, 10}), "0-3,7,9-10");
  EXPECT_EQ(array_indices({5}), "5");
}

TEST(SlurmExecutorWords, WordsOfACommandReachTheShellAsTheyAre) {
  EXPECT_EQ(shell_command({"a b", "it's", "$HOME"}), "'a b' 'it'\\''s' '$HOME'");
}

}  // namespace
}  // namespace levin::sweep
