#include <levin/core/comm/control_plane.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/utf8.h>
#include <levin/core/comm/heartbeat.h>
#include <levin/core/comm/memory_store.h>

#include "../support/eventually.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// For what happens within some milliseconds on a machine that has nothing else to do.
constexpr auto kPatience = 240s;

bool wait_until(const std::function<bool()>& condition) { return testing::eventually(condition); }

/// What a test does to the connections of a store, and what it sees of them.
struct Connection {
  std::atomic<bool> broken{false};
  std::atomic<int64_t> operations{0};
  std::atomic<int64_t> operations_of_maker{0};  ///< on the thread that made this
  const std::thread::id maker = std::this_thread::get_id();
  std::mutex mutex;
  std::condition_variable changed;
  bool silent = false;

  void silence(bool on) {
    {
      const std::lock_guard lock(mutex);
      silent = on;
    }
    changed.notify_all();
  }
};

class FaultyStore : public Store {
 public:
  FaultyStore(std::unique_ptr<Store> store, std::shared_ptr<Connection> connection)
      : store_(std::move(store)), connection_(std::move(connection)) {}

  void set(const std::string& key, const std::string& value) override { operate().set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return operate().get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override { return operate().add(key, amount); }
  bool contains(const std::string& key) override { return operate().contains(key); }
  std::unique_ptr<Store> clone() const override { return std::make_unique<FaultyStore>(store_->clone(), connection_); }

 private:
  Store& operate() {
    ++connection_->operations;
    if (std::this_thread::get_id() == connection_->maker) ++connection_->operations_of_maker;
    std::unique_lock lock(connection_->mutex);
    connection_->changed.wait(lock, [this] { return !connection_->silent; });
    if (connection_->broken) throw Error("comm", "Broken pipe");
    return *store_;
  }

  const std::unique_ptr<Store> store_;
  const std::shared_ptr<Connection> connection_;
};

/// A rank with what its control plane called.
struct Rank {
  ~Rank() { plane.reset(); }

  int64_t number = 0;
  RankStatus rank_status;
  std::shared_ptr<Connection> connection = std::make_shared<Connection>();
  std::atomic<int> aborts{0};
  std::atomic<int> give_ups{0};
  std::mutex mutex;
  std::string abort_reason;
  std::string give_up_reason;
  std::unique_ptr<ControlPlane> plane;

