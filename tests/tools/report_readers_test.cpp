#include <levin/core/base/error.h>
#include <levin/core/tools/report/event_file_reader.h>
#include <levin/core/tools/report/metrics_csv.h>
#include <levin/core/tools/report/run_folder.h>

#include "report_runs.h"

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <chrono>
#include <filesystem>

namespace levin::report {
namespace {

using levin::testing::event_file;
using levin::testing::fresh_folder;
using levin::testing::write_file;
using levin::testing::write_run;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> steps_of(const Series* series) {
  std::vector<int64_t> steps;
  if (series != nullptr)
    for (const Point& point : *series) steps.push_back(point.step);
  return steps;
}

std::vector<double> values_of(const Series* series) {
  std::vector<double> values;
  if (series != nullptr)
    for (const Point& point : *series) values.push_back(point.value);
  return values;
}

/// The message of the levin::Error that a call throws.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ReportSeries, WhatIsLoggedAgainAfterAResumeReplacesWhatWasThere) {
  SeriesTable table;
  for (const int64_t step : {10, 20, 30, 40}) table.append("loss", {.step = step, .value = 1});
  for (const int64_t step : {30, 35}) table.append("loss", {.step = step, .value = 2});
  EXPECT_THAT(steps_of(table.find("loss")), ElementsAre(10, 20, 30, 35));
  EXPECT_THAT(values_of(table.find("loss")), ElementsAre(1, 1, 2, 2));
  EXPECT_EQ(table.find("los"), nullptr);
}

TEST(ReportSeries, MergingKeepsEachStepOnceWithItsTime) {
  SeriesTable events, csv;
  for (const int64_t step : {1, 2, 4}) events.append("a", {.step = step, .value = 0.5, .wall_time = 100.0 + step});
  for (const int64_t step : {2, 3, 4}) csv.append("a", {.step = step, .value = 0.25, .epoch = 7});
  csv.append("b", {.step = 1, .value = 9});
  events.merge(csv);
  const Series& series = *events.find("a");
  EXPECT_THAT(steps_of(&series), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_of(&series), ElementsAre(0.5, 0.25, 0.25, 0.25));
  EXPECT_EQ(series[1].wall_time, 102);
  EXPECT_TRUE(std::isnan(series[2].wall_time));
  EXPECT_EQ(series[3].epoch, 7);
  EXPECT_TRUE(std::isnan(series[0].epoch));
  EXPECT_THAT(values_of(events.find("b")), ElementsAre(9));
}

TEST(ReportSeries, SummaryLeavesOutWhatIsNotFinite) {
  const Series series{{1, 4.0}, {2, NAN}, {3, -1.0}, {4, INFINITY}, {5, 3.0}, {6, NAN}};
  const auto summary = summarize(series);
  EXPECT_EQ(summary.points, 6u);
  EXPECT_EQ(summary.not_a_number, 2u);
  EXPECT_EQ(summary.infinite, 1u);
  EXPECT_EQ(summary.first_non_finite, &series[1]);
  EXPECT_EQ(summary.min, &series[2]);
  EXPECT_EQ(summary.max, &series[0]);
  EXPECT_EQ(summary.last, &series[4]);
  EXPECT_DOUBLE_EQ(summary.mean, 2);
  EXPECT_DOUBLE_EQ(settled_mean(series), 3);
  EXPECT_TRUE(std::isnan(summarize({}).mean));
  EXPECT_TRUE(std::isnan(settled_mean({{1, NAN}})));
}

TEST(ReportEventFile, ReadsScalarsAndSessionsAndPassesOverTheRest) {
  const std::string folder = fresh_folder("events");
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const double before = now();
  TensorBoardLogger logger;
  logger.start({.directory = folder});
  logger.log_hyperparameters(Config::parse("lr: 0.1", {.source = "test"}));
  logger.log_text("note", "text", 1);
  logger.log_histogram("weights", std::vector<double>{1, 2, 3}, 1);
  logger.log_metrics(std::vector<MetricValue>{{"loss", 0.5}, {"损失/x", NAN}}, 12, 3);
  logger.finish(TrainerStatus::kFailed);
  const double after = now();

  EventFileReader reader(event_file(folder));
  Event event;
  int scalars = 0;
  bool started = false;
  std::optional<bool> succeeded;
  while (reader.next(event)) {
    started = started || event.session_started;
    if (event.session_succeeded) succeeded = event.session_succeeded;
    if (event.scalars.empty()) continue;
    ++scalars;
    EXPECT_EQ(event.step, 12);
    EXPECT_GE(event.wall_time, before - 1);
    EXPECT_LE(event.wall_time, after + 1);
    ASSERT_EQ(event.scalars.size(), 3u);
    EXPECT_EQ(event.scalars[0], (std::pair<std::string, double>("loss", 0.5)));
    EXPECT_EQ(event.scalars[1].first, "损失/x");
    EXPECT_TRUE(std::isnan(event.scalars[1].second));
    EXPECT_EQ(event.scalars[2], (std::pair<std::string, double>("epoch", 3)));
  }
  EXPECT_EQ(scalars, 1);
  EXPECT_TRUE(started);
  EXPECT_EQ(succeeded, std::optional<bool>(false));
  EXPECT_FALSE(reader.is_torn());
  EXPECT_EQ(reader.damaged_records(), 0);
}

int64_t count_events(const std::string& path, bool& torn, int64_t& damaged) {
  EventFileReader reader(path);
  Event event;
  int64_t events = 0;
  while (reader.next(event)) ++events;
  torn = reader.is_torn();
  damaged = reader.damaged_records();
  return events;
}

TEST(ReportEventFile, EveryLengthOfATornFileGivesItsWholeRecords) {
  const std::string folder = fresh_folder("events");
  write_run(folder, {.last_step = 3, .csv = false}, [](int64_t step) {
    return std::vector<MetricValue>{{"loss", 1.0 / static_cast<double>(step)}};
  });
  const std::string whole = FileSystem::current().read_file(event_file(folder));
  const std::string path = folder + "/cut";
  bool torn = false;
  int64_t damaged = 0;
  int64_t former = 0;
  for (size_t size = 0; size <= whole.size(); ++size) {
    write_file(path, whole.substr(0, size));
    const int64_t events = count_events(path, torn, damaged);
    // A record counts once its last byte is there; only then is the file not torn.
    EXPECT_TRUE(events == former || events == former + 1) << size;
    EXPECT_EQ(torn, size != 0 && events == former) << size;
    EXPECT_EQ(damaged, 0) << size;
    former = events;
  }
  EXPECT_GE(former, 5);
}

TEST(ReportEventFile, ADamagedRecordIsPassedOver) {
  const std::string folder = fresh_folder("events");
  write_run(folder, {.last_step = 20, .csv = false}, [](int64_t) { return std::vector<MetricValue>{{"loss", 1}}; });
  const std::string whole = FileSystem::current().read_file(event_file(folder));
  const std::string path = folder + "/damaged";
  bool torn = false;
  int64_t damaged = 0;
  write_file(path, whole);
  const int64_t all = count_events(path, torn, damaged);
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    write_file(path, changed);
    const int64_t events = count_events(path, torn, damaged);
    // In the middle of a record one is lost; a length that is wrong ends the reading.
    EXPECT_LT(events, all) << at;
    EXPECT_TRUE(torn || (damaged == 1 && events == all - 1)) << at;
  }
}

