#include <levin/loggers/background_worker.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/loggers/record_spool.h>

#include <gtest/gtest.h>
#include "../support/eventually.h"
#include "../support/faulty_file_system.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace levin {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using testing::eventually;

/// Only a hang takes so long.
constexpr auto kLong = 4min;

/// What a test's sink has and does; the test keeps it, the worker's sink refers to it.
struct Behaviour {
  std::atomic<bool> fails = false;
  std::atomic<bool> blocks = false;     ///< a call waits until this is false, or it is stopped
  std::atomic<bool> is_quick = false;   ///< it takes records when it is stopped, too
  std::atomic<int> strange_faults = 0;  ///< so many calls throw what is no levin::Error
  std::atomic<int> calls = 0;
  const std::string unknown = "of an unknown kind";
  std::mutex mutex;
  std::vector<std::string> received;

  std::vector<std::string> all() {
    const std::lock_guard lock(mutex);
    return received;
  }
};

class TestSink : public RecordSink {
 public:
  explicit TestSink(std::shared_ptr<Behaviour> behaviour) : behaviour_(std::move(behaviour)) {}
  size_t send(std::span<const std::string> records, const std::atomic<bool>& stop) override {
    ++behaviour_->calls;
    while (behaviour_->blocks && !stop) std::this_thread::sleep_for(1ms);
    if (behaviour_->strange_faults > 0) {
      if (behaviour_->strange_faults-- % 2 == 0) throw std::bad_alloc();
      throw std::filesystem::filesystem_error("odd", std::make_error_code(std::errc::io_error));
    }
    if ((stop && !behaviour_->is_quick) || behaviour_->fails) throw Error("test", "the sink is away");
    const auto unknown = std::find(records.begin(), records.end(), behaviour_->unknown);
    records = records.first(static_cast<size_t>(unknown - records.begin()));
    const std::lock_guard lock(behaviour_->mutex);
    behaviour_->received.insert(behaviour_->received.end(), records.begin(), records.end());
    return records.size();
  }

 private:
  const std::shared_ptr<Behaviour> behaviour_;
};

class BackgroundWorkerTest : public ::testing::Test {
 protected:
  BackgroundWorkerTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    run_folder_ = ::testing::TempDir() + "levin_worker_" + test->name() + "_" + std::to_string(::getpid());
    folder_ = run_folder_ + "/unsent";
    std::filesystem::remove_all(run_folder_);
    log::set_sink([this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      // Such as that the end waits, which depends on how busy the machine is.
      (line.find("warning: ") == std::string::npos ? notices_ : warnings_).push_back(line);
    });
  }
  ~BackgroundWorkerTest() override {
    log::set_sink(nullptr);
    std::filesystem::remove_all(run_folder_);
  }

  std::unique_ptr<BackgroundWorker> worker(size_t memory_bytes = 1 << 20) {
    return std::make_unique<BackgroundWorker>(BackgroundWorkerOptions{.name = "test logger",
                                                                      .spool = folder_,
                                                                      .later = "`send` sends them",
                                                                      .memory_bytes = memory_bytes,
                                                                      .first_pause = 10ms,
                                                                      .longest_pause = 50ms},
                                              std::make_unique<TestSink>(behaviour_));
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }
  std::vector<std::string> notices() {
    const std::lock_guard lock(mutex_);
    return notices_;
  }
  static std::vector<std::string> numbers(int begin, int end) {
    std::vector<std::string> texts;
    for (int i = begin; i < end; ++i) texts.push_back(std::to_string(i));
    return texts;
  }
  static void push(BackgroundWorker& worker, int begin, int end) {
    for (auto& text : numbers(begin, end)) worker.push(text);
  }

  std::shared_ptr<Behaviour> behaviour_ = std::make_shared<Behaviour>();
  std::string run_folder_;
  std::string folder_;  ///< the spool

 private:
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::vector<std::string> notices_;
};