  std::string reason_of_abort() {
    const std::lock_guard lock(mutex);
    return abort_reason;
  }
  std::string reason_of_give_up() {
    const std::lock_guard lock(mutex);
    return give_up_reason;
  }
};

/// A rank's control plane looks at the store each 2 ms; nobody dies, stalls or runs out of grace unless a test says so.
std::unique_ptr<Rank> make_rank(const Store& store, ControlPlaneOptions options) {
  auto rank = std::make_unique<Rank>();
  rank->number = options.rank;
  const ControlPlaneOptions defaults;
  if (options.store_rank == defaults.store_rank) options.store_rank = -1;
  if (options.poll_interval == defaults.poll_interval) options.poll_interval = 2ms;
  if (options.heartbeat_timeout == defaults.heartbeat_timeout) options.heartbeat_timeout = 120s;
  if (options.start_timeout == defaults.start_timeout) options.start_timeout = 1h;
  if (options.grace == defaults.grace) options.grace = 120s;
  if (options.prefix.empty()) options.prefix = "job";
  if (!options.abort) {
    options.abort = [rank = rank.get()](const std::string& reason) {
      const std::lock_guard lock(rank->mutex);
      rank->abort_reason = reason;
      ++rank->aborts;
    };
  }
  if (!options.give_up) {
    options.give_up = [rank = rank.get()](const std::string& reason) {
      const std::lock_guard lock(rank->mutex);
      rank->give_up_reason = reason;
      ++rank->give_ups;
    };
  }
  auto connection = std::make_unique<FaultyStore>(store.clone(), rank->connection);
  rank->plane = std::make_unique<ControlPlane>(std::move(connection), options, rank->rank_status);
  return rank;
}

using Ranks = std::vector<std::unique_ptr<Rank>>;

Ranks make_ranks(const Store& store, int64_t count, ControlPlaneOptions options = {}) {
  Ranks ranks;
  options.world_size = count;
  for (options.rank = 0; options.rank < count; ++options.rank) ranks.push_back(make_rank(store, options));
  return ranks;
}

/// Runs `program` for all ranks, each on a thread; an exception fails the test.
void run_ranks(Ranks& ranks, const std::function<void(Rank&)>& program) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&program, &rank = *rank] {
      try {
        program(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank.number << " threw " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Stands for the collectives of a step: nobody passes before all have come. Can be used again and again.
class Meeting {
 public:
  explicit Meeting(int64_t size) : size_(size) {}
  /// False where the others did not come.
  bool pass() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return true;
    }
    return changed_.wait_for(lock, kPatience, [&] { return round_ != round; });
  }

 private:
  const int64_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t arrived_ = 0;
  int64_t round_ = 0;
};

void expect_thrown(ControlPlane& plane, const std::string& message) {
  try {
    plane.throw_if_failed();
    ADD_FAILURE() << "nothing was thrown; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), error_text("[ranks] " + message));
  }
}

// --- Stops ---

/// Trains until the ranks stop, in several rounds with the same control planes; returns nothing but expectations.
void expect_common_stops(unsigned seed, bool in_step) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed << (in_step ? ", in step" : ", each at its own pace"));
  std::mt19937 generator(seed);
  const auto draw = [&generator](int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(generator);
  };
  constexpr int64_t kRounds = 5;
  const int64_t count = 2 + draw(3);
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, count, {.poll_interval = std::chrono::milliseconds(1 + draw(3))});

  // Per round and rank: before which batch it asks for a stop (none: -1), and how long its batches take.
  struct Plan {
    int64_t request_at = -1;
    int64_t microseconds = 0;
  };
  std::vector<std::vector<Plan>> plans(kRounds, std::vector<Plan>(static_cast<size_t>(count)));
  for (auto& round : plans) {
    const int64_t mode = draw(3);
    for (auto& plan : round) {
      if (mode == 1 ? draw(2) == 0 : mode == 2) plan.request_at = draw(20);
      // Never nothing: at their own pace, a rank must not get further ahead than the others can follow.
      plan.microseconds = 30 + draw(draw(4) == 0 ? 400 : 100);
    }
    round[static_cast<size_t>(draw(count))].request_at = draw(20);
  }

  Meeting step(count);
  Meeting barrier(count);
  std::vector<std::vector<int64_t>> stops(kRounds, std::vector<int64_t>(static_cast<size_t>(count), -1));
  run_ranks(ranks, [&](Rank& rank) {
    const auto number = static_cast<size_t>(rank.number);
    for (size_t round = 0; round < kRounds; ++round) {
      const Plan& plan = plans[round][number];
      for (int64_t batch = 0;; ++batch) {
        if (batch == plan.request_at) rank.plane->request_stop("rank " + std::to_string(rank.number));
        if (rank.plane->begin_batch(batch)) {
          stops[round][number] = batch;
          break;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(plan.microseconds));
        if (in_step) {
          ASSERT_TRUE(step.pass()) << "the others are not in batch " << batch;
        }
        ASSERT_LT(batch, 10'000'000) << "nobody stops this rank";
      }
      EXPECT_EQ(rank.plane->stop_reason().substr(0, 5), "rank ");
      ASSERT_TRUE(barrier.pass());
      rank.plane->forget_stop();
      EXPECT_EQ(rank.plane->stop_reason(), "");
      ASSERT_TRUE(barrier.pass());
    }
  });
  for (const auto& round : stops)
    for (const int64_t stop : round) EXPECT_EQ(stop, round[0]);
}

TEST(ControlPlaneStop, RanksInStepStopBeforeTheSameBatch) {
  for (unsigned seed = 0; seed < 50 && !::testing::Test::HasFailure(); ++seed) expect_common_stops(seed, true);
}