TEST(ReportMetricsCsv, ReadsWhatTheLoggerWrites) {
  const std::string folder = fresh_folder("csv");
  const std::string strange = "a,\"b\"\n/损失 <script>" + std::string(200, 'x');
  write_run(folder, {.last_step = 4, .steps_of_epoch = 2, .events = false}, [&](int64_t step) {
    std::vector<MetricValue> values{{"loss", 0.1 * static_cast<double>(step)}};
    if (step == 2) values.push_back({strange, INFINITY});
    if (step == 3) values.push_back({strange, NAN});
    if (step == 4) values.push_back({strange, -INFINITY});
    return values;
  });
  SeriesTable table;
  const auto faults = read_metrics_csv(folder + "/metrics.csv", table);
  EXPECT_FALSE(faults.is_torn);
  EXPECT_EQ(faults.damaged_rows, 0);
  EXPECT_EQ(table.all().size(), 2u);
  EXPECT_THAT(values_of(table.find("loss")), ElementsAre(0.1, 0.2, 0.1 * 3, 0.4));
  const Series* other = table.find(strange);
  ASSERT_NE(other, nullptr);
  EXPECT_THAT(steps_of(other), ElementsAre(2, 3, 4));
  EXPECT_EQ((*other)[0].value, INFINITY);
  EXPECT_TRUE(std::isnan((*other)[1].value));
  EXPECT_EQ((*other)[2].value, -INFINITY);
  EXPECT_EQ((*other)[0].epoch, 0);
  EXPECT_EQ((*other)[2].epoch, 1);
}

