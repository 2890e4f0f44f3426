#include <levin/core/sweep/run_table.h>

#include <levin/core/base/csv.h>

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace levin::sweep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

Setting setting(const std::string& option, const std::string& value) { return {option, Config::scalar(value)}; }

RunTable three_runs() {
  RunTable table{.options = {"model.lr", "seed"}, .monitor = "val_loss"};
  table.runs = {{.number = 0,
                 .settings = {setting("model.lr", "0.1"), setting("seed", "0")},
                 .combination = 1,
                 .status = RunStatus::kFinished,
                 .seconds = 1.5,
                 .metrics = {{"val_loss", 0.25}, {"val_acc", 0.5}}},
                {.number = 1,
                 .settings = {setting("model.lr", "0.1"), setting("seed", "1")},
                 .combination = 1,
                 .status = RunStatus::kFinished,
                 .seconds = 2,
                 .metrics = {{"val_loss", 0.75}}},
                {.number = 2,
                 .settings = {setting("model.lr", "0.2"), setting("seed", "0")},
                 .combination = 2,
                 .status = RunStatus::kFailed,
                 .error = "[data] no such file: \"a\", b"}};
  return table;
}

TEST(SweepTable, AsCsvHasOptionsThenMetricsThenErrors) {
  EXPECT_EQ(three_runs().to_csv(),
            "run,status,rung,seconds,model.lr,seed,val_loss,val_acc,error\n"
            "0000,finished,,1.500,0.1,0,0.25,0.5,\n"
            "0001,finished,,2.000,0.1,1,0.75,,\n"
            "0002,failed,,0.000,0.2,0,,,\"[data] no such file: \"\"a\"\", b\"\n");
}

TEST(SweepTable, ReadsBackWhatItWrote) {
  RunTable table = three_runs();
  table.has_rungs = true;
  table.runs[1].status = RunStatus::kStoppedEarly;
  table.runs[1].rung = 2;
  table.runs[0].metrics.emplace_back("error", 0.125);  // a metric of that name
  RunTable again = three_runs();
  for (sweep::Run& run : again.runs) run = {.number = run.number, .settings = run.settings};
  again.restore(table.to_csv());
  EXPECT_EQ(again.runs[0].status, RunStatus::kFinished);
  EXPECT_EQ(again.runs[1].status, RunStatus::kStoppedEarly);
  EXPECT_EQ(again.runs[1].rung, 2u);
  EXPECT_EQ(again.runs[0].error, "");
  EXPECT_EQ(again.runs[2].error, table.runs[2].error);
  EXPECT_DOUBLE_EQ(again.runs[0].seconds, 1.5);
}

TEST(SweepTable, AsTextMarksTheBestRunAndNamesFailures) {
  const std::string text = three_runs().to_text("/sweeps/a");
  EXPECT_THAT(text, HasSubstr("   run   status    model.lr  seed  val_loss  seconds\n"));
  EXPECT_THAT(text, HasSubstr("*  0000  finished       0.1     0      0.25      1.5\n"));
  EXPECT_THAT(text, HasSubstr("   0002  failed         0.2     0                0.0\n"));
  EXPECT_THAT(text, HasSubstr("failed  0002  [data] no such file: \"a\", b; hint: /sweeps/a/0002/output.txt\n"));
  EXPECT_THAT(text, HasSubstr("best    0000  val_loss 0.25  model.lr=0.1, seed=0\n"));
  EXPECT_THAT(text, HasSubstr("best on average  model.lr=0.1  val_loss 0.5 over 2 seeds\n"));
  EXPECT_THAT(text, HasSubstr("table   /sweeps/a/sweep.csv\n"));
}

TEST(SweepTable, AveragesOverSeedsWhereverTheirRunsAre) {
  RunTable table = three_runs();
  table.runs[1].settings = {setting("model.lr", "0.2"), setting("seed", "0")};
  table.runs[1].combination = 2;
  table.runs[1].metrics = {{"val_loss", 1.0}};
  table.runs[2] = {.number = 2,
                   .settings = {setting("model.lr", "0.1"), setting("seed", "1")},
                   .combination = 1,
                   .status = RunStatus::kFinished,
                   .metrics = {{"val_loss", 0.75}}};
  EXPECT_THAT(table.to_text("/a"), HasSubstr("best on average  model.lr=0.1  val_loss 0.5 over 2 seeds\n"));
}

