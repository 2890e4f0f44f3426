#include <levin/loggers/event_file_writer.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include "../support/faulty_file_system.h"
#include "event_reader.h"

#include <unistd.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace levin {
namespace {

class EventFileWriterTest : public ::testing::Test {
 protected:
  EventFileWriterTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "levin_events_" + test->name() + "_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
  }
  ~EventFileWriterTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> files() const {
    auto names = FileSystem::current().list(folder_);
    for (auto& name : names) name = folder_ + "/" + name;
    return names;
  }

  std::string folder_;
};

TEST(EventReader, KnowsTheChecksum) { EXPECT_EQ(testing::plain_crc32c("123456789"), 0xE3069283u); }

TEST_F(EventFileWriterTest, FileBeginsWithItsVersionAndHoldsScalars) {
  EventFileWriter writer(folder_);
  const std::vector<MetricValue> values{{"train/loss", 0.5}, {"lr", 1e-3}};
  writer.add_scalars(values, 3, 1'000'000'000'000);
  EXPECT_EQ(writer.pending_events(), 1);
  EXPECT_TRUE(files().empty()) << "nothing is written before flush";
  writer.close();
  EXPECT_EQ(writer.pending_events(), 0);

  ASSERT_EQ(files().size(), 1u);
  const std::string name = std::filesystem::path(files()[0]).filename();
  EXPECT_TRUE(name.starts_with("events.out.tfevents.")) << name;
  EXPECT_NE(name.find("." + std::to_string(::getpid()) + "."), std::string::npos) << name;

  const auto events = testing::read_events(files()[0]);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_NEAR(events[1].wall_time, static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(events[1].step, 1'000'000'000'000);
  const std::vector<std::pair<std::string, float>> expected{{"train/loss", 0.5f}, {"lr", 1e-3f}, {"epoch", 3.f}};
  EXPECT_EQ(events[1].scalars, expected);
}

TEST_F(EventFileWriterTest, AMetricNamedEpochIsWrittenOnce) {
  EventFileWriter writer(folder_);
  const std::vector<MetricValue> values{{"epoch", 1.5}};
  writer.add_scalars(values, 3, 7);
  writer.close();
  const auto events = testing::read_events(files().at(0));
  const std::vector<std::pair<std::string, float>> expected{{"epoch", 1.5f}};
  EXPECT_EQ(events.at(1).scalars, expected);
}

TEST_F(EventFileWriterTest, NanAndInfinityAreWritten) {
  const double infinity = std::numeric_limits<double>::infinity();
  EventFileWriter writer(folder_);
  const std::vector<MetricValue> values{{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}};
  writer.add_scalars(values, 0, -1);
  writer.close();
  const auto event = testing::read_events(files().at(0)).at(1);
  EXPECT_EQ(event.step, -1);
  EXPECT_TRUE(std::isnan(event.scalars.at(0).second));
  EXPECT_EQ(event.scalars.at(1).second, infinity);
  EXPECT_EQ(event.scalars.at(2).second, -infinity);
}

TEST_F(EventFileWriterTest, FilesOfOneProcessSortInTheOrderOfTheirMaking) {
  std::vector<std::string> order;
  for (int64_t i = 0; i < 3; ++i) {
    EventFileWriter writer(folder_);
    writer.add_text("note", "text", i);
    writer.close();
  }
  ASSERT_EQ(files().size(), 3u);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(testing::read_events(files()[static_cast<size_t>(i)]).at(1).step, i);
}

TEST_F(EventFileWriterTest, AfterAFaultAFurtherFileHoldsWhatWasNotWritten) {
  testing::FaultyFileSystem disk;
  EventFileWriter writer(folder_);
  const MetricValue value{"a", 1};
  writer.add_scalars({&value, 1}, 0, 1);
  writer.flush();
  writer.add_scalars({&value, 1}, 0, 2);
  disk.fail_after_bytes(20);
  EXPECT_THROW(writer.flush(), Error);
  writer.add_scalars({&value, 1}, 0, 3);
  EXPECT_THROW(writer.flush(), Error);
  EXPECT_EQ(writer.pending_events(), 2);
  EXPECT_EQ(files().size(), 1U) << "tries leave no files";
  disk.heal();
  writer.close();
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(writer.pending_events(), 0);
  const auto events = testing::read_events(files().back());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].step, 2);
  EXPECT_EQ(events[2].step, 3);
}

TEST_F(EventFileWriterTest, AHistogramWithNothingFiniteIsNotWritten) {
  EventFileWriter writer(folder_);
  writer.add_histogram("empty", std::vector<double>{std::nan("")}, 1);
  EXPECT_EQ(writer.pending_events(), 0);
  writer.add_histogram("full", std::vector<double>{1, 2, 3}, 1);
  writer.close();
  const auto events = testing::read_events(files().at(0));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[1].other_values.contains("full"));
}

}  // namespace
}  // namespace levin