TEST(ReportMetricsCsv, TornAndDamagedRowsAreLeftOut) {
  const std::string path = fresh_folder("csv") + "/metrics.csv";
  write_file(path, "epoch,step,loss,acc\r\n0,1,0.5,\n0,2,,0.25\n0,3\n0,x,1,1\n0,4,one,1\n0,5,1,1,1\n,6,2,\n0,7,0.");
  SeriesTable table;
  const auto faults = read_metrics_csv(path, table);
  EXPECT_TRUE(faults.is_torn);
  EXPECT_EQ(faults.damaged_rows, 4);
  EXPECT_THAT(steps_of(table.find("loss")), ElementsAre(1, 6));
  EXPECT_TRUE(std::isnan(table.find("loss")->at(1).epoch));
  EXPECT_THAT(values_of(table.find("acc")), ElementsAre(0.25));

  for (const char* beginning : {"", "epo", "epoch,step,\"los"}) {
    SeriesTable empty;
    write_file(path, beginning);
    EXPECT_EQ(read_metrics_csv(path, empty).is_torn, *beginning != '\0') << beginning;
    EXPECT_TRUE(empty.empty());
  }
  write_file(path, "time,loss\n1,2\n");
  EXPECT_THAT(error_of([&] { read_metrics_csv(path, table); }), HasSubstr("must be epoch,step; got 'time,loss'"));
}

std::vector<MetricValue> sample(int64_t step) {
  std::vector<MetricValue> values{{"train_loss", 1.0 / static_cast<double>(step)}};
  if (step % 50 == 0) values.push_back({"val_loss", 0.1});
  return values;
}

TEST(ReportRunFolder, EventFilesAndCsvAreMerged) {
  const std::string folder = fresh_folder("run");
  write_run(folder, {}, sample);
  const RunFolder run = read_run_folder(folder);
  const Series* loss = run.metrics.find("train_loss");
  ASSERT_NE(loss, nullptr);
  ASSERT_EQ(loss->size(), 100u);
  EXPECT_EQ(run.metrics.all().size(), 2u) << "the epoch is no metric";
  for (const Point& point : *loss) {
    EXPECT_EQ(point.value, 1.0 / static_cast<double>(point.step)) << "the double of metrics.csv";
    EXPECT_FALSE(std::isnan(point.wall_time)) << "the time of the event";
    EXPECT_EQ(point.epoch, (point.step - 1) / 50);
  }
  EXPECT_EQ(run.status, RunStatus::kFinished);
  EXPECT_GE(run.last_time, run.first_time);
  EXPECT_TRUE(run.notes.empty());
  // hparams.yaml, as there is no config.yaml.
  EXPECT_THAT(run.configuration, ElementsAre(std::pair<std::string, std::string>("seed", "1")));
}

TEST(ReportRunFolder, EitherKindOfFileIsEnough) {
  for (const bool csv : {false, true}) {
    const std::string folder = fresh_folder("run");
    write_run(folder, {.csv = csv, .events = !csv}, sample);
    const RunFolder run = read_run_folder(folder);
    ASSERT_NE(run.metrics.find("train_loss"), nullptr);
    EXPECT_EQ(run.metrics.find("train_loss")->size(), 100u);
    EXPECT_EQ(std::isnan(run.first_time), csv);
    EXPECT_EQ(run.status, csv ? RunStatus::kUnknown : RunStatus::kFinished);
  }
}

TEST(ReportRunFolder, AResumedRunIsOneCurve) {
  const std::string folder = fresh_folder("run");
  write_run(folder, {.last_step = 80, .status = TrainerStatus::kFailed}, sample);
  write_run(folder, {.first_step = 51, .last_step = 100}, sample);
  const RunFolder run = read_run_folder(folder);
  EXPECT_EQ(run.metrics.find("train_loss")->size(), 100u);
  EXPECT_EQ(run.status, RunStatus::kFinished);
}

