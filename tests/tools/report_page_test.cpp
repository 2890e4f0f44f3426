#include <levin/core/base/error.h>
#include <levin/core/tools/report/down_sampling.h>
#include <levin/core/tools/report/findings.h>
#include <levin/core/tools/report/metric_placement.h>
#include <levin/core/tools/report/page.h>

#include "report_runs.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <random>

namespace levin::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// --- Down-sampling ---

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(ReportDownSampling, KeepsExtremesEndsAndGapsOfAnySeries) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const size_t size = random() % 5000;
    const size_t most = 8 + random() % 300;
    const unsigned not_finite = round % 3 == 0 ? 0 : random() % 40;  // percent
    Series series;
    int64_t step = 0;
    for (size_t i = 0; i < size; ++i) {
      step += 1 + static_cast<int64_t>(random() % 9);
      double value = std::normal_distribution<double>()(random);
      if (random() % 100 < not_finite) value = random() % 2 == 0 ? NAN : INFINITY;
      series.push_back({step, value});
    }

    const auto result = down_sample(series, most);
    ASSERT_LE(result.size(), most) << size;
    if (size <= most) {
      ASSERT_EQ(result.size(), size);
    }
    // Every point is one of the series, in its order.
    auto at = series.begin();
    for (const auto& [point, mean] : result) {
      at = std::find_if(at, series.end(), [&](const Point& other) { return other.step == point.step; });
      ASSERT_NE(at, series.end());
      ASSERT_TRUE(same(at->value, point.value));
      ++at;
    }
    if (size == 0) continue;
    EXPECT_EQ(result.front().point.step, series.front().step);
    EXPECT_EQ(result.back().point.step, series.back().step);
    Series sampled;
    for (const auto& [point, mean] : result) sampled.push_back(point);
    const auto before = summarize(series);
    const auto after = summarize(sampled);
    ASSERT_EQ(before.min == nullptr, after.min == nullptr);
    if (before.min != nullptr) {
      EXPECT_EQ(before.min->value, after.min->value);
      EXPECT_EQ(before.max->value, after.max->value);
    }
    EXPECT_EQ(before.first_non_finite == nullptr, after.first_non_finite == nullptr);
    if (before.first_non_finite != nullptr) {
      EXPECT_EQ(before.first_non_finite->step, after.first_non_finite->step);
    }
  }
}

TEST(ReportDownSampling, MeansAreThoseOfTheBuckets) {
  Series series;
  for (int64_t step = 0; step < 1002; ++step) series.push_back({step, step % 2 == 0 ? 1.0 : 3.0});
  const auto result = down_sample(series, 22);
  ASSERT_EQ(result.size(), 22u);
  for (size_t i = 1; i + 1 < result.size(); ++i) EXPECT_DOUBLE_EQ(result[i].mean, 2);
  EXPECT_THROW(down_sample(series, 7), InternalError);
}

// --- Names ---

struct Placed {
  const char* name;
  Group group;
  const char* chart;
  const char* line;
  const char* unit;
  const char* quantity;
};

