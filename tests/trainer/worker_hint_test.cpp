#include <levin/core/loops/worker_hint.h>

#include <gtest/gtest.h>

namespace levin {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(WorkerHint, SuggestsWorkersWhereTheLoopWaits) {
  EXPECT_EQ(worker_hint({.waited = seconds(9), .total = seconds(10), .workers = 0, .cores = 2}),
            "90 % of the last epoch went by waiting for data; hint: num_workers = 1 fetches batches while the step "
            "computes (now 0)");
  EXPECT_EQ(worker_hint({.waited = seconds(1), .total = seconds(4), .workers = 1, .cores = 8}),
            "25 % of the last epoch went by waiting for data; hint: num_workers = 3 fetches batches while the step "
            "computes (now 1)");
}

TEST(WorkerHint, OfAStreamSaysThatTheModuleMayMakeIt) {
  EXPECT_EQ(worker_hint({.waited = seconds(9), .total = seconds(10), .workers = 0, .cores = 2, .is_stream = true}),
            "90 % of the last epoch went by waiting for data; hint: where the module itself makes them (rollouts of a "
            "policy), make that faster; else num_workers = 1 fetches batches while the step computes (now 0)");
}

TEST(WorkerHint, SaysNothingOfShortWaitsAndWithoutACore) {
  for (const bool is_stream : {false, true}) {
    EXPECT_EQ(worker_hint({.waited = seconds(1), .total = seconds(10), .cores = 8, .is_stream = is_stream}), "");
    EXPECT_EQ(worker_hint({.waited = milliseconds(900), .total = seconds(1), .cores = 8, .is_stream = is_stream}), "");
    EXPECT_EQ(worker_hint({.waited = seconds(9), .total = seconds(10), .cores = 1, .is_stream = is_stream}), "");
  }
  EXPECT_EQ(worker_hint({}), "");
}

}  // namespace
}  // namespace levin