TEST(ControlPlaneStop, RanksAtTheirOwnPaceStopBeforeTheSameBatch) {
  for (unsigned seed = 100; seed < 150 && !::testing::Test::HasFailure(); ++seed) expect_common_stops(seed, false);
}

TEST(ControlPlaneStop, ARankGoesOnWhileTheOneItWaitsForIsBlocked) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 2);
  for (int64_t batch = 0; batch <= 5; ++batch) ASSERT_FALSE(ranks[0]->plane->begin_batch(batch));
  for (int64_t batch = 0; batch <= 7; ++batch) ASSERT_FALSE(ranks[1]->plane->begin_batch(batch));
  // From here on the thread of rank 1 waits in a collective of batch 7, which rank 0 has to reach.
  ranks[0]->plane->request_stop("signal 15");
  ASSERT_TRUE(wait_until([&] { return ranks[1]->plane->stop_reason() == "signal 15"; }));
  EXPECT_FALSE(ranks[0]->plane->begin_batch(6));
  EXPECT_FALSE(ranks[0]->plane->begin_batch(7));
  EXPECT_TRUE(ranks[0]->plane->begin_batch(8));
  EXPECT_TRUE(ranks[1]->plane->begin_batch(8));
}

TEST(ControlPlaneStop, WorksBeforeTheFirstBatchAndWithoutOtherRanks) {
  for (const int64_t count : {1, 3}) {
    auto store = make_memory_store();
    Ranks ranks = make_ranks(*store, count);
    ranks.back()->plane->request_stop("early");
    ASSERT_TRUE(wait_until([&] { return store->contains("job/stop_at/0"); }));
    for (auto& rank : ranks) EXPECT_TRUE(rank->plane->begin_batch(0));
  }
}

TEST(ControlPlaneStop, DoesNotWaitForARankThatHasLeft) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 3);
  for (auto& rank : ranks) ASSERT_FALSE(rank->plane->begin_batch(0));
  ranks[1]->plane.reset();
  ranks[2]->plane->request_stop("test");
  for (const size_t rank : {0, 2}) {
    ASSERT_TRUE(wait_until([&] { return store->contains("job/stop_at/0"); }));
    EXPECT_TRUE(ranks[rank]->plane->begin_batch(1));
  }
}

TEST(ControlPlaneStop, CostsTheRanksThreadNoStoreAccess) {
  auto store = make_memory_store();
  auto rank = make_rank(*store, {.poll_interval = 1h});
  ASSERT_TRUE(wait_until([&] { return rank->connection->operations > 0; }));
  constexpr int64_t kBatches = 100'000;
  // Of the processor, which other programs may share; the least is that of a round that nothing disturbed.
  const auto least_clocks_of = [](std::clock_t& least, const std::function<void(int64_t)>& work) {
    const std::clock_t start = std::clock();
    for (int64_t batch = 0; batch < kBatches; ++batch) work(batch);
    least = std::min(least, std::clock() - start);
  };
  std::clock_t batches = std::numeric_limits<std::clock_t>::max();
  std::clock_t system_calls = batches;
  for (int round = 0; round < 10; ++round) {
    least_clocks_of(batches, [&, first = round * kBatches](int64_t batch) {
      rank->plane->begin_batch(first + batch);
      rank->plane->throw_if_failed();
    });
    least_clocks_of(system_calls, [](int64_t) { ::syscall(SYS_getppid); });
  }
  EXPECT_EQ(rank->connection->operations_of_maker, 0);
  EXPECT_LT(rank->connection->operations, 100) << "the helper's work grows with the batches";
#ifndef LEVIN_SANITIZED  // they make each access dear, and no system call
  EXPECT_LT(batches, system_calls) << "a lock or a system call a batch";
#endif
}

// --- Failures ---

