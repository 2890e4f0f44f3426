// Loaders whose data sets hang: the error, the end of the process, and how long workers live.

#include <levin/core/data/data_loader.h>

#include <levin/core/base/error.h>

#include "../support/captured_log.h"
#include "../support/eventually.h"
#include "../support/tiny.h"
#include "reader_checks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace levin {
namespace {

using testing::eventually;
using testing::message_of;
using testing::values_in;

/// What hanging examples wait for. Never destroyed: threads may wait when the process ends.
struct Gate {
  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    opened.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    ++waiting_count;
    opened.wait(lock, [this] { return is_open; });
  }
  /// So many threads have come here.
  int waiting() {
    const std::lock_guard lock(mutex);
    return waiting_count;
  }
  std::mutex mutex;
  std::condition_variable opened;
  bool is_open = false;
  int waiting_count = 0;
};

/// Indices of which one hangs, the first time that it is fetched.
class Hanging : public data::Dataset {
 public:
  Hanging(int64_t size, int64_t hanging, Gate& gate) : size_(size), hanging_(hanging), gate_(gate) {}
  int64_t size() const override { return size_; }
  Batch get(int64_t index, data::Generator& /*generator*/) const override {
    if (index == hanging_ && !has_hung_.exchange(true)) gate_.wait();
    return {{"index", torch::tensor(index)}};
  }

 private:
  int64_t size_;
  int64_t hanging_;
  Gate& gate_;
  mutable std::atomic<bool> has_hung_ = false;
};

/// The same as whole batches.
class HangingBatches : public data::Dataset {
 public:
  explicit HangingBatches(Gate& gate) : gate_(gate) {}
  int64_t size() const override { return 8; }
  Batch get_batch(std::span<const int64_t> indices, data::Generator& /*generator*/) const override {
    if (indices.front() == 4) gate_.wait();
    return {{"index", torch::zeros({std::ssize(indices)})}};
  }

 private:
  Gate& gate_;
};

class HangingStream : public data::IterableDataset {
 public:
  explicit HangingStream(Gate& gate) : gate_(gate) {}
  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& /*context*/) const override {
    class Stream : public data::ExampleStream {
     public:
      explicit Stream(Gate& gate) : gate_(gate) {}
      std::optional<Batch> next() override {
        if (++count_ == 6) gate_.wait();
        return Batch{{"index", torch::tensor(count_)}};
      }

     private:
      Gate& gate_;
      int64_t count_ = 0;
    };
    return std::make_unique<Stream>(gate_);
  }

 private:
  Gate& gate_;
};

/// Threads of this process that fetch.
int64_t count_workers() {
  int64_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("levin-data-")) ++count;
  }
  return count;
}

/// Waits until no more threads fetch than these.
bool workers_fall_to(int64_t count) {
  return eventually([&] { return count_workers() <= count; });
}

/// Repeats `attempt` until its message has this in it, and returns that message: on a busy machine a worker that does
/// not hang may be late for a short timeout too, and is named then.
std::string message_with(const std::string& part, const std::function<std::string()>& attempt) {
  std::string message;
  EXPECT_TRUE(eventually([&] {
    message = attempt();
    return message.find(part) != std::string::npos;
  })) << message;
  return message;
}

TEST(LoaderTimeout, AHangingExampleIsNamedAndNobodyWaitsForIt) {
  static Gate& gate = *new Gate;
  {
    std::optional<DataLoader> loader;
    std::optional<DataLoader::Pass> pass;
    int64_t batches = 0;
    const std::string error = message_with(
        "a worker has given no batch for 0.3 s, the loader's timeout; it is in get of Hanging, example 13, batch 3",
        [&] {
          pass.reset();
          loader.emplace(std::make_shared<Hanging>(40, 13, gate),
                         DataLoaderOptions{.batch_size = 4, .num_workers = 2, .timeout = 0.3});
          pass.emplace(loader->pass({}));
          batches = 0;
          return message_of([&] {
            while (auto batch = pass->next()) EXPECT_EQ((*batch)["index"][0].item<int64_t>(), 4 * batches++);
          });
        });
    EXPECT_EQ(batches, 3);
    EXPECT_EQ(message_of([&] { pass->next(); }), error) << "each later call throws it again";
    // A new pass has workers of its own, while the hanging one is still there.
    EXPECT_TRUE(eventually([&] {
      size_t found = 0;
      const std::string late = message_of([&] { found = values_in(*loader, "index").size(); });
      EXPECT_EQ(late.find("get of Hanging, example 13"), std::string::npos) << "it hangs once";
      return found == 40;
    }));
  }
  EXPECT_GE(count_workers(), 1) << "left to itself";
  gate.open();
  EXPECT_TRUE(workers_fall_to(0)) << "it ends when its example does";
}

TEST(LoaderTimeout, NamesBatchesAndStreams) {
  static Gate& gate = *new Gate;
  int64_t batches = 0;
  const auto message_from = [&](const DataLoader& loader) {
    auto pass = loader.pass({});
    batches = 0;
    return message_of([&] {
      for (; pass.next(); ++batches) continue;
    });
  };
  message_with("get_batch of HangingBatches, examples 4, 5, batch 2", [&] {
    return message_from(
        DataLoader(std::make_shared<HangingBatches>(gate), {.batch_size = 2, .num_workers = 1, .timeout = 0.2}));
  });
  EXPECT_EQ(batches, 2);
  message_with("next of HangingStream, batch 2", [&] {
    return message_from(
        DataLoader(std::make_shared<HangingStream>(gate), {.batch_size = 2, .num_workers = 1, .timeout = 0.2}));
  });
  EXPECT_EQ(batches, 2);
  gate.open();
  EXPECT_TRUE(workers_fall_to(0));
}

