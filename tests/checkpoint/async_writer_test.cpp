#include <levin/core/checkpoint/async_writer.h>

#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>

#include "../support/eventually.h"
#include "../support/faulty_file_system.h"
#include "../support/thread_collective.h"
#include "sharded_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

namespace levin {
namespace {

using namespace std::chrono_literals;
using testing::message_of;
using testing::sample_tree;
using testing::ThreadCollective;

/// The real file system, in which files are made only while a gate is open.
class GatedFiles : public FileSystem {
 public:
  GatedFiles() { FileSystem::replace(this); }
  ~GatedFiles() override { FileSystem::replace(nullptr); }

  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  /// Waits until so many folders of saves were made.
  bool wait_for_saves(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 4min, [&] { return saves_ >= count; });
  }
  int saves() {
    const std::lock_guard lock(mutex_);
    return saves_;
  }

  bool create_directory(const std::string& path) override {
    const bool made = FileSystem::create_directory(path);
    const std::lock_guard lock(mutex_);
    ++saves_;
    changed_.notify_all();
    return made;
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_open_; });
    lock.unlock();
    return FileSystem::create(path);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int saves_ = 0;
};

/// A store whose entries are files, for ranks that are processes.
class FolderStore : public Store {
 public:
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    testing::write_bytes(path(key) + ".new", value);
    std::filesystem::rename(path(key) + ".new", path(key));
  }
  std::string get(const std::string& key, std::chrono::milliseconds) override { return testing::read_bytes(path(key)); }
  int64_t add(const std::string&, int64_t) override { throw Error("test", "this store cannot add"); }
  bool contains(const std::string& key) override { return std::filesystem::exists(path(key)); }
  std::unique_ptr<Store> clone() const override { return std::make_unique<FolderStore>(folder_); }

 private:
  std::string path(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return folder_ + "/" + key;
  }
  const std::string folder_;
};

class AsyncWriter : public testing::CheckpointTest {
 protected:
  int64_t saved_step() const { return read_checkpoint(path_).at("loops").at("global_step").as_int(); }
  std::vector<std::string> neighbours() const { return FileSystem::current().list(folder_ + "/checkpoints"); }

  const std::string path_ = path("checkpoints/last");
};

TEST_F(AsyncWriter, WhatChangesLaterIsNotInTheFile) {
  State tree = sample_tree(1);
  tree["model"]["conv"] = at::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  write_checkpoint(path("expected"), tree, {});
  const State expected = read_checkpoint(path("expected"));
  GatedFiles files;
  AsyncCheckpointWriter writer;
  EXPECT_FALSE(writer.is_saving());
  writer.save(path_, tree, {.global_step = 1});
  EXPECT_TRUE(writer.is_saving());
  for (auto& [name, value] : tree["model"].as_map()) at::Tensor(value.as_tensor()).fill_(-1);
  tree["loops"]["global_step"] = int64_t{2};
  tree["optimizers"] = State();
  files.open();
  writer.wait();
  EXPECT_FALSE(writer.is_saving());
  const State back = read_checkpoint(path_);
  testing::expect_same(expected, back);
  EXPECT_EQ(back.at("model").at("conv").as_tensor().strides(), tree["model"]["conv"].as_tensor().strides());
  EXPECT_EQ(read_info(path_).global_step, 1);
}

TEST_F(AsyncWriter, OneSaveIsUnderWayAtATime) {
  GatedFiles files;
  AsyncCheckpointWriter writer;
  std::atomic<int> whole = 0;
  writer.save(path_, sample_tree(1), {}, [&] { ++whole; });
  ASSERT_TRUE(files.wait_for_saves(1));
  auto second = std::async(std::launch::async, [&] {
    writer.save(path_, sample_tree(2), {}, [&] { ++whole; });
    return whole.load();
  });
  EXPECT_EQ(second.wait_for(100ms), std::future_status::timeout) << "it waits for the first";
  EXPECT_EQ(files.saves(), 1);
  EXPECT_EQ(whole, 0);
  files.open();
  EXPECT_GE(second.get(), 1);
  writer.wait();
  EXPECT_EQ(whole, 2);
  EXPECT_EQ(saved_step(), 2);
}