TEST(SweepTable, FinishedRunsComeBeforeStoppedOnesAndNumbersBeforeNan) {
  RunTable table = three_runs();
  table.mode = MonitorMode::kMax;
  EXPECT_EQ(table.best()->number, 1);
  table.runs[1].status = RunStatus::kStoppedEarly;
  EXPECT_EQ(table.best()->number, 0);
  for (const double no_number : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    table.runs[0].metrics = {{"val_loss", no_number}};
    EXPECT_EQ(table.best()->number, 1);
  }
  table.runs[1].metrics.clear();
  EXPECT_EQ(table.best(), nullptr);
  EXPECT_THAT(table.to_text("/a"), Not(HasSubstr("best")));
}

TEST(SweepTable, SaysWhyThereIsNoBestRun) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  RunTable table = three_runs();
  EXPECT_EQ(table.why_no_best(), "");
  for (auto& run : table.runs) run.status = RunStatus::kFinished;
  for (auto& run : table.runs) run.metrics = {{"train_loss", 1.0}, {"val_loss", kNan}};
  EXPECT_THAT(table.why_no_best(),
              StartsWith("sweep.monitor, val_loss, is NaN or infinite in every run that has a value "
                         "of it (3 runs); hint: "));
  table.runs[0].metrics = {};
  table.runs[1].metrics = {};
  EXPECT_THAT(table.why_no_best(), HasSubstr("(1 run)"));
  table.runs[0] = {.number = 0, .status = RunStatus::kFailed, .metrics = {{"val_loss", 1.0}}};
  EXPECT_EQ(table.why_no_best(), "no run that finished has a number for sweep.monitor, val_loss");
  for (auto& run : table.runs) run.metrics = {{"val_los", 1.0}};
  EXPECT_EQ(table.why_no_best(),
            "no run has a value of sweep.monitor, val_loss; did you mean 'val_los'?; valid: val_los");
  for (auto& run : table.runs) run.metrics = {};
  EXPECT_EQ(table.why_no_best(), "");
}

TEST(SweepCsv, CellsInQuotationMarksMayHoldAnything) {
  const CsvRow row = {"a", "b,c", "d\"e\"", "f\ng", ""};
  EXPECT_THAT(parse_csv(csv_line(row) + csv_line({"x"})), ElementsAre(row, CsvRow{"x"}));
}

TEST(SweepCsv, ARowWithoutAnEndIsLeftOut) { EXPECT_THAT(parse_csv("a,b\n1,"), ElementsAre(CsvRow{"a", "b"})); }

class SweepRunResults : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }

  const std::string folder_ = ::testing::TempDir() + "sweep_run_results";
};

TEST_F(SweepRunResults, AreTheLastValueOfEachMetric) {
  EXPECT_THAT(last_metrics(folder_), IsEmpty());
  write("metrics.csv", "epoch,step,train_loss,val_loss\n0,4,0.5,\n0,4,,0.75\n1,8,0.25,\n1,8,,nan\n2,9,0.");
  const auto metrics = last_metrics(folder_);
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_THAT(metrics[0], Pair("train_loss", 0.25));
  EXPECT_TRUE(std::isnan(metrics[1].second));
  EXPECT_THAT(last_metrics(folder_, 1), ElementsAre(Pair("train_loss", 0.5), Pair("val_loss", 0.75)));
}

TEST_F(SweepRunResults, HaveTheLastErrorThatWasPrinted) {
  EXPECT_EQ(last_error(folder_), "");
  write("output.txt", "error: [a] first\nepoch 1\nerror: [b] second\n[levin] end\n");
  EXPECT_EQ(last_error(folder_), "[b] second");
}

}  // namespace
}  // namespace levin::sweep