TEST(ControlPlaneFailure, ReachesTheOthersAndAbortsTheirCollectives) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 3);
  for (auto& rank : ranks) {
    rank->plane->throw_if_failed();
    EXPECT_FALSE(rank->plane->failure_of_other(0ms));
  }
  ranks[2]->plane->report_failure("[data] the file is\n gone");
  const std::string text = "rank 2 failed: [data] the file is\n gone";
  ASSERT_TRUE(ranks[0]->plane->failure_of_other(kPatience));
  try {
    ranks[0]->plane->throw_if_failed();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const RankFailedError& error) {
    EXPECT_EQ(error.failure().rank, 2);
    EXPECT_EQ(error.failure().message, "[data] the file is\n gone");
    EXPECT_FALSE(error.failure().gone);
  }
  for (const size_t rank : {0, 1}) {
    const auto failure = ranks[rank]->plane->failure_of_other(kPatience);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->rank, 2);
    EXPECT_EQ(failure->message, "[data] the file is\n gone");
    EXPECT_FALSE(failure->gone);
    ASSERT_TRUE(wait_until([&] { return ranks[rank]->aborts > 0; }));
    EXPECT_EQ(ranks[rank]->reason_of_abort(), text);
    expect_thrown(*ranks[rank]->plane, text);
    EXPECT_THROW(ranks[rank]->plane->begin_batch(0), Error);
  }
  EXPECT_FALSE(ranks[2]->plane->failure_of_other(kPatience)) << "its own failure";
  expect_thrown(*ranks[2]->plane, text);
  for (auto& rank : ranks) rank->plane.reset();
  EXPECT_EQ(ranks[0]->aborts, 1);
  EXPECT_EQ(ranks[1]->aborts, 1);
  EXPECT_EQ(ranks[2]->aborts, 0) << "the rank that throws unwinds by itself";
  for (auto& rank : ranks) EXPECT_EQ(rank->give_ups, 0);
}

TEST(ControlPlaneFailure, TheFirstOneIsTheOneOfAllRanks) {
  for (int round = 0; round < 30; ++round) {
    auto store = make_memory_store();
    Ranks ranks = make_ranks(*store, 4);
    Meeting start(4);
    std::vector<std::string> thrown(4);
    run_ranks(ranks, [&](Rank& rank) {
      ASSERT_TRUE(start.pass());
      rank.plane->report_failure("cause " + std::to_string(rank.number));
      try {
        rank.plane->throw_if_failed();
      } catch (const Error& error) {
        thrown[static_cast<size_t>(rank.number)] = error.what();
      }
    });
    const std::string number = thrown[0].substr(sizeof("[ranks] rank ") - 1, 1);
    for (const auto& text : thrown) EXPECT_EQ(text, "[ranks] rank " + number + " failed: cause " + number);
  }
}

TEST(ControlPlaneFailure, OneThatDiedWhileReportingHidesNoOther) {
  auto store = make_memory_store();
  store->add("job/failures", 1);
  Ranks ranks = make_ranks(*store, 2);
  ranks[1]->plane->report_failure("second");
  const auto failure = ranks[0]->plane->failure_of_other(kPatience);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text(), "rank 1 failed: second");
}

TEST(ControlPlaneFailure, IsReportedEvenByARankThatLeavesAtOnce) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 2, {.poll_interval = 50ms});
  ranks[1]->plane->report_failure("no time");
  ranks[1].reset();
  ASSERT_TRUE(ranks[0]->plane->failure_of_other(kPatience));
}

TEST(ControlPlaneFailure, EndsTheWaitForAnAgreement) {
  auto store = make_memory_store();
  auto rank = make_rank(*store, {.world_size = 2});  // no rank 1 ever answers
  rank->plane->request_stop("test");
  ASSERT_TRUE(wait_until([&] { return store->contains("job/candidate/0/0"); }));
  auto waiting = std::async(std::launch::async, [&] { return rank->plane->begin_batch(0); });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  publish_failure(*store, "job", {.rank = 1, .message = "out of memory"});
  ASSERT_EQ(waiting.wait_for(kPatience), std::future_status::ready);
  try {
    waiting.get();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[ranks] rank 1 failed: out of memory");
  }
}