TEST_F(BackgroundWorkerTest, EverythingArrivesInOrder) {
  auto made = worker();
  push(*made, 0, 10'000);
  ASSERT_TRUE(eventually([&] { return behaviour_->all().size() == 10'000; }));
  EXPECT_FALSE(std::filesystem::exists(folder_)) << "memory had room for all";
  push(*made, 10'000, 20'000);
  made->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 20'000));
  EXPECT_EQ(made->waiting(), 0);
  EXPECT_TRUE(warnings().empty());
}

TEST_F(BackgroundWorkerTest, WhatASinkThatIsAwayMissedArrivesWhenItIsBack) {
  behaviour_->fails = true;
  auto made = worker();
  push(*made, 0, 100);
  ASSERT_TRUE(eventually([&] { return behaviour_->calls > 3; }));
  push(*made, 100, 200);
  ASSERT_TRUE(eventually([&] { return !FileSystem::current().list(folder_).empty(); }));
  behaviour_->fails = false;
  ASSERT_TRUE(eventually([&] { return behaviour_->all().size() == 200; }));
  push(*made, 200, 300);
  made->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 300));
  EXPECT_TRUE(FileSystem::current().list(folder_).empty());
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find(
                "test logger: [test] the sink is away; training goes on; what cannot be sent is kept in " + folder_),
            std::string::npos)
      << warnings()[0];
}

TEST_F(BackgroundWorkerTest, WhatIsLeftIsKeptAndSentByALaterOne) {
  behaviour_->fails = true;
  {
    auto made = worker();
    push(*made, 0, 500);
    const auto before = Clock::now();
    made->finish(kLong);
    EXPECT_LT(Clock::now() - before, kLong) << "a sink that fails is not waited for";
    EXPECT_EQ(made->waiting(), 500);
  }
  ASSERT_EQ(warnings().size(), 2u);
  EXPECT_NE(warnings()[1].find("500 records"), std::string::npos);
  EXPECT_NE(warnings()[1].find("are kept in " + folder_ + "; `send` sends them"), std::string::npos);
  behaviour_->fails = false;
  auto later = worker();
  push(*later, 500, 510);
  later->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 510));
  EXPECT_TRUE(FileSystem::current().list(folder_).empty());
}

TEST_F(BackgroundWorkerTest, ABlockedSinkCostsThePusherNothingAndMemoryHasItsBound) {
  behaviour_->blocks = true;
  auto made = worker(/*memory_bytes=*/64 << 10);
  constexpr int kCount = 20'000;
  push(*made, 0, kCount);  // would not come back if it waited for the sink
  // 64 KiB hold some 1600 of these: the rest is on disk.
  EXPECT_FALSE(FileSystem::current().list(folder_).empty());
  EXPECT_EQ(made->waiting(), kCount);
  behaviour_->blocks = false;
  made->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, kCount));
}

TEST_F(BackgroundWorkerTest, FinishHasItsBound) {
  behaviour_->blocks = true;
  auto made = worker();
  push(*made, 0, 10);
  const auto before = Clock::now();
  made->finish(200ms);  // comes back, though the sink does not
  EXPECT_GE(Clock::now() - before, 190ms);
  EXPECT_EQ(made->waiting(), 10);
  made.reset();
  behaviour_->blocks = false;
  worker()->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 10));
}

TEST_F(BackgroundWorkerTest, AFullDiskLosesNothingAsLongAsMemoryHolds) {
  testing::FaultyFileSystem files;
  files.fail_after_operations(0);
  behaviour_->fails = true;
  auto made = worker();
  push(*made, 0, 100);
  ASSERT_TRUE(eventually([&] { return warnings().size() == 2; }));
  EXPECT_NE(warnings()[1].find("No space left on device"), std::string::npos) << warnings()[1];
  behaviour_->fails = false;
  made->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 100));
  EXPECT_EQ(warnings().size(), 2u);
}

TEST_F(BackgroundWorkerTest, WhatNeitherMemoryNorDiskHoldsIsCounted) {
  testing::FaultyFileSystem files;
  files.fail_after_operations(0);
  behaviour_->fails = true;
  auto made = worker(/*memory_bytes=*/4000);
  push(*made, 0, 1000);
  made->finish(1s);
  ASSERT_FALSE(warnings().empty());
  EXPECT_NE(warnings().back().find("1000 records could be neither sent nor kept on disk and are lost"),
            std::string::npos)
      << warnings().back();
}

TEST_F(BackgroundWorkerTest, ATornSpoolGivesItsWholeRecords) {
  behaviour_->fails = true;
  {
    auto made = worker();
    push(*made, 0, 50);
    made->finish(0s);
  }
  const auto names = FileSystem::current().list(folder_);
  ASSERT_FALSE(names.empty());
  const std::string last = folder_ + "/" + names.back();
  std::filesystem::resize_file(last, std::filesystem::file_size(last) - 1);
  behaviour_->fails = false;
  worker()->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 49));
}

TEST_F(BackgroundWorkerTest, AForkedProcessLeavesItAlone) {
  auto made = worker();
  push(*made, 0, 10);
  const pid_t child = ::fork();
  if (child == 0) {
    made->push("of the child");
    made->finish(kLong);
    made.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  push(*made, 10, 20);
  made->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 20));
}

TEST_F(BackgroundWorkerTest, RecordsMayHoldAnyBytes) {
  const std::string odd("a\0\n\xff", 4);
  behaviour_->fails = true;
  {
    auto made = worker();
    made->push(odd);
    made->push("");
    made->push(std::string(1 << 20, 'x'));
    made->finish(0s);
  }
  behaviour_->fails = false;
  worker()->finish(kLong);
  EXPECT_EQ(behaviour_->all(), (std::vector<std::string>{odd, "", std::string(1 << 20, 'x')}));
}