TEST(ReportMetricPlacement, GoesByTheName) {
  const std::vector<Placed> expected{
      {"train_loss", Group::kTraining, "train_loss", "", "", "loss"},
      {"train/loss_epoch", Group::kTraining, "train/loss_epoch", "", "", "loss"},
      {"val_loss", Group::kValidation, "val_loss", "", "", "loss"},
      {"validation-acc", Group::kValidation, "validation-acc", "", "", "acc"},
      {"val_loss/dataloader_idx_1", Group::kValidation, "val_loss", "loader 1", "", "loss"},
      {"test_acc", Group::kTest, "test_acc", "", "", "acc"},
      {"training_seconds", Group::kTraining, "training_seconds", "", "s", "seconds"},
      {"lr-AdamW", Group::kLearningRate, "Learning rate", "AdamW", "", ""},
      {"lr-AdamW/pg1", Group::kLearningRate, "Learning rate", "AdamW/pg1", "", ""},
      {"throughput/samples_per_second", Group::kThroughput, "Samples per second", "", "samples/s", ""},
      {"throughput/model_tflops_per_second", Group::kThroughput, "Model FLOPs", "", "TFLOP/s", ""},
      {"throughput/mfu_percent", Group::kThroughput, "MFU", "", "%", ""},
      {"rank2/throughput/data_wait_percent", Group::kThroughput, "Data wait", "rank 2", "%", ""},
      {"tokens_per_second", Group::kThroughput, "tokens_per_second", "", "tokens/s", ""},
      {"gpu0/utilization_percent", Group::kHardware, "GPU utilization", "gpu0", "%", ""},
      {"rank3/gpu11/power_watts", Group::kHardware, "GPU power", "rank 3, gpu11", "W", ""},
      {"gpu0/memory_used_mib", Group::kHardware, "GPU memory used", "gpu0", "MiB", ""},
      {"gpu0/memory_total_mib", Group::kHardware, "GPU memory used", "gpu0 total", "MiB", ""},
      {"gpu0/pcie_receive_mib_per_second", Group::kHardware, "GPU PCIe receive", "gpu0", "MiB/s", ""},
      {"gpu0/power_limit_watts", Group::kHardware, "GPU power", "gpu0 limit", "W", ""},
      {"gpu0/sm_clock_mhz", Group::kHardware, "GPU SM clock", "gpu0", "MHz", ""},
      {"gpu0/processes", Group::kHardware, "GPU processes", "gpu0", "", ""},
      {"gpu/utilization_percent", Group::kHardware, "GPU utilization", "", "%", ""},
      {"gpu/memory_total_mib", Group::kHardware, "GPU memory used", "total", "MiB", ""},
      {"host/available_memory_mib", Group::kHardware, "Host available memory", "", "MiB", ""},
      {"cpu/utilization_percent", Group::kHardware, "CPU utilization", "", "%", ""},
      {"rank1/cpu/resident_memory_mib", Group::kHardware, "CPU resident memory", "rank 1", "MiB", ""},
      {"train", Group::kOther, "train", "", "", ""},
      {"training", Group::kOther, "training", "", "", ""},
      {"values", Group::kOther, "values", "", "", ""},
      {"gpu/", Group::kOther, "gpu/", "", "", ""},
      {"rank1/", Group::kOther, "rank1/", "", "", ""},
      {"_percent", Group::kOther, "_percent", "", "", ""},
      {"", Group::kOther, "(no name)", "", "", ""},
  };
  for (const auto& [name, group, chart, line, unit, quantity] : expected) {
    const Placement place = place_metric(name);
    EXPECT_EQ(place.group, group) << name;
    EXPECT_EQ(place.chart, chart) << name;
    EXPECT_EQ(place.line, line) << name;
    EXPECT_EQ(place.unit, unit) << name;
    EXPECT_EQ(place.quantity, quantity) << name;
  }
}

TEST(ReportMetricPlacement, DirectionIsThatOfTheLastWordThatSaysSomething) {
  EXPECT_EQ(better_direction("val_loss"), Direction::kDown);
  EXPECT_EQ(better_direction("Val/Accuracy"), Direction::kUp);
  EXPECT_EQ(better_direction("accuracy_loss"), Direction::kDown);
  EXPECT_EQ(better_direction("val_f1_epoch"), Direction::kUp);
  EXPECT_EQ(better_direction("glossary"), Direction::kUnknown);
  EXPECT_EQ(better_direction("grad_norm"), Direction::kUnknown);
}

// --- Findings ---

/// `computes_on_gpus`: those of the metrics have values of the allocator, as the GPUs of a run do.
RunFolder run_of(const std::vector<std::pair<std::string, std::vector<double>>>& metrics,
                 bool computes_on_gpus = true) {
  RunFolder run;
  for (const auto& [name, values] : metrics) {
    for (size_t i = 0; i < values.size(); ++i)
      run.metrics.append(name, {.step = static_cast<int64_t>(10 * (i + 1)), .value = values[i]});
    if (const size_t slash = name.rfind('/'); computes_on_gpus && name.find("gpu") != std::string::npos)
      run.metrics.append(name.substr(0, slash) + "/allocated_mib", {.step = 10, .value = 1});
  }
  return run;
}

std::vector<std::string> texts(const RunFolder& run) {
  std::vector<std::string> result;
  for (const auto& finding : find_findings(run).found) result.push_back(finding.text);
  return result;
}