TEST(ControlPlaneFailure, EndsARankThatIsStuckAfterTheGrace) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 2, {.grace = 100ms});
  ranks[0]->rank_status.batch = 3;
  ranks[0]->rank_status.activity = "training_step";
  // A look of the helper takes some operations, so it sees this in one of the next.
  const int64_t operations = ranks[0]->connection->operations;
  ASSERT_TRUE(wait_until([&] { return ranks[0]->connection->operations > operations + 20; }));
  const auto start = Clock::now();
  ranks[1]->plane->report_failure("x");
  ASSERT_TRUE(wait_until([&] { return ranks[0]->give_ups == 1; }));
  EXPECT_GE(Clock::now() - start, 100ms);
  EXPECT_EQ(ranks[0]->reason_of_give_up(),
            "rank 0 (last seen in training_step of batch 3) did not end within 100 ms after this failure: rank 1 "
            "failed: x");
  ASSERT_TRUE(wait_until([&] { return ranks[1]->give_ups == 1; })) << "the rank that failed may be stuck as well";
  for (auto& rank : ranks) rank->plane.reset();
  for (auto& rank : ranks) EXPECT_EQ(rank->give_ups, 1);
}

TEST(ControlPlaneFailure, EndsARankWhoseAbortHangs) {
  auto store = make_memory_store();
  std::promise<void> hanging;
  std::promise<void> end_of_hang;
  std::promise<std::string> given_up;
  auto rank = make_rank(*store, {.world_size = 2,
                                 .grace = 50ms,
                                 .abort =
                                     [&](const std::string&) {
                                       hanging.set_value();
                                       end_of_hang.get_future().wait();
                                     },
                                 .give_up = [&](const std::string& reason) { given_up.set_value(reason); }});
  publish_failure(*store, "job", {.rank = 1, .message = "x"});
  EXPECT_EQ(hanging.get_future().wait_for(kPatience), std::future_status::ready);
  auto ending = std::async(std::launch::async, [&] { rank->plane.reset(); });
  auto reason = given_up.get_future();
  ASSERT_EQ(reason.wait_for(kPatience), std::future_status::ready);
  EXPECT_NE(reason.get().find("did not end within 50 ms"), std::string::npos);
  EXPECT_EQ(ending.wait_for(0ms), std::future_status::timeout);
  end_of_hang.set_value();
  EXPECT_EQ(ending.wait_for(kPatience), std::future_status::ready);
}

TEST(ControlPlaneFailure, SurvivesAnAbortThatThrows) {
  auto store = make_memory_store();
  std::mutex mutex;
  std::vector<std::string> lines;
  log::set_sink([&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  auto rank =
      make_rank(*store, {.rank = 1, .world_size = 2, .abort = [](const std::string&) { throw Error("nccl", "odd"); }});
  publish_failure(*store, "job", {.rank = 0, .message = "x"});
  ASSERT_TRUE(rank->plane->failure_of_other(kPatience));
  ASSERT_TRUE(wait_until([&] {
    const std::lock_guard lock(mutex);
    return !lines.empty();
  }));
  rank.reset();
  log::set_sink(nullptr);
  EXPECT_EQ(lines, std::vector<std::string>{
                       "[levin rank 1] warning: rank 1 could not abort its collectives; got '[nccl] odd'"});
}

TEST(ControlPlaneFailureDeathTest, EndsTheProcessOfARankThatIsStuck) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto store = make_memory_store();
        const RankStatus rank_status;
        ControlPlane plane(store->clone(), {.world_size = 2, .prefix = "job", .grace = std::chrono::milliseconds(50)},
                           rank_status);
        publish_failure(*store, "job", {.rank = 1, .message = "disk full"});
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
      },
      ::testing::ExitedWithCode(1), "did not end within 50 ms after this failure: rank 1 failed: disk full");
}

// --- The store ---

TEST(ControlPlaneStore, ABrokenConnectionIsTheEndOfTheRankThatServesIt) {
  auto store = make_memory_store();
  auto rank = make_rank(*store, {.rank = 1, .world_size = 4, .store_rank = 2});
  ASSERT_TRUE(wait_until([&] { return rank->connection->operations > 0; }));
  rank->connection->broken = true;
  const auto failure = rank->plane->failure_of_other(kPatience);
  ASSERT_TRUE(failure);
  EXPECT_TRUE(failure->gone);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->text(), "rank 2 is gone: its store cannot be reached any more; got '[comm] Broken pipe'");
  ASSERT_TRUE(wait_until([&] { return rank->aborts == 1; }));
  rank->plane->report_failure("too late");  // returns
}