TEST_F(AsyncWriter, AnErrorIsThrownOnceByWhoeverComesNext) {
  AsyncCheckpointWriter writer;
  writer.save(path_, sample_tree(1), {});
  writer.wait();
  testing::FaultyFileSystem files;
  files.fail_after_bytes(10);
  bool told = false;
  writer.save(path_, sample_tree(2), {}, [&] { told = true; });
  const std::string message = message_of([&] { writer.wait(); });
  EXPECT_TRUE(message.starts_with("[checkpoint] cannot save " + path_ + ": No space left on device")) << message;
  EXPECT_EQ(message_of([&] { writer.wait(); }), "");
  EXPECT_FALSE(told);

  writer.save(path_, sample_tree(3), {});
  EXPECT_NE(message_of([&] { writer.save(path_, sample_tree(4), {}); }).find("No space left on device"),
            std::string::npos);
  EXPECT_FALSE(writer.is_saving());
  EXPECT_EQ(saved_step(), 1);
  files.heal();
  writer.save(path_, sample_tree(5), {});
  writer.wait();
  EXPECT_EQ(saved_step(), 5);
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"});
}

TEST_F(AsyncWriter, ItsEndWaitsAndTellsOfTheError) {
  std::vector<std::string> lines;
  log::set_sink([&](const std::string& line) { lines.push_back(line); });
  { AsyncCheckpointWriter().save(path_, sample_tree(1), {}); }
  EXPECT_EQ(saved_step(), 1);
  EXPECT_TRUE(lines.empty());
  testing::FaultyFileSystem files;
  files.fail_after_bytes(10);
  { AsyncCheckpointWriter().save(path_, sample_tree(2), {}); }
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines.front().find("No space left on device"), std::string::npos);
  log::set_sink(nullptr);
}

TEST_F(AsyncWriter, RanksMeetWithoutACollective) {
  const State tree = sample_tree(3);
  const auto trees = testing::shard_evenly(tree, 3);
  testing::run_ranks(3, [&](ThreadCollective& ranks) {
    AsyncCheckpointWriter writer(make_store_channel(ranks));
    const int64_t calls = ranks.calls();
    for (int64_t step = 1; step <= 3; ++step)
      writer.save(path_, trees[static_cast<size_t>(ranks.rank())], {.global_step = step, .world_size = 3});
    writer.wait();
    EXPECT_EQ(ranks.calls(), calls);
  });
  testing::expect_same(tree, read_checkpoint(path_));
  EXPECT_EQ(read_info(path_).global_step, 3);
  EXPECT_EQ(FileSystem::current().list(path_).size(), 9U);
}

TEST_F(AsyncWriter, TheErrorOfOneRankIsThatOfAll) {
  const auto trees = testing::shard_evenly(sample_tree(3), 3);
  testing::FailingPaths disk("rank-00002");
  std::vector<std::string> messages(3);
  testing::run_ranks(3, [&](ThreadCollective& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    AsyncCheckpointWriter writer(make_store_channel(ranks));
    writer.save(path_, trees[rank], {.global_step = 1});
    writer.wait();
    ranks.barrier();
    if (rank == 0) disk.fail_after(3);
    ranks.barrier();
    writer.save(path_, trees[rank], {.global_step = 2});
    messages[rank] = message_of([&] { writer.wait(); });
    ranks.barrier();
    if (rank == 0) {
      EXPECT_EQ(read_info(path_).global_step, 1);
      disk.heal();
    }
    ranks.barrier();
    writer.save(path_, trees[rank], {.global_step = 3});
    writer.wait();
  });
  for (const auto& message : messages) EXPECT_EQ(message, messages.front());
  EXPECT_NE(messages.front().find("No space left on device; got 'cannot write "), std::string::npos);
  EXPECT_EQ(read_info(path_).global_step, 3);
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"});
}

