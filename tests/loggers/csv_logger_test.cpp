#include <levin/loggers/csv_logger.h>

#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>

#include <gtest/gtest.h>
#include "../support/faulty_file_system.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace levin {
namespace {

class CsvLoggerTest : public ::testing::Test {
 protected:
  CsvLoggerTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    run_.directory = ::testing::TempDir() + "levin_csv_" + test->name() + "_" + std::to_string(::getpid());
    run_.name = "version_0";
    std::filesystem::remove_all(run_.directory);
    log::set_sink([this](const std::string& line) { warnings_.push_back(line); });
  }
  ~CsvLoggerTest() override {
    log::set_sink(nullptr);
    std::filesystem::remove_all(run_.directory);
  }

  std::string path() const { return run_.directory + "/metrics.csv"; }
  std::string content() const { return FileSystem::current().read_file(path()); }
  void write(const std::string& text) const {
    std::filesystem::create_directories(run_.directory);
    std::ofstream(path(), std::ios::binary) << text;
  }
  std::vector<std::string> files() const { return FileSystem::current().list(run_.directory); }

  RunInfo run_;
  std::vector<std::string> warnings_;
};

void log_one(CsvLogger& logger, const std::string& name, double value, int64_t step, int64_t epoch = 0) {
  const MetricValue metric{name, value};
  logger.log_metrics({&metric, 1}, step, epoch);
}

TEST_F(CsvLoggerTest, OneColumnPerMetricAndEmptyCells) {
  CsvLogger logger;
  logger.start(run_);
  const std::vector<MetricValue> both{{"train_loss", 0.5}, {"lr", 0.1}};
  logger.log_metrics(both, 49, 0);
  log_one(logger, "train_loss", 0.25, 99);
  const std::vector<MetricValue> turned{{"lr", 0.2}, {"train_loss", 2}};
  logger.log_metrics(turned, 149, 1);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(content(), "epoch,step,train_loss,lr\n0,49,0.5,0.1\n0,99,0.25,\n1,149,2,0.2\n");
  EXPECT_EQ(files(), std::vector<std::string>{"metrics.csv"});
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CsvLoggerTest, NewMetricWidensWhatIsWrittenAndWhatWaits) {
  CsvLogger logger;
  logger.start(run_);
  log_one(logger, "a", 1, 1);
  logger.flush();
  EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n");
  log_one(logger, "a", 2, 2);
  log_one(logger, "b", 3, 3);
  log_one(logger, "c", 4, 4);
  logger.flush();
  EXPECT_EQ(content(), "epoch,step,a,b,c\n0,1,1,,\n0,2,2,,\n0,3,,3,\n0,4,,,4\n");
  log_one(logger, "a", 5, 5);
  logger.flush();
  EXPECT_EQ(content(), "epoch,step,a,b,c\n0,1,1,,\n0,2,2,,\n0,3,,3,\n0,4,,,4\n0,5,5,,\n");
}

TEST_F(CsvLoggerTest, WideningALongFileKeepsEveryRow) {
  CsvLogger logger;
  logger.start(run_);
  std::string expected = "epoch,step,a,b\n";
  for (int64_t step = 0; step < 30'000; ++step) {
    log_one(logger, "a", static_cast<double>(step) / 4, step);
    std::ostringstream row;
    row << "0," << step << "," << static_cast<double>(step) / 4 << ",\n";
    expected += row.str();
  }
  log_one(logger, "b", 1, 30'000);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(content(), expected + "0,30000,,1\n");
}

TEST_F(CsvLoggerTest, NumbersReadBackExactly) {
  const std::vector<double> numbers{0.1,
                                    1.0 / 3.0,
                                    -0.0,
                                    1e300,
                                    6.02214076e23,
                                    123456789.0,
                                    std::numeric_limits<double>::denorm_min(),
                                    std::numeric_limits<double>::max(),
                                    std::nextafter(1.0, 2.0)};
  CsvLogger logger;
  logger.start(run_);
  for (size_t i = 0; i < numbers.size(); ++i) log_one(logger, "x", numbers[i], static_cast<int64_t>(i));
  logger.finish(TrainerStatus::kFinished);

  std::istringstream lines(content());
  std::string line;
  std::getline(lines, line);
  for (const double number : numbers) {
    ASSERT_TRUE(std::getline(lines, line));
    const double read = std::strtod(line.c_str() + line.rfind(',') + 1, nullptr);
    EXPECT_EQ(read, number);
    EXPECT_EQ(std::signbit(read), std::signbit(number));
  }
}

TEST_F(CsvLoggerTest, NanAndInfinityAreWords) {
  CsvLogger logger;
  logger.start(run_);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {std::nan(""), -std::nan(""), infinity, -infinity}) log_one(logger, "x", value, 0);
  logger.flush();
  EXPECT_EQ(content(), "epoch,step,x\n0,0,nan\n0,0,nan\n0,0,inf\n0,0,-inf\n");
}