TEST(ControlPlaneStore, ABrokenConnectionOfTheLaunchersStoreNamesNoRank) {
  auto store = make_memory_store();
  auto rank = make_rank(*store, {.rank = 0, .world_size = 2});
  rank->connection->broken = true;
  const auto failure = rank->plane->failure_of_other(kPatience);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text(),
            "the launcher is gone: the launcher's store cannot be reached any more; got '[comm] Broken pipe'");
}

TEST(ControlPlaneStore, OneThatDoesNotAnswerIsNoticedAndHoldsUpNobody) {
  auto store = make_memory_store();
  auto rank = make_rank(*store, {.rank = 1, .world_size = 2, .store_rank = 2, .heartbeat_timeout = 200ms});
  ASSERT_TRUE(wait_until([&] { return rank->connection->operations > 0; }));
  const auto connection = rank->connection;
  connection->silence(true);
  const auto failure = rank->plane->failure_of_other(kPatience);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text(), "rank 2 is gone: its store has not answered for 200 ms");
  ASSERT_TRUE(wait_until([&] { return rank->aborts == 1; }));
  rank.reset();  // returns though the helper is held up still
  const int64_t operations = connection->operations;
  connection->silence(false);
  EXPECT_TRUE(wait_until([&] { return connection.use_count() == 1; })) << "the helper lets go of everything";
  EXPECT_GE(connection->operations, operations);
}

TEST(ControlPlaneStore, TheRankThatServesItStaysUntilTheOthersHaveLeft) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 3, {.store_rank = 1});
  ranks[0].reset();
  auto ending = std::async(std::launch::async, [&] { ranks[1]->plane.reset(); });
  EXPECT_EQ(ending.wait_for(50ms), std::future_status::timeout);
  EXPECT_FALSE(ranks[2]->plane->failure_of_other(0ms));
  ranks[2].reset();
  EXPECT_EQ(ending.wait_for(kPatience), std::future_status::ready);
}

TEST(ControlPlaneStore, TheRankThatServesItWaitsNoLongerThanTheGraceForOnesThatAreStuck) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 2, {.store_rank = 1, .grace = 50ms});
  ranks[1]->plane->report_failure("x");
  ASSERT_TRUE(ranks[0]->plane->failure_of_other(kPatience));
  auto ending = std::async(std::launch::async, [&] { ranks[1]->plane.reset(); });
  EXPECT_EQ(ending.wait_for(kPatience), std::future_status::ready);
}

TEST(ControlPlaneStore, TheRankThatServesItDoesNotWaitForOneThatIsGone) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 2, {.store_rank = 1});
  ranks[0]->connection->broken = true;  // it will say no goodbye
  ASSERT_TRUE(ranks[0]->plane->failure_of_other(kPatience));
  publish_failure(*store, "job", {.rank = 0, .message = "killed", .gone = true});
  ASSERT_TRUE(ranks[1]->plane->failure_of_other(kPatience));
  auto ending = std::async(std::launch::async, [&] { ranks[1]->plane.reset(); });
  EXPECT_EQ(ending.wait_for(kPatience), std::future_status::ready);
}

TEST(ControlPlaneStore, TheRankThatServesItIsToldWhileItStaysThatOneIsGone) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 2, {.store_rank = 1});
  ranks[0]->connection->broken = true;  // it will say no goodbye
  auto ending = std::async(std::launch::async, [&] { ranks[1]->plane->leave(); });
  EXPECT_EQ(ending.wait_for(50ms), std::future_status::timeout);
  ranks[1]->plane->report_gone(0, "was ended by signal 9 (Killed)");
  EXPECT_EQ(ending.wait_for(kPatience), std::future_status::ready);
}

