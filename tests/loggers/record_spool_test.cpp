#include <levin/loggers/record_spool.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include "../support/faulty_file_system.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Records = std::vector<std::string>;

class RecordSpoolTest : public ::testing::Test {
 protected:
  RecordSpoolTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    run_folder_ = ::testing::TempDir() + "levin_spool_" + test->name() + "_" + std::to_string(::getpid());
    folder_ = run_folder_ + "/unsent";
    std::filesystem::remove_all(run_folder_);
  }
  ~RecordSpoolTest() override { std::filesystem::remove_all(run_folder_); }

  std::vector<std::string> names() const { return FileSystem::current().list(folder_); }
  /// What is in a spool, which is empty afterwards.
  static Records take_all(RecordSpool& spool) {
    Records all;
    for (; !spool.empty(); spool.pop_front())
      for (auto& record : spool.front()) all.push_back(std::move(record));
    return all;
  }
  Records take_all() const {
    RecordSpool spool(folder_);
    return take_all(spool);
  }
  /// What one that must have the folder says; nothing when it has it.
  std::string refusal() const {
    try {
      const RecordSpool spool(folder_, /*must_be_free=*/true);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::string run_folder_;
  std::string folder_;
};

TEST_F(RecordSpoolTest, DamagedFilesGiveWhatIsWholeAndAreSetAside) {
  using Damage = std::function<void(std::string&)>;
  const std::vector<std::pair<Damage, Records>> cases = {
      {[](std::string& data) { data.pop_back(); }, {"one", "two"}},
      {[](std::string& data) { data.resize(data.size() + 4000, '\0'); }, {"one", "two", "three"}},
      {[](std::string& data) { data.append("\1\0", 2); }, {"one", "two", "three"}},
      {[](std::string& data) { data.replace(data.size() - 5, 5, 5, '\0'); }, {"one", "two"}},
      {[](std::string& data) { data[data.find("two") - 8] = '\x02'; }, {"one"}},
      {[](std::string& data) { data[data.find("two") - 5] = '\xff'; }, {"one"}},
      {[](std::string& data) { data.assign(data.size(), '\0'); }, {}},
      {[](std::string& data) { data.assign(data.size(), '\xff'); }, {}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    std::filesystem::remove_all(run_folder_);
    const auto& [damage, expected] = cases[i];
    RecordSpool(folder_).append(Records{"one", "two", "three"});
    ASSERT_EQ(names().size(), 1u);
    const std::string path = folder_ + "/" + names()[0];
    std::string data = FileSystem::current().read_file(path);
    damage(data);
    std::ofstream(path, std::ios::binary) << data;
    RecordSpool spool(folder_);
    spool.append(Records{"later"});
    Records all = expected;
    all.push_back("later");
    EXPECT_EQ(spool.records(), static_cast<int64_t>(all.size())) << i;
    EXPECT_EQ(take_all(spool), all) << i;
    ASSERT_EQ(names().size(), 1u) << i;
    const std::string aside = folder_ + "/" + names()[0];
    EXPECT_EQ(aside, path.substr(0, path.rfind('.')) + ".unreadable") << i;
    EXPECT_EQ(FileSystem::current().read_file(aside), data) << i;
  }
}

TEST_F(RecordSpoolTest, NoNumberIsUsedTwice) {
  RecordSpool(folder_).append(Records{"there"});
  // What cannot be read now, before and behind it: not even root reads a folder as a file.
  std::filesystem::create_directories(folder_ + "/0999999999.records");
  std::filesystem::create_directories(folder_ + "/1000000001.records");
  std::ofstream(folder_ + "/1000000002.unreadable") << "damaged";
  RecordSpool spool(folder_);
  spool.prepend(Records{"first"});
  spool.append(Records{"last"});
  EXPECT_EQ(names(), (Records{"0999999998.records", "0999999999.records", "1000000000.records", "1000000001.records",
                              "1000000002.unreadable", "1000000003.records"}));
  EXPECT_EQ(take_all(spool), (Records{"first", "there", "last"}));
  // What was skipped keeps its number.
  spool.append(Records{"a"});
  spool.skip_front();
  spool.append(Records{"b"});
  spool.prepend(Records{"c"});
  EXPECT_EQ(take_all(spool), (Records{"c", "b"}));
  EXPECT_EQ(FileSystem::current().read_file(folder_ + "/1000000004.records").substr(8), "a");
}

TEST_F(RecordSpoolTest, AFullDiskLeavesNoPartsOfRecords) {
  const Records more{"second", "third"};
  testing::FaultyFileSystem files;
  for (int64_t bytes = 0; bytes < 27; ++bytes) {
    std::filesystem::remove_all(run_folder_);
    {
      RecordSpool spool(folder_);
      files.fail_after_bytes(bytes);
      EXPECT_THROW(spool.append(more), Error);
      EXPECT_TRUE(names().empty()) << bytes;
      files.heal();
      spool.append(Records{"first"});
      files.fail_after_bytes(bytes);
      EXPECT_THROW(spool.append(more), Error);
      files.fail_after_bytes(bytes);
      EXPECT_THROW(spool.prepend(more), Error);
      files.heal();
    }
    EXPECT_EQ(names().size(), 1u) << bytes;
    EXPECT_EQ(take_all(), Records{"first"}) << bytes;
    EXPECT_TRUE(names().empty()) << bytes;
  }
}

TEST_F(RecordSpoolTest, WhatIsLeftBesideIsTakenOver) {
  {
    RecordSpool first(folder_);
    RecordSpool second(folder_);
    RecordSpool third(folder_);
    EXPECT_EQ(first.directory(), folder_);
    EXPECT_EQ(second.directory(), folder_ + ".2");
    EXPECT_EQ(third.directory(), folder_ + ".3");
    first.append(Records{"1"});
    second.append(Records{"2"});
    third.append(Records{"3"});
  }
  EXPECT_EQ(take_all(), (Records{"1", "2", "3"}));
  EXPECT_FALSE(std::filesystem::exists(folder_ + ".2"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + ".3"));
}

TEST_F(RecordSpoolTest, WhatIsInUseBesideIsLeftAlone) {
  auto first = std::make_unique<RecordSpool>(folder_);
  RecordSpool second(folder_);
  second.append(Records{"2"});
  first.reset();
  EXPECT_EQ(take_all(), Records());
  EXPECT_EQ(take_all(second), Records{"2"});
}

TEST_F(RecordSpoolTest, OneProcessHasAFolder) {
  const RecordSpool spool(folder_);
  const std::string expected = folder_ + " is being sent by process " + std::to_string(::getpid());
  EXPECT_NE(refusal().find(expected), std::string::npos) << refusal();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(refusal().find(expected) != std::string::npos ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // The child's end gave back nothing of its parent's.
  const pid_t other = ::fork();
  if (other == 0) ::_exit(refusal().find(expected) != std::string::npos ? 0 : 1);
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST_F(RecordSpoolTest, AKilledProcessHasNothingThoughItsChildrenLive) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const RecordSpool spool(folder_);
    const pid_t child = ::fork();
    const bool is_child = child == 0;
    if (!is_child && ::write(ends[1], &child, sizeof child) != sizeof child) ::_exit(1);
    while (true) ::pause();
  }
  pid_t child = 0;
  ASSERT_EQ(::read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  EXPECT_NE(refusal().find("is being sent by process " + std::to_string(holder) + ";"), std::string::npos) << refusal();
  ::kill(holder, SIGKILL);
  ASSERT_EQ(::waitpid(holder, nullptr, 0), holder);
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(::kill(child, 0), 0);
  ::kill(child, SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace levin