TEST_F(AsyncWriter, ASaveThatARankNeverJoinsEndsWhenItIsGivenUp) {
  const auto trees = testing::shard_evenly(sample_tree(3), 2);
  testing::run_ranks(2, [&](ThreadCollective& ranks) {
    AsyncCheckpointWriter writer(make_store_channel(ranks));
    if (ranks.rank() == 1) return;
    writer.save(path_, trees[0], {});
    writer.abandon("rank 1 is gone");
    EXPECT_EQ(message_of([&] { writer.wait(); }), "[checkpoint] a save was given up: rank 1 is gone");
  });
  EXPECT_TRUE(neighbours().empty());
}

TEST_F(AsyncWriter, KilledProcessLeavesTheCheckpointBefore) {
  write_checkpoint(path_, sample_tree(0), {});
  std::mt19937 random(1);
  int64_t newest = 0;
  // A slow disk gets more time, up to minutes: some of the writers must have finished a save.
  for (int round = 0; round < 15 || (newest == 0 && round < 600); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      AsyncCheckpointWriter writer;
      for (int64_t step = newest + 1;; ++step) writer.save(path_, sample_tree(step), {.global_step = step});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (40'000 * (1 + round / 15))));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ASSERT_EQ(message_of([&] { verify_checkpoint(path_); }), "") << "round " << round;
    const int64_t step = saved_step();
    ASSERT_GE(step, newest);
    newest = step;
  }
  EXPECT_GT(newest, 0);
}

/// Ranks are processes; one is killed while all of them save.
TEST_F(AsyncWriter, AKilledRankFailsTheSaveOfTheOthers) {
  const State tree = sample_tree(3);
  const auto trees = testing::shard_evenly(tree, 3);
  write_checkpoint(path_, tree, {});
  const std::string saved = path("saved");
  const auto has_ended = [](pid_t process) {
    siginfo_t end{};
    return ::waitid(P_PID, static_cast<id_t>(process), &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid == process;
  };
  std::mt19937 random(1);
  // On a slow disk ranks may give each other up in their first save: those of a later round wait longer.
  for (int round = 0; round < 8 || (!std::filesystem::exists(saved) && round < 60); ++round) {
    const auto patience = 500ms * (1 + round / 8);
    const std::string keys = path("store" + std::to_string(round));
    std::filesystem::create_directories(keys);
    std::vector<pid_t> children;
    for (int64_t rank = 0; rank < 3; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child != 0) {
        children.push_back(child);
        continue;
      }
      AsyncCheckpointWriter writer(
          std::make_unique<StoreChannel>(std::make_unique<FolderStore>(keys), rank, 3, "save", patience));
      try {
        for (int64_t step = 1;; ++step) {
          writer.save(path_, trees[static_cast<size_t>(rank)], {.global_step = step});
          writer.wait();
          if (rank == 0) testing::write_bytes(saved, "");
        }
      } catch (const Error& error) {
        const std::string message = error.what();
        ::_exit(message.find("heard nothing of rank") != std::string::npos ? 3 : 4);
      }
    }
    EXPECT_TRUE(testing::eventually(
        [&] { return std::filesystem::exists(saved) || std::ranges::all_of(children, has_ended); }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    const size_t victim = static_cast<size_t>(round) % 3;
    ::kill(children[victim], SIGKILL);
    for (size_t rank = 0; rank < 3; ++rank) {
      int status = 0;
      ::waitpid(children[rank], &status, 0);
      if (rank != victim) {
        EXPECT_EQ(WEXITSTATUS(status), 3) << "rank " << rank << " of round " << round;
      }
    }
    ASSERT_EQ(message_of([&] { verify_checkpoint(path_); }), "") << "round " << round;
    testing::expect_same(tree, read_checkpoint(path_));
  }
  EXPECT_TRUE(std::filesystem::exists(saved));
  write_checkpoint(path_, sample_tree(0), {});
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"}) << "the next save clears away what was left";
}

}  // namespace
}  // namespace levin