// --- Heartbeats and stalls; the rest is tested with a clock of its own in heartbeat_monitor_test.cpp ---

TEST(ControlPlaneHeartbeat, ARankThatFallsSilentIsTakenForDeadByAll) {
  std::vector<std::string> told;
  // In a short time a rank that is well may seem dead.
  EXPECT_TRUE(testing::with_time_enough([&](std::chrono::seconds time) {
    auto store = make_memory_store();
    const ControlPlaneOptions options{.world_size = 3, .heartbeat_timeout = time};
    Ranks ranks;
    for (const int64_t number : {0, 1}) {
      ControlPlaneOptions own = options;
      own.rank = number;
      ranks.push_back(make_rank(*store, own));
    }
    store->set("job/heartbeat/2", Heartbeat{.count = 5, .batch = 12, .activity = "training_step"}.encode());
    told.clear();
    for (auto& rank : ranks) {
      const auto failure = rank->plane->failure_of_other(kPatience);
      told.push_back(failure ? failure->text() : "nothing");
      EXPECT_TRUE(failure && failure->gone);
      EXPECT_TRUE(wait_until([&] { return rank->aborts == 1; }));
    }
    return told[0] == told[1] && told[0].starts_with("rank 2 is gone: nothing was heard of it for ") &&
           told[0].ends_with(" s (last seen in training_step of batch 12)");
  })) << told[0]
      << "\n"
      << told[1];
}

TEST(ControlPlaneHeartbeat, WhatALauncherReportsSaysWhereTheRankWas) {
  auto store = make_memory_store();
  Ranks ranks = make_ranks(*store, 2, {});
  store->set("job/heartbeat/2", Heartbeat{.batch = 12, .activity = "training_step"}.encode());
  ranks[0]->plane->report_gone(2, "was ended by signal 9 (Killed)");
  for (auto& rank : ranks) {
    const auto failure = rank->plane->failure_of_other(kPatience);
    ASSERT_TRUE(failure);
    EXPECT_TRUE(failure->gone);
    EXPECT_EQ(failure->text(), "rank 2 was ended by signal 9 (Killed) (last seen in training_step of batch 12)");
  }
}

TEST(ControlPlaneHeartbeat, SaysWhatTheRankWasToTheOthers) {
  auto store = make_memory_store();
  Ranks ranks =
      make_ranks(*store, 2, {.role_of = [](int64_t rank) { return "; it was number " + std::to_string(rank); }});
  ranks[0]->plane->report_gone(1, "was ended by signal 9 (Killed)");
  for (auto& rank : ranks) {
    const auto failure = rank->plane->failure_of_other(kPatience);
    ASSERT_TRUE(failure);
    EXPECT_TRUE(failure->text().ends_with("; it was number 1")) << failure->text();
  }
}

TEST(ControlPlaneHeartbeat, ARankThatIsLeftOutIsNoFailureAndNobodyWaitsForIt) {
  std::unique_ptr<Store> store;
  Ranks ranks;
  // In a short time one of the others may seem dead.
  ASSERT_TRUE(testing::with_time_enough([&](std::chrono::seconds time) {
    while (!ranks.empty()) ranks.pop_back();  // rank 0, which serves the store, leaves last
    store = make_memory_store();
    ranks = make_ranks(*store, 3, {.store_rank = 0, .heartbeat_timeout = time});
    ranks[2]->connection->broken = true;  // it says nothing from here on, not even goodbye
    ranks[0]->plane->leave_out(2, "was ended by signal 9 (Killed)");
    return !ranks[0]->plane->failure_of_other(2 * time) && !ranks[1]->plane->failure_of_other(2 * time);
  }));
  ranks[0]->plane->request_stop("test");
  const auto stops = [](Rank& rank) {
    for (int64_t batch = 0;; ++batch)
      if (rank.plane->begin_batch(batch)) return true;
  };
  auto other = std::async(std::launch::async, [&] { return stops(*ranks[1]); });
  EXPECT_TRUE(stops(*ranks[0]));
  EXPECT_TRUE(other.get());
  ranks[1].reset();
  ranks[0].reset();  // serves the store until all have left, but for the one that cannot
}

