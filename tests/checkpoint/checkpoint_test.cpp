#include <levin/core/checkpoint/checkpoint.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>

#include <ATen/ops/scalar_tensor.h>
#include "../support/faulty_file_system.h"
#include "checkpoint_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

namespace levin {
namespace {

using testing::message_of;
using testing::sample_tree;

class CheckpointFolder : public testing::CheckpointTest {
 protected:
  State read() const { return read_checkpoint(path_); }
  void write(int64_t value) const { write_checkpoint(path_, sample_tree(value), {.global_step = value}); }
  int64_t written() const { return read().at("loops").at("global_step").as_int(); }
  std::string verification() const {
    return message_of([&] { verify_checkpoint(path_); });
  }
  std::vector<std::string> neighbours() const { return FileSystem::current().list(folder_ + "/checkpoints"); }

  const std::string path_ = path("checkpoints/last");
  const std::vector<std::string> files_{"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json",
                                        "state.safetensors"};
};

TEST_F(CheckpointFolder, RoundTrip) {
  State tree = sample_tree(7);
  tree["metrics"]["nan"] = std::nan("");
  tree["metrics"]["whole"] = 2.0;
  tree["metrics"]["count"] = at::scalar_tensor(3, at::kLong);
  tree["model"]["conv"] = at::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  write_checkpoint(path_, tree, {});
  const State back = read();
  testing::expect_same(tree, back);
  EXPECT_EQ(back.at("model").at("conv").as_tensor().strides(), tree["model"]["conv"].as_tensor().strides());
  EXPECT_EQ(FileSystem::current().list(path_), files_);
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"});
}

TEST_F(CheckpointFolder, EmptyTree) {
  write_checkpoint(path_, State::map(), {});
  verify_checkpoint(path_);
  EXPECT_TRUE(read().as_map().empty());
}

TEST_F(CheckpointFolder, InfoIsKept) {
  const CheckpointInfo info{.epoch = 3,
                            .global_step = int64_t{1} << 40,
                            .world_size = 8,
                            .monitor = "val_loss",
                            .score = -std::numeric_limits<double>::infinity(),
                            .levin_version = "0.1.0",
                            .created = ""};
  write_checkpoint(path_, sample_tree(1), info);
  const CheckpointInfo back = read_info(path_);
  EXPECT_EQ(back.epoch, info.epoch);
  EXPECT_EQ(back.global_step, info.global_step);
  EXPECT_EQ(back.world_size, info.world_size);
  EXPECT_EQ(back.monitor, info.monitor);
  EXPECT_EQ(back.score, info.score);
  EXPECT_EQ(back.levin_version, info.levin_version);
  ASSERT_EQ(back.created.size(), std::string("2026-01-31T12:00:00.000000Z").size()) << back.created;
  EXPECT_GT(back.created, "2025-");
  EXPECT_EQ(back.created.back(), 'Z');
}

TEST_F(CheckpointFolder, ReadsSectionsAlone) {
  write(5);
  // The optimizer's file is not needed for the weights.
  testing::flip_bit(path_ + "/optimizer.safetensors", 10);
  const State back = read_checkpoint(path_, {"model", "hyper_parameters"});
  EXPECT_EQ(back.as_map().size(), 2U);
  EXPECT_EQ(back.at("model").at("net.0.weight").as_tensor()[0][0].item<float>(), 5.0F);
  EXPECT_NE(message_of([&] { read_checkpoint(path_, {"optimizers"}); }).find("optimizer.safetensors is damaged"),
            std::string::npos);
}

TEST_F(CheckpointFolder, OutlineHasShapesWithoutElements) {
  write(5);
  const State outline = read_outline(path_);
  const at::Tensor& weight = outline.at("model").at("net.0.weight").as_tensor();
  EXPECT_TRUE(weight.is_meta());
  EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(outline.at("loops").at("global_step").as_int(), 5);
}

TEST_F(CheckpointFolder, TensorsReadCanBeTrained) {
  write(5);
  at::Tensor weight = read().at("model").at("net.0.weight").as_tensor();
  weight.add_(1);
  EXPECT_FALSE(weight.is_inference());
}

TEST_F(CheckpointFolder, EveryFlippedByteIsRefusedNamingTheFile) {
  write(1);
  for (const auto& name : files_) {
    const std::string file = path_ + "/" + name;
    const size_t size = testing::read_bytes(file).size();
    const size_t step = name == "manifest.json" ? 1 : std::max<size_t>(1, size / 40);
    for (size_t position = 0; position < size; position += step) {
      testing::flip_bit(file, position);
      const std::string message = verification();
      EXPECT_NE(message.find(file + " is damaged"), std::string::npos) << name << " at " << position << ": " << message;
      EXPECT_EQ(message_of([&] { read(); }), message);
      testing::flip_bit(file, position);
    }
  }
  EXPECT_EQ(verification(), "");
}

TEST_F(CheckpointFolder, MissingAndTruncatedFilesAreRefused) {
  for (const auto& name : files_) {
    write(1);
    const std::string file = path_ + "/" + name;
    const std::string bytes = testing::read_bytes(file);
    testing::write_bytes(file, bytes.substr(0, bytes.size() - 1));
    const std::string truncated = verification();
    EXPECT_NE(truncated.find(file + " is damaged; got "), std::string::npos) << truncated;
    if (name != "manifest.json") {
      EXPECT_NE(truncated.find(std::to_string(bytes.size() - 1) + " bytes; valid: " + std::to_string(bytes.size())),
                std::string::npos)
          << truncated;
    }
    std::filesystem::remove(file);
    const std::string missing = verification();
    EXPECT_EQ(missing, name == "manifest.json"
                           ? "[checkpoint] " + path_ + " is not a whole checkpoint; got a folder without manifest.json"
                           : "[checkpoint] " + file + " is missing; hint: use an earlier checkpoint");
    EXPECT_EQ(message_of([&] { read(); }), missing);
  }
}

TEST_F(CheckpointFolder, NoCheckpointAtAll) {
  EXPECT_EQ(verification(), "[checkpoint] there is no checkpoint at " + path_);
  EXPECT_EQ(message_of([&] { read_info(path_); }), "[checkpoint] there is no checkpoint at " + path_);
}

TEST_F(CheckpointFolder, OtherFilesInTheFolderDoNoHarm) {
  write(1);
  testing::write_bytes(path_ + "/notes.txt", "a good one");
  testing::write_bytes(path_ + "/shard.safetensors", "junk");
  EXPECT_EQ(verification(), "");
  EXPECT_EQ(written(), 1);
}

TEST_F(CheckpointFolder, ChecksNameEachFileAndItsState) {
  write(1);
  testing::flip_bit(path_ + "/state.json", 5);
  std::filesystem::remove(path_ + "/state.safetensors");
  const auto checks = check_files(path_);
  ASSERT_EQ(checks.size(), 4U);
  EXPECT_EQ(checks[0].name, "model.safetensors");
  EXPECT_EQ(checks[0].problem, "");
  EXPECT_EQ(checks[0].size, std::filesystem::file_size(path_ + "/model.safetensors"));
  EXPECT_TRUE(checks[2].problem.starts_with("is damaged; got checksum ")) << checks[2].problem;
  EXPECT_EQ(checks[3].problem, "is missing");
}

TEST_F(CheckpointFolder, ReplacesAnEarlierCheckpointOnly) {
  write(1);
  write(2);
  EXPECT_EQ(written(), 2);
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"});

  std::filesystem::create_directories(path("home"));
  testing::write_bytes(path("home/thesis.tex"), "precious");
  EXPECT_NE(
      message_of([&] {
        write_checkpoint(path("home"), sample_tree(1), {});
      }).find("[checkpoint] cannot save " + path("home") + ": the name is taken; got a folder that is no checkpoint"),
      std::string::npos);
  testing::write_bytes(path("file"), "");
  EXPECT_NE(message_of([&] { write_checkpoint(path("file"), sample_tree(1), {}); }).find("got a file that is no"),
            std::string::npos);
  EXPECT_EQ(testing::read_bytes(path("home/thesis.tex")), "precious");
}

TEST_F(CheckpointFolder, TensorThatCannotBeSavedLeavesWhatWasThere) {
  write(1);
  State tree = sample_tree(2);
  tree["model"]["z"] = at::arange(2, at::kDouble).to(at::kComplexDouble);
  EXPECT_NE(message_of([&] { write_checkpoint(path_, tree, {}); }).find("cannot save tensor 'z'; got element type"),
            std::string::npos);
  EXPECT_EQ(written(), 1);
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"});
}

TEST_F(CheckpointFolder, FullDiskLeavesWhatWasThereAndNothingBehind) {
  write(1);
  uint64_t bytes = 0;
  for (const auto& name : files_) bytes += std::filesystem::file_size(path_ + "/" + name);
  testing::FaultyFileSystem files;
  for (uint64_t room = 0; room < bytes; room += 97) {
    files.fail_after_bytes(static_cast<int64_t>(room));
    const std::string message = message_of([&] { write(2); });
    EXPECT_TRUE(
        message.starts_with("[checkpoint] cannot save " + path_ + ": No space left on device; got 'cannot write "))
        << message;
    EXPECT_TRUE(message.ends_with("; hint: the last good checkpoint is untouched")) << message;
    EXPECT_EQ(neighbours(), std::vector<std::string>{"last"});
    ASSERT_EQ(written(), 1) << "room for " << room;
  }
  files.heal();
  write(2);
  EXPECT_EQ(written(), 2);
}

TEST_F(CheckpointFolder, FailureAtEveryOperationLeavesAWholeCheckpoint) {
  // Where removing fails too, each save says what it could not remove.
  log::set_sink([](const std::string&) {});
  testing::FaultyFileSystem files;
  write(1);
  const int64_t before = files.operations();
  write(1);
  const int64_t operations = files.operations() - before;
  ASSERT_GT(operations, 20);
  for (int64_t count = 0; count < operations; ++count) {
    files.fail_after_operations(count);
    const std::string message = message_of([&] { write(2); });
    files.heal();
    EXPECT_EQ(verification(), "");
    // The last two operations are the sync of the parent, after which nothing can be taken back on a disk that fails
    // for good, and the removal of the old folder, without which the save is complete.
    if (count < operations - 2) {
      ASSERT_EQ(written(), 1) << "operation " << count;
    }
    EXPECT_EQ(message.empty(), count == operations - 1) << "operation " << count << ": " << message;
    write(1);
    ASSERT_EQ(neighbours(), std::vector<std::string>{"last"}) << "operation " << count;
  }
  log::set_sink(nullptr);
}

TEST_F(CheckpointFolder, KilledWriterLeavesAWholeCheckpoint) {
  write(0);
  std::mt19937 random(1);
  int64_t newest = 0;
  // A slow disk gets more time, up to minutes: some of the writers must have finished a save.
  for (int round = 0; round < 25 || (newest == 0 && round < 600); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t value = newest + 1;; ++value) write(value);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (40'000 * (1 + round / 25))));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ASSERT_EQ(verification(), "") << "round " << round;
    const int64_t value = written();
    ASSERT_EQ(read_info(path_).global_step, value);
    ASSERT_GE(value, newest);
    newest = value;
  }
  EXPECT_GT(newest, 0);
  write(newest);
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"});
}

TEST_F(CheckpointFolder, RemovingLeavesAllOrNothingOfTheName) {
  testing::FaultyFileSystem files;
  write(1);
  const int64_t before = files.operations();
  remove_checkpoint(path_);
  const int64_t operations = files.operations() - before;
  EXPECT_EQ(neighbours(), std::vector<std::string>{});
  for (int64_t i = 0; i < operations; ++i) {
    write(i);
    files.fail_after_operations(i);
    const std::string error = message_of([&] { remove_checkpoint(path_); });
    files.heal();
    EXPECT_EQ(FileSystem::current().exists(path_), !error.empty()) << i;
    if (!error.empty()) {
      EXPECT_EQ(verification(), "") << i;
    }
  }
  write(1);
  EXPECT_EQ(neighbours(), std::vector<std::string>{"last"}) << "the next save clears away what was left";
}

TEST_F(CheckpointFolder, SavesOfSeveralThreadsDoNotDisturbOneAnother) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i)
    threads.emplace_back([this, i] {
      for (int64_t k = 0; k < 5; ++k)
        write_checkpoint(path("checkpoints/" + std::to_string(i)), sample_tree(k), {.global_step = k});
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(neighbours(), (std::vector<std::string>{"0", "1", "2", "3"}));
  for (const auto& name : neighbours()) EXPECT_EQ(read_info(path("checkpoints/" + name)).global_step, 4);
}

}  // namespace
}  // namespace levin