TEST_F(CsvLoggerTest, NamesAreQuotedAndReadBack) {
  const std::string header = "epoch,step,val/loss,\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\"\n";
  for (int fit = 0; fit < 2; ++fit) {
    CsvLogger logger;
    logger.start(run_);
    const std::vector<MetricValue> values{{"val/loss", 1}, {"a,b", 2}, {"say \"hi\"", 3}, {"two\nlines", 4}};
    logger.log_metrics(values, fit, 0);
    logger.finish(TrainerStatus::kFinished);
  }
  EXPECT_EQ(content(), header + "0,0,1,2,3,4\n0,1,1,2,3,4\n");
}

TEST_F(CsvLoggerTest, ASecondFitContinuesTheFile) {
  CsvLogger logger;
  logger.start(run_);
  const std::vector<MetricValue> values{{"b", 1}, {"a", 2}};
  logger.log_metrics(values, 1, 0);
  logger.finish(TrainerStatus::kFinished);
  logger.start(run_);
  log_one(logger, "a", 3, 2);
  log_one(logger, "c", 4, 3);
  logger.finish(TrainerStatus::kInterrupted);
  EXPECT_EQ(content(), "epoch,step,b,a,c\n0,1,1,2,\n0,2,,3,\n0,3,,,4\n");
}

TEST_F(CsvLoggerTest, AValueCalledEpochOrStepMakesNoSecondColumn) {
  for (int64_t fit = 0; fit < 2; ++fit) {
    CsvLogger logger;
    logger.start(run_);
    const std::vector<MetricValue> values{{"epoch", 0.5}, {"a", 3}, {"step", 7}};
    logger.log_metrics(values, fit, 0);
    log_one(logger, "a", 4, 100000);
    logger.finish(TrainerStatus::kFinished);
  }
  EXPECT_EQ(content(), "epoch,step,a\n0.5,7,3\n0,100000,4\n0.5,7,3\n0,100000,4\n");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CsvLoggerTest, AnotherFolderBeginsAnew) {
  CsvLogger logger;
  logger.start(run_);
  log_one(logger, "a", 1, 1);
  RunInfo other{run_.directory + "/other", "version_1"};
  logger.start(other);
  log_one(logger, "b", 2, 2);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n");
  EXPECT_EQ(FileSystem::current().read_file(other.directory + "/metrics.csv"), "epoch,step,b\n0,2,2\n");
}

TEST_F(CsvLoggerTest, APartOfARowLeftByAKilledProcessIsRemoved) {
  for (const std::string torn : {"0,2,0.1", "0,", "0,2,17,"}) {
    write("epoch,step,a\n0,1,1\n" + torn);
    CsvLogger logger;
    logger.start(run_);
    log_one(logger, "a", 3, 3);
    logger.finish(TrainerStatus::kFinished);
    EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n0,3,3\n");
  }
  write("epoch,st");
  CsvLogger logger;
  logger.start(run_);
  log_one(logger, "a", 3, 3);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(content(), "epoch,step,a\n0,3,3\n");
}

TEST_F(CsvLoggerTest, AForeignFileIsLeftAlone) {
  for (const std::string foreign : {"name,age\nAda,36\n", "epoch,step,a,a\n0,1,2,3\n"}) {
    warnings_.clear();
    write(foreign);
    CsvLogger logger;
    logger.start(run_);
    log_one(logger, "a", 3, 3);
    logger.flush();
    logger.finish(TrainerStatus::kFinished);
    EXPECT_EQ(content(), foreign);
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find(path()), std::string::npos);
  }
}

TEST_F(CsvLoggerTest, AFileThatCannotBeOpenedKeepsItsRows) {
  const std::string rows = "epoch,step,a\n0,1,2\n";
  write(rows);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  CsvLogger logger;
  ::setrlimit(RLIMIT_NOFILE, &none);
  logger.start(run_);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  log_one(logger, "b", 3, 3);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(content(), rows);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find(path() + " cannot be read and is left as it is"), std::string::npos) << warnings_[0];
}

TEST_F(CsvLoggerTest, RowsWaitForFlushEvery) {
  CsvLogger logger({.flush_every = 3});
  logger.start(run_);
  log_one(logger, "a", 1, 1);
  log_one(logger, "a", 2, 2);
  EXPECT_FALSE(FileSystem::current().exists(path()));
  log_one(logger, "a", 3, 3);
  EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n0,2,2\n0,3,3\n");
}