TEST_F(BackgroundWorkerTest, WhatTheEndWaitsForIsOnDisk) {
  behaviour_->blocks = true;
  auto made = worker();
  push(*made, 0, 5);
  ASSERT_TRUE(eventually([&] { return behaviour_->calls == 1; }));
  push(*made, 5, 10);
  std::thread end([&] { made->finish(kLong); });
  EXPECT_TRUE(eventually([&] { return !notices().empty(); }));
  // What a process that is killed now leaves.
  const std::string copy = run_folder_ + "/copy";
  std::filesystem::copy(folder_, copy);
  behaviour_->blocks = false;
  end.join();
  EXPECT_TRUE(warnings().empty());
  ASSERT_EQ(notices().size(), 1u);
  EXPECT_NE(notices()[0].find("test logger: waits up to 240 s for 10 records; until then they are kept in " + folder_),
            std::string::npos)
      << notices()[0];
  EXPECT_EQ(behaviour_->all(), numbers(0, 10));
  EXPECT_TRUE(FileSystem::current().list(folder_).empty());
  std::vector<std::string> kept;
  for (RecordSpool spool(copy); !spool.empty(); spool.pop_front())
    for (auto& record : spool.front()) kept.push_back(std::move(record));
  EXPECT_EQ(kept, numbers(0, 10));
}

TEST_F(BackgroundWorkerTest, PatienceMayBeWithoutBound) {
  behaviour_->blocks = true;
  auto made = worker();
  push(*made, 0, 10);
  std::thread release([&] {
    std::this_thread::sleep_for(50ms);
    behaviour_->blocks = false;
  });
  made->finish(std::chrono::milliseconds::max());
  release.join();
  EXPECT_EQ(behaviour_->all(), numbers(0, 10));
}

TEST_F(BackgroundWorkerTest, AnyExceptionIsAFailure) {
  behaviour_->strange_faults = 4;
  auto made = worker();
  push(*made, 0, 10);
  ASSERT_TRUE(eventually([&] { return behaviour_->all().size() == 10; }));
  made->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 10));
  EXPECT_EQ(warnings().size(), 1u);
}

TEST_F(BackgroundWorkerTest, RecordsOfAnUnknownKindAreSetAside) {
  auto records = numbers(0, 10);
  records.insert(records.begin() + 5, 2, behaviour_->unknown);
  RecordSpool(folder_).append(records);
  worker()->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 10));
  const auto names = FileSystem::current().list(folder_);
  ASSERT_EQ(names.size(), 1u);
  EXPECT_TRUE(names[0].ends_with(".unreadable")) << names[0];
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings().back().find("is set aside as " + folder_ + "/" + names[0]), std::string::npos)
      << warnings().back();
  worker()->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 10));
}

TEST_F(BackgroundWorkerTest, WithoutASpoolTheSinkGetsWhatIsLeft) {
  behaviour_->blocks = true;
  behaviour_->is_quick = true;
  BackgroundWorker made({.name = "test logger"}, std::make_unique<TestSink>(behaviour_));
  push(made, 0, 10);
  ASSERT_TRUE(eventually([&] { return behaviour_->calls == 1; }));
  push(made, 10, 20);
  made.finish(0s);
  EXPECT_EQ(behaviour_->all(), numbers(0, 20));
  EXPECT_TRUE(warnings().empty()) << warnings().front();
}

TEST_F(BackgroundWorkerTest, WithoutASpoolWhatTheSinkDoesNotTakeIsCounted) {
  behaviour_->blocks = true;
  BackgroundWorker made({.name = "test logger"}, std::make_unique<TestSink>(behaviour_));
  push(made, 0, 10);
  made.finish(0s);
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_NE(warnings()[0].find("10 records could be neither sent nor kept on disk and are lost"), std::string::npos)
      << warnings()[0];
}

TEST_F(BackgroundWorkerTest, TwoWithOneSpoolLoseNothing) {
  behaviour_->fails = true;
  {
    auto first = worker();
    auto second = worker();
    push(*first, 0, 10);
    push(*second, 10, 20);
    try {
      const BackgroundWorker sender({.name = "sender", .spool = folder_, .spool_must_be_free = true},
                                    std::make_unique<TestSink>(behaviour_));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(folder_ + " is being sent by process " + std::to_string(::getpid())),
                std::string::npos)
          << error.what();
    }
  }
  behaviour_->fails = false;
  worker()->finish(kLong);
  EXPECT_EQ(behaviour_->all(), numbers(0, 20));
}

}  // namespace
}  // namespace levin
