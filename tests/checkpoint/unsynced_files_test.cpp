#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/faulty_file_system.h"

#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/finder.h>

#include <cerrno>
#include <string>

namespace levin {
namespace {

using testing::CrashFileSystem;
using UnsyncedFiles = testing::CheckpointTest;

/// What a resume would begin with, after a crash that leaves `image`; -1: nothing is found.
int64_t step_after_crash(const std::string& image) {
  try {
    return read_info(find_last(image)).global_step;
  } catch (const Error&) {
    return -1;
  }
}

TEST_F(UnsyncedFiles, APowerCutAfterAnyOperationLosesNoSaveThatWasFinished) {
  log::set_sink([](const std::string&) {});
  const std::string root = path("runs");
  std::filesystem::create_directory(root);
  CrashFileSystem files(root);
  int64_t operations = 0;
  int64_t finished = -1;
  files.after_operation = [&] {
    ++operations;
    for (const auto luck : {CrashFileSystem::Luck::kBad, CrashFileSystem::Luck::kNames}) {
      files.write_disk(path("image"), luck);
      ASSERT_GE(step_after_crash(path("image")), finished) << "operation " << operations;
    }
  };
  for (int64_t step = 0; step < 3; ++step) {
    write_checkpoint(root + "/version_0/checkpoints/last", testing::sample_tree(step), {.global_step = step});
    finished = step;
    write_checkpoint(root + "/version_0/checkpoints/step=" + std::to_string(step), testing::sample_tree(step),
                     {.global_step = step});
  }
  EXPECT_GT(operations, 100);
  remove_checkpoint(root + "/version_0/checkpoints/step=0");
  log::set_sink(nullptr);
}

TEST_F(UnsyncedFiles, OneFaultAtAnyOperationLosesNoSaveThatWasFinished) {
  log::set_sink([](const std::string&) {});
  testing::FaultyFileSystem files;
  const std::string root = path("runs");
  const auto save = [&](int64_t step) {
    write_checkpoint(root + "/version_0/checkpoints/last", testing::sample_tree(step), {.global_step = step});
  };
  save(0);
  save(1);
  int64_t finished = 1;
  for (const int error : {EIO, ENOSPC}) {
    bool failed = true;
    for (int64_t count = 0; failed; ++count) {
      files.fail_once_after_operations(count, error);
      const int64_t faults = files.faults();
      const bool threw = !testing::message_of([&] { save(finished + 1); }).empty();
      failed = files.faults() > faults;
      files.heal();
      const int64_t found = step_after_crash(root);
      if (!threw) ++finished;
      ASSERT_GE(found, finished) << "operation " << count;
      ASSERT_LE(found, finished + 1) << "operation " << count;
      finished = found;
    }
  }
  log::set_sink(nullptr);
}

}  // namespace
}  // namespace levin