TEST(ReportFindings, NothingIsSaidWithoutData) {
  const Findings findings = find_findings(run_of({}));
  EXPECT_THAT(findings.found, IsEmpty());
  EXPECT_EQ(findings.without_data.size(), 3u);
  // Values that are all NaN are no data either.
  const Findings all_nan = find_findings(run_of({{"gpu0/utilization_percent", {NAN, NAN}}}));
  EXPECT_EQ(all_nan.without_data.size(), 3u);
  EXPECT_THAT(all_nan.found, ::testing::SizeIs(1));
}

TEST(ReportFindings, ALossThatTurnedNan) {
  EXPECT_THAT(texts(run_of({{"train_loss", {1, 0.5, NAN, NAN, 1}}})),
              ElementsAre("train_loss was NaN at step 30, and at 2 of 5 points in all."));
  EXPECT_THAT(texts(run_of({{"grad_norm", {1, INFINITY}}})), ElementsAre("grad_norm was infinite at step 20 alone."));
}

TEST(ReportFindings, ALoaderBoundRunExplainsIdleGpus) {
  const auto found = find_findings(run_of({{"throughput/data_wait_percent", {90, 90, 30, 50}},
                                           {"gpu0/utilization_percent", {99, 99, 20, 30}},
                                           {"gpu1/utilization_percent", {99, 99, 40, 50}},
                                           {"gpu2/utilization_percent", {10, 10, 90, 90}}}))
                         .found;
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0].text, HasSubstr("waits for data 40 % of the time"));
  EXPECT_THAT(found[0].remedy, HasSubstr("num_workers"));
  EXPECT_EQ(found[1].text, "gpu0, gpu1: the GPU is in use 25 to 45 % of the time only (mean of the second half).");
  EXPECT_THAT(found[1].remedy, HasSubstr("waits for data"));
  EXPECT_THAT(texts(run_of({{"throughput/data_wait_percent", {90, 90, 10, 12}}})), IsEmpty());
  const auto alone = find_findings(run_of({{"rank1/gpu0/utilization_percent", {10, 10}}})).found;
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_THAT(alone[0].remedy, HasSubstr("profiler: simple"));
}

TEST(ReportFindings, ARunThatNeverWaitsIsBoundByWhatItComputes) {
  EXPECT_THAT(texts(run_of({{"throughput/data_wait_percent", {90, 90, 3, 5}}})),
              ElementsAre("Training waits for data 4 % of the time: what it computes sets the pace."));
  // A GPU that the run does not compute on may idle.
  EXPECT_THAT(texts(run_of({{"throughput/data_wait_percent", {0, 0}},
                            {"gpu1/utilization_percent", {0, 0}},
                            {"gpu1/memory_used_mib", {1, 1}},
                            {"gpu1/memory_total_mib", {1000, 1000}}},
                           /*computes_on_gpus=*/false)),
              ElementsAre(HasSubstr("what it computes sets the pace")));
  // A GPU that idles has another reason.
  EXPECT_THAT(texts(run_of({{"throughput/data_wait_percent", {0, 0}}, {"gpu0/utilization_percent", {20, 30}}})),
              ElementsAre(HasSubstr("the GPU is in use 30 %")));
}

TEST(ReportFindings, MemoryNearTheTotalOrHardlyUsed) {
  EXPECT_THAT(
      texts(run_of({{"gpu0/memory_used_mib", {100, 960, 900}}, {"gpu0/memory_total_mib", {1000, 1000, 1000}}})),
      ElementsAre("Memory was nearly full: gpu0 (960 of 1000 MiB, 96 %). A larger batch or sequence may not fit."));
  EXPECT_THAT(texts(run_of({{"gpu0/memory_used_mib", {100, 300}}, {"gpu0/memory_total_mib", {1000, 1000}}})),
              ElementsAre(HasSubstr("A larger batch would fit")));
  EXPECT_THAT(texts(run_of({{"gpu0/memory_used_mib", {600}}, {"gpu0/memory_total_mib", {1000}}})), IsEmpty());
  const auto without_total = find_findings(run_of({{"gpu0/memory_used_mib", {960}}}));
  EXPECT_THAT(without_total.found, IsEmpty());
  EXPECT_EQ(without_total.without_data.size(), 3u);
}