TEST(ControlPlaneHeartbeat, ALivingRankTakenForDeadLearnsOfIt) {
  auto store = make_memory_store();
  auto rank = make_rank(*store, {.rank = 1, .world_size = 2});
  publish_failure(*store, "job", {.rank = 1, .message = "nothing was heard of it", .gone = true});
  const auto failure = rank->plane->failure_of_other(kPatience);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_TRUE(wait_until([&] { return rank->aborts == 1; }));
}

TEST(ControlPlaneHeartbeat, GoodbyeIsNoDeath) {
  // In a short time one of the others may seem dead.
  EXPECT_TRUE(testing::with_time_enough([](std::chrono::seconds time) {
    auto store = make_memory_store();
    Ranks ranks = make_ranks(*store, 3, {.heartbeat_timeout = time});
    ranks[1]->rank_status.activity = "teardown";
    ranks[1].reset();
    EXPECT_TRUE(Heartbeat::decode(store->get("job/heartbeat/1", 0ms)).left);
    for (const size_t rank : {0, 2})
      if (ranks[rank]->plane->failure_of_other(2 * time)) return false;
    for (const size_t rank : {0, 2}) ranks[rank]->plane->throw_if_failed();
    return true;
  }));
}

TEST(ControlPlaneHeartbeat, TellsWhereTheRankIs) {
  auto store = make_memory_store();
  auto rank = make_rank(*store, {.world_size = 1, .heartbeat_timeout = 4s});
  rank->rank_status.batch = 4;
  rank->rank_status.activity = "backward";
  rank->rank_status.collective = "all_reduce";
  const auto last = [&] { return Heartbeat::decode(store->get("job/heartbeat/0", kPatience)); };
  EXPECT_TRUE(wait_until([&] { return last().waits() && last().unchanged >= 20ms; }));
  EXPECT_EQ(last().place(), "waiting in all_reduce of batch 4");
  rank->rank_status.collective = nullptr;
  EXPECT_TRUE(wait_until([&] { return last().place() == "in backward of batch 4"; }));
  const int64_t count = last().count;
  EXPECT_TRUE(wait_until([&] { return last().count > count; }));
}

TEST(ControlPlaneStall, IsReportedOnceWithThePlaceOfEachRank) {
  std::mutex mutex;
  std::vector<std::string> lines;
  // Heartbeats each eighth of the time, so that the ranks know of each other long before one of them has waited too
  // long; in a short time they may not.
  const bool is_told_once = testing::with_time_enough([&](std::chrono::seconds time) {
    auto store = make_memory_store();
    lines.clear();
    log::set_sink([&](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    });
    bool is_well = true;
    {
      Ranks ranks = make_ranks(*store, 3, {.heartbeat_timeout = time, .stall_after = 2 * time});
      ranks[0]->rank_status.batch = 12;
      ranks[0]->rank_status.activity = "training_step";
      for (const size_t rank : {1, 2}) {
        ranks[rank]->rank_status.batch = 12;
        ranks[rank]->rank_status.activity = "backward";
        ranks[rank]->rank_status.collective = "all_reduce";
      }
      EXPECT_TRUE(wait_until([&] {
        const std::lock_guard lock(mutex);
        return !lines.empty() || ranks[0]->aborts > 0;
      }));
      for (const auto& rank : ranks) is_well = is_well && !rank->plane->failure_of_other(200ms);
    }
    log::set_sink(nullptr);
    return is_well && lines.size() == 1 && lines[0].starts_with("[levin rank 1] ");
  });
  ASSERT_TRUE(is_told_once) << lines.size() << " lines";
  EXPECT_EQ(lines[0].find("[levin rank 1] warning: rank 1 waits in all_reduce for "), 0) << lines[0];
  for (const char* part : {" s by now; where each rank is:\n  rank 0: in training_step of batch 12 for ",
                           " s\n  rank 1: waits in all_reduce of batch 12 for ",
                           " s (activity backward)\n  rank 2: waits in all_reduce of batch 12 for "})
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace levin