TEST_F(CsvLoggerTest, HyperparametersAreYaml) {
  const Config hyperparameters = Config::parse("{model: {hidden: 256, name: '12'}, betas: [0.9, 0.999]}", {});
  CsvLogger logger;
  logger.start(run_);
  logger.log_hyperparameters(hyperparameters);
  EXPECT_EQ(Config::load(run_.directory + "/hparams.yaml"), hyperparameters);
  EXPECT_EQ(files(), std::vector<std::string>{"hparams.yaml"});
}

TEST_F(CsvLoggerTest, OptionsAreDescribed) {
  const auto options = parse_options<CsvLoggerOptions>(Config::parse("flush_every: 7", {}), "logger");
  EXPECT_EQ(options.flush_every, 7);
  EXPECT_THROW(parse_options<CsvLoggerOptions>(Config::parse("flush_every: 0", {}), "logger"), ConfigError);
}

TEST_F(CsvLoggerTest, NothingIsLostOnADiskThatIsFullForAWhile) {
  testing::FaultyFileSystem disk;
  CsvLogger logger({.flush_every = 1});
  logger.start(run_);
  log_one(logger, "a", 1, 1);
  disk.fail_after_bytes(4);
  log_one(logger, "a", 2, 2);  // "0,2," arrives
  EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n0,2,");
  log_one(logger, "a", 3, 3);
  log_one(logger, "b", 4, 4);
  logger.flush();
  EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n0,2,");
  EXPECT_EQ(files(), std::vector<std::string>{"metrics.csv"}) << "no temporary file stays";
  ASSERT_EQ(warnings_.size(), 1u) << "one warning however many faults";
  EXPECT_NE(warnings_[0].find(path() + ": No space left on device"), std::string::npos) << warnings_[0];

  disk.heal();
  logger.flush();
  EXPECT_EQ(content(), "epoch,step,a,b\n0,1,1,\n0,2,2,\n0,3,3,\n0,4,,4\n");
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(CsvLoggerTest, AFaultAtAnyOperationLosesNothingWritten) {
  const std::string early = "epoch,step,a\n0,1,1\n";
  const std::string late = "epoch,step,a,b\n0,1,1,\n0,2,,2\n";
  int64_t operations = 1;
  for (int64_t good = 0; good < operations; ++good) {
    std::filesystem::remove_all(run_.directory);
    testing::FaultyFileSystem disk;
    CsvLogger logger;
    logger.start(run_);
    log_one(logger, "a", 1, 1);
    logger.flush();
    ASSERT_EQ(content(), early);

    const int64_t before = disk.operations();
    disk.fail_after_operations(good);
    log_one(logger, "b", 2, 2);
    logger.flush();
    const std::string seen = content();
    EXPECT_TRUE(seen == early || seen.starts_with("epoch,step,a,b\n0,1,1,\n")) << good << ": " << seen;
    if (disk.faults() == 0) {
      EXPECT_GT(good, 3);
      break;
    }
    operations = good + 2;
    disk.heal();
    logger.flush();
    EXPECT_EQ(content(), late) << good << " of " << disk.operations() - before;
  }
}

TEST_F(CsvLoggerTest, AnUnwritableFolderWarnsOnceAndSaysWhatIsLost) {
  std::filesystem::create_directories(run_.directory);
  std::ofstream(run_.directory + "/file") << "in the way";
  CsvLogger logger({.flush_every = 1});
  logger.start({run_.directory + "/file/version_0", "version_0"});
  logger.log_hyperparameters(Config::parse("a: 1", {}));
  for (int64_t step = 0; step < 1000; ++step) log_one(logger, "a", 1, step);
  logger.finish(TrainerStatus::kFinished);
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_NE(warnings_[0].find("Not a directory"), std::string::npos) << warnings_[0];
  EXPECT_NE(warnings_[1].find("1000 rows"), std::string::npos) << warnings_[1];
}

TEST_F(CsvLoggerTest, MemoryStaysBoundedWhileTheDiskTakesNothing) {
  testing::FaultyFileSystem disk;
  disk.fail_after_bytes(0);
  CsvLogger logger;
  logger.start(run_);
  constexpr int64_t kRows = 300'000;
  for (int64_t step = 0; step < kRows; ++step) log_one(logger, "a", 0.1, step);
  disk.heal();
  logger.finish(TrainerStatus::kFinished);
  const std::string text = content();
  EXPECT_LT(text.size(), size_t{2} << 20);
  EXPECT_GT(text.size(), size_t{1} << 19);
  EXPECT_TRUE(text.ends_with("\n"));
  ASSERT_EQ(warnings_.size(), 2u);
  const auto rows = std::count(text.begin(), text.end(), '\n') - 1;
  EXPECT_NE(warnings_[1].find(std::to_string(kRows - rows) + " rows"), std::string::npos) << warnings_[1];
}

TEST_F(CsvLoggerTest, RowsAfterACheckpointAreRemovedWhenARunGoesOn) {
  State first;
  State second;
  {
    CsvLogger logger({.flush_every = 1});
    EXPECT_TRUE(logger.state_dict().is_null()) << "not started";
    logger.start(run_);
    log_one(logger, "a", 1, 1);
    first = logger.state_dict();
    log_one(logger, "a", 2, 2);
    log_one(logger, "b", 3, 3);
    second = logger.state_dict();
    log_one(logger, "c", 4, 4);
    log_one(logger, "a", 5, 5);
  }
  const std::string whole = content();
  EXPECT_EQ(whole, "epoch,step,a,b,c\n0,1,1,,\n0,2,2,,\n0,3,,3,\n0,4,,,4\n0,5,5,,\n");
  for (const auto& [state, kept] :
       {std::pair(second, "epoch,step,a,b,c\n0,1,1,,\n0,2,2,,\n0,3,,3,\n"),
        std::pair(first, "epoch,step,a,b,c\n0,1,1,,\n"), std::pair(State(), "epoch,step,a,b,c\n")}) {
    for (const char* torn : {"", "0,6", "0,6,7,,"}) {
      write(whole + torn);
      CsvLogger logger({.flush_every = 1});
      logger.start(run_);
      EXPECT_EQ(content(), whole + torn) << "what a checkpoint says comes later";
      logger.load_state_dict(state);
      EXPECT_EQ(content(), kept);
      log_one(logger, "d", 6, 6);
      logger.flush();
      const std::string now = content();
      logger.finish(TrainerStatus::kFinished);
      EXPECT_TRUE(now.starts_with("epoch,step,a,b,c,d\n")) << now;
      EXPECT_TRUE(now.ends_with("\n0,6,,,,6\n")) << now;
      EXPECT_EQ(std::count(now.begin(), now.end(), '\n'), std::count(kept, kept + std::string(kept).size(), '\n') + 1);
    }
  }
}

TEST_F(CsvLoggerTest, RowsThatACheckpointDidNotCountAreKept) {
  State state;
  {
    CsvLogger logger;
    logger.start(run_);
    for (int64_t step = 0; step < 3; ++step) log_one(logger, "a", 0.5, step);
    state = logger.state_dict();
  }
  const std::string of_another = "epoch,step,a\n0,1,1\n0,2,1\n0,3,1\n0,4,1\n";
  const std::string shorter = "epoch,step,a\n0,0,0.5\n0,1,0.5\n";
  const size_t before = warnings_.size();
  for (const std::string& text : {of_another, shorter}) {
    write(text);
    CsvLogger logger;
    logger.start(run_);
    logger.load_state_dict(state);
    log_one(logger, "a", 2, 9);
    logger.finish(TrainerStatus::kFinished);
    EXPECT_EQ(content(), text + "0,9,2\n");
  }
  ASSERT_EQ(warnings_.size(), before + 1);
  EXPECT_NE(warnings_.back().find("does not begin with the 3 rows that were logged before the checkpoint"),
            std::string::npos);
}

TEST_F(CsvLoggerTest, RowsAreRemovedLaterWhereTheDiskTakesNothing) {
  State state;
  testing::FaultyFileSystem disk;
  CsvLogger logger({.flush_every = 1});
  logger.start(run_);
  log_one(logger, "a", 1, 1);
  state = logger.state_dict();
  log_one(logger, "a", 2, 2);
  logger.finish(TrainerStatus::kFinished);
  logger.start(run_);
  disk.fail_after_bytes(0);
  logger.load_state_dict(state);
  EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n0,2,2\n");
  disk.heal();
  log_one(logger, "a", 3, 2);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(content(), "epoch,step,a\n0,1,1\n0,2,3\n");
}

TEST_F(CsvLoggerTest, AFileTakenAwayIsBegunAnew) {
  CsvLogger logger;
  logger.start(run_);
  log_one(logger, "a", 1, 1);
  logger.flush();
  std::filesystem::remove_all(run_.directory);
  log_one(logger, "b", 2, 2);
  logger.finish(TrainerStatus::kFinished);
  EXPECT_EQ(content(), "epoch,step,a,b\n0,2,,2\n");
}

TEST_F(CsvLoggerTest, WithoutStartNothingHappens) {
  CsvLogger logger;
  log_one(logger, "a", 1, 1);
  logger.flush();
  logger.finish(TrainerStatus::kFailed);
  EXPECT_FALSE(std::filesystem::exists(run_.directory));
}

}  // namespace
}  // namespace levin