TEST(ReportRunFolder, TakesARunThatStillTrains) {
  const std::string folder = fresh_folder("run");
  write_run(folder, {}, sample);
  const std::string events = event_file(folder);
  std::filesystem::resize_file(events, std::filesystem::file_size(events) - 5);
  std::filesystem::resize_file(folder + "/metrics.csv", std::filesystem::file_size(folder + "/metrics.csv") - 1);
  write_file(folder + "/config.yaml", "trainer: {callbacks: [");
  const RunFolder run = read_run_folder(folder);
  EXPECT_EQ(run.metrics.find("train_loss")->size(), 100u) << "the event file has the row that the csv lacks";
  EXPECT_EQ(run.status, RunStatus::kUnfinished);
  ASSERT_EQ(run.notes.size(), 3u);
  EXPECT_THAT(run.notes[0], HasSubstr("ends within a record"));
  EXPECT_THAT(run.notes[1], HasSubstr("ends within a row"));
  EXPECT_THAT(run.notes[2], HasSubstr("configuration is left out"));
}

TEST(ReportRunFolder, FindsTheMonitorAndTheOtherFiles) {
  const std::string folder = fresh_folder("run");
  write_file(folder + "/config.yaml",
             "trainer:\n  callbacks:\n    - learning_rate_monitor\n    - early_stopping: {monitor: b}\n"
             "    - model_checkpoint: {monitor: val_acc, mode: max}\n");
  write_file(folder + "/profile_fit_rank0.txt", "table");
  write_file(folder + "/traces/host.1.pt.trace.json", "{}");
  write_file(folder + "/checkpoints/last/manifest.json", "{}");
  write_file(folder + "/checkpoints/last/profile_fit_rank9.txt", "not one");
  const RunFolder run = read_run_folder(folder);
  EXPECT_EQ(run.monitor, "val_acc");
  EXPECT_TRUE(run.monitor_is_maximized);
  ASSERT_EQ(run.profiles.size(), 1u);
  EXPECT_EQ(run.profiles[0].path, "profile_fit_rank0.txt");
  EXPECT_EQ(run.profiles[0].size, 5u);
  ASSERT_EQ(run.traces.size(), 1u);
  EXPECT_EQ(run.traces[0].path, "traces/host.1.pt.trace.json");
  ASSERT_EQ(run.checkpoints.size(), 1u);
  EXPECT_EQ(run.checkpoints[0], "checkpoints/last");
  EXPECT_THAT(run.notes, ElementsAre("No value has been logged yet."));
}

TEST(ReportRunFolder, PassesOverWhatIsNoFile) {
  const std::string folder = fresh_folder("run");
  write_file(folder + "/metrics.csv", "epoch,step,loss\n0,1,2\n");
  std::filesystem::create_symlink("profile_fit_rank1.txt", folder + "/profile_fit_rank0.txt");
  std::filesystem::create_symlink("profile_fit_rank0.txt", folder + "/profile_fit_rank1.txt");
  std::filesystem::create_directory_symlink(".", folder + "/again");
  ASSERT_EQ(mkfifo((folder + "/profile_fit_rank2.txt").c_str(), 0600), 0);
  write_file(folder + "/profile_fit_rank3.txt", "table");
  const RunFolder run = read_run_folder(folder);
  ASSERT_EQ(run.profiles.size(), 1u);
  EXPECT_EQ(run.profiles[0].path, "profile_fit_rank3.txt");
}

TEST(ReportRunFolder, SaysWhatIsNoRun) {
  const std::string folder = fresh_folder("run");
  EXPECT_THAT(error_of([&] { read_run_folder(folder + "/none"); }), HasSubstr("there is no folder"));
  EXPECT_THAT(error_of([&] { read_run_folder(folder); }),
              HasSubstr("none of these files is there: metrics.csv, events.out.tfevents.*"));
  write_file(folder + "/runs/version_3/metrics.csv", "");
  EXPECT_THAT(error_of([&] { read_run_folder(folder + "/runs"); }), HasSubstr("such as " + folder + "/runs/version_3"));
  EXPECT_THAT(error_of([&] { read_run_folder(folder + "/runs/version_3/metrics.csv"); }), HasSubstr("is not a folder"));
  std::filesystem::create_directories(folder + "/odd/metrics.csv");
  EXPECT_THAT(error_of([&] { read_run_folder(folder + "/odd"); }), HasSubstr("it is a folder"));
  std::filesystem::create_directories(folder + "/strange/events.out.tfevents.1");
  EXPECT_THAT(error_of([&] { read_run_folder(folder + "/strange"); }), HasSubstr("it is a folder"));
}

}  // namespace
}  // namespace levin::report