TEST(LoaderTimeout, APassThatEndsEarlyWaitsNoLonger) {
  static Gate& gate = *new Gate;
  const testing::CapturedLog log;
  {
    auto pass = DataLoader(std::make_shared<Hanging>(40, 5, gate), {.num_workers = 2, .timeout = 0.3}).pass({});
    // Then the worker of the first batch, which is the other one, may be late: what it has is not asked for.
    EXPECT_TRUE(eventually([] { return gate.waiting() > 0; }));
  }
  EXPECT_NE(log.text().find("has not come back 0.3 s after its pass ended, and is left to itself: "), std::string::npos)
      << log.text();
  EXPECT_NE(log.text().find("get of Hanging, example 5, batch 5"), std::string::npos) << log.text();
  gate.open();
  EXPECT_TRUE(workers_fall_to(0));
}

TEST(LoaderTimeoutDeathTest, TheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static Gate& gate = *new Gate;
        static std::optional<DataLoader> loader;
        std::fputs(message_with("example 2, batch 2",
                                [] {
                                  loader.emplace(std::make_shared<Hanging>(8, 2, gate),
                                                 DataLoaderOptions{.num_workers = 2, .timeout = 0.2});
                                  return message_of([] { values_in(*loader, "index"); });
                                })
                       .c_str(),
                   stderr);
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "example 2, batch 2");
}

/// Examples of the tiny module, of which one hangs.
class HangingTiny : public data::Dataset {
 public:
  explicit HangingTiny(Gate& gate) : gate_(gate) {}
  int64_t size() const override { return 40; }
  Batch get(int64_t index, data::Generator& /*generator*/) const override {
    if (index == 21) gate_.wait();
    return {{"x", torch::zeros({4})}, {"y", torch::zeros({1})}};
  }

 private:
  Gate& gate_;
};

TEST(LoaderTimeout, ATrainingEndsWithTheBatchAndTheExample) {
  static Gate& gate = *new Gate;
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    const testing::CapturedLog quiet;
    TrainerOptions options = testing::quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = strategy == std::string("ddp_threads") ? 2 : 1;
    const std::string error = message_with("it is in get of HangingTiny, example 21, batch 5", [&] {
      Trainer trainer(options);
      const DataLoader loader(std::make_shared<HangingTiny>(gate),
                              {.num_workers = 1, .global_batch_size = 4, .timeout = 0.5});
      return message_of([&] { trainer.fit(make<testing::TinyModule>(), loader); });
    });
    EXPECT_NE(error.find("batch 5 of epoch 0"), std::string::npos) << error;
  }
  gate.open();
  EXPECT_TRUE(workers_fall_to(0));
}

TEST(LoaderTimeout, SlowDataWithinItChangeNothing) {
  Gate open;
  open.open();
  const auto dataset = std::make_shared<Hanging>(57, 5, open);
  const auto expected = values_in(DataLoader(dataset, {.batch_size = 4, .shuffle = true}), "index");
  for (const int64_t workers : {1, 2})
    EXPECT_EQ(values_in(DataLoader(dataset, {.batch_size = 4, .shuffle = true, .num_workers = workers, .timeout = 240}),
                        "index"),
              expected);
}

TEST(LoaderTimeout, RefusesWhatCannotBe) {
  Gate gate;
  const auto dataset = std::make_shared<Hanging>(4, -1, gate);
  EXPECT_NE(message_of([&] { DataLoader(dataset, {.timeout = 5}); })
                .find("timeout is 5 s, but nobody waits where "
                      "num_workers is 0"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              DataLoader(dataset, {.num_workers = 1, .timeout = -1});
            }).find("timeout must be at least 0; got -1"),
            std::string::npos);
}

/// Threads take their names after they have started, and may be listed for a moment after they were joined.
bool workers_become(int64_t count) {
  return eventually([&] { return count_workers() == count; });
}

TEST(PersistentWorkers, LiveAsLongAsTheLoaderOrThePass) {
  Gate gate;
  const auto dataset = std::make_shared<Hanging>(20, -1, gate);
  const int64_t before = count_workers();
  {
    const DataLoader loader(dataset, {.num_workers = 3});
    values_in(loader, "index");
    EXPECT_TRUE(workers_become(before + 3));
  }
  EXPECT_TRUE(workers_become(before));
  const DataLoader loader(dataset, {.shuffle = true, .num_workers = 3, .persistent_workers = false});
  const auto expected = values_in(DataLoader(dataset, {.shuffle = true}), "index", {.epoch = 2});
  {
    auto pass = loader.pass({});
    pass.next();
    EXPECT_TRUE(workers_become(before + 3));
  }
  EXPECT_TRUE(workers_become(before));
  EXPECT_EQ(values_in(loader, "index", {.epoch = 2}), expected);
  EXPECT_TRUE(workers_become(before));
}

}  // namespace
}  // namespace levin