TEST(ReportFindings, HotGpusAndOverfitting) {
  EXPECT_THAT(texts(run_of({{"gpu3/temperature_celsius", {60, 91, 88}}})),
              ElementsAre(HasSubstr("gpu3 (91 °C at step 20)")));
  EXPECT_THAT(texts(run_of({{"val_loss", {2, 1, 1.1, 1.2, 1.3, 1.5}}})),
              ElementsAre(HasSubstr("val_loss was best at step 20 (1) and is 50 % higher at the end (1.5)")));
  EXPECT_THAT(texts(run_of({{"val_loss", {2, 1.5, 1.2, 1.1, 1, 1.05}}})), IsEmpty());
  EXPECT_THAT(texts(run_of({{"val_loss", {2, 1, 1.5}}})), IsEmpty()) << "too few to judge";
}

// --- The page ---

TEST(ReportPage, TextIsEscapedInHtmlAndInScripts) {
  EXPECT_EQ(html_escaped("<a href='x'>\"&"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
  const std::string text = "</script><!-- \xe2\x80\xa8 & \xff";
  const std::string script = script_json(nlohmann::json(text));
  EXPECT_THAT(script, Not(HasSubstr("<")));
  EXPECT_THAT(script, Not(HasSubstr("&")));
  EXPECT_TRUE(std::all_of(script.begin(), script.end(), [](char c) { return c >= ' ' && c < 127; })) << script;
  EXPECT_EQ(nlohmann::json::parse(script).get<std::string>(), "</script><!-- \xe2\x80\xa8 & \xef\xbf\xbd");
}

nlohmann::json data_of(const std::string& page) {
  const std::string opening = R"(<script type="application/json" id="data">)";
  const size_t begin = page.find(opening) + opening.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(ReportPage, HoldsEverythingItNeedsAndAsksForNothing) {
  RunFolder run = run_of({{"train_loss", {3, 2, NAN, INFINITY, 1}}, {"val_loss", {2.5}}});
  run.path = "runs/</title><script>alert(1)</script>";
  const std::string page = make_page({run}, {});
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("Dygraph"));
  EXPECT_THAT(page, HasSubstr("Permission is hereby granted")) << "the licence of what is embedded";
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* asking : {" src=\"", "<link rel=\"stylesheet", "@import", "url(", "sourceMappingURL"})
    EXPECT_THAT(page, Not(HasSubstr(asking)));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert(1)")));

  const auto data = data_of(page);
  ASSERT_EQ(data["curves"].size(), 2u);
  const auto& loss = data["curves"][0];
  EXPECT_EQ(loss["name"], "train_loss");
  EXPECT_EQ(loss["values"], nlohmann::json::parse("[3.0, 2.0, null, null, 1.0]"));
  EXPECT_EQ(loss["nan"], 1);
  EXPECT_EQ(loss["infinite"], 1);
  EXPECT_EQ(loss["min"], nlohmann::json::parse("[50, 1.0]"));
  EXPECT_EQ(data["groups"][0]["title"], "training and validation");
  EXPECT_EQ(data["groups"][0]["charts"][0]["curves"], nlohmann::json::parse("[0, 1]"));
}

TEST(ReportPage, AProfileThatVanishedCostsNothingElse) {
  RunFolder run;
  run.path = "gone";
  run.profiles.push_back({"profile_fit_rank0.txt", 5});
  const auto data = data_of(make_page({run}, {}));
  EXPECT_THAT(data["runs"][0]["profiles"][0]["text"].get<std::string>(), HasSubstr("cannot read"));
}

TEST(ReportPage, NamesOfRunsAreAsShortAsTheyCanBe) {
  std::vector<RunFolder> runs(3);
  runs[0].path = "/logs/a/version_0";
  runs[1].path = "/logs/b/version_0";
  runs[2].path = "/logs/b/version_1";
  const auto data = data_of(make_page(runs, {}));
  EXPECT_EQ(data["runs"][0]["name"], "a/version_0");
  EXPECT_EQ(data["runs"][1]["name"], "b/version_0");
}

TEST(ReportPage, ManyCurvesShareThePoints) {
  std::vector<std::pair<std::string, std::vector<double>>> metrics;
  for (int i = 0; i < 300; ++i) metrics.emplace_back("m" + std::to_string(i), std::vector<double>(500, i));
  const auto data = data_of(make_page({run_of(metrics)}, {.most_points = 30'000}));
  for (const auto& curve : data["curves"]) EXPECT_LE(curve["steps"].size(), 100u);
}

}  // namespace
}  // namespace levin::report
