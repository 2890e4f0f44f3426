#include <levin/core/base/error.h>
#include <levin/core/base/png.h>

#include "../support/run_program.h"
#include "report_runs.h"
#include "tests/support/tree.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <png.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>

namespace levin {
namespace {

using testing::fresh_folder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using testing::read_text;
using testing::run_program;
using testing::write_file;
using testing::write_run;

/// Runs the executable as a user would.
class LevinReportTool : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(tool_))
      GTEST_SKIP() << "no levin-report at '" << tool_ << "'; build the tools or set LEVIN_REPORT_TOOL";
  }

  static std::vector<MetricValue> sample(int64_t step) {
    std::vector<MetricValue> values{{"train_loss", 1.0 / static_cast<double>(step)}, {"lr-AdamW", 1e-3}};
    if (step % 50 == 0) values.insert(values.end(), {{"val_loss", 0.2}, {"val_acc", 0.9}});
    return values;
  }
  std::string make_run(const std::string& name, const testing::SampleRun& run = {}) const {
    write_run(folder_ + "/" + name, run, sample);
    return folder_ + "/" + name;
  }

  ProgramResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), tool_);
    return run_program(words, {.folder = folder_});
  }
  /// Expects the error and that nothing was written.
  void expect_error(const std::vector<std::string>& words, const std::string& message) const {
    const auto result = run(words);
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/report.html"));
  }

  const std::string folder_ = fresh_folder("report");

  static std::string find_tool() {
    if (const char* environment = std::getenv("LEVIN_REPORT_TOOL")) return environment;
    return testing::build_path("bin/levin-report");
  }
  const std::string tool_ = find_tool();
};

TEST_F(LevinReportTool, WritesThePageWhereItIsWanted) {
  make_run("a");
  make_run("b");
  const auto one = run({"a"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.err, "");
  EXPECT_THAT(one.out, HasSubstr("a/report.html: 1 run, 4 metrics"));
  EXPECT_THAT(read_text(folder_ + "/a/report.html"), HasSubstr("train_loss"));
  // A second time replaces it.
  EXPECT_EQ(run({"a/"}).status, 0);
  EXPECT_EQ(run({"a", "b"}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/report.html"));
  EXPECT_EQ(run({"b", "--output", "page with spaces.html"}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/page with spaces.html"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/b/report.html"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_NE(entry.path().extension(), ".unfinished");
  EXPECT_THAT(run({"--help"}).out, HasSubstr("Usage: levin-report RUN_DIR"));
}

TEST_F(LevinReportTool, WhatCannotBePrintedIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  const auto result = testing::run_program({"/bin/sh", "-c", "\"$0\" --help > /dev/full", tool_});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("[output] not all that was printed could be written"));
}

TEST_F(LevinReportTool, SaysWhatIsWrong) {
  make_run("a");
  expect_error({}, "no run given");
  expect_error({"none"}, "there is no folder none");
  std::filesystem::create_directories(folder_ + "/empty");
  expect_error({"empty"}, "is not a run's folder");
  expect_error({"."}, "such as ./a");
  expect_error({"a/metrics.csv"}, "is not a folder");
  expect_error({"a", "./a"}, "the run ./a is given twice");
  std::filesystem::create_directory_symlink("a", folder_ + "/link");
  expect_error({"a", "link"}, "given twice");
  expect_error({"a", "--outputs", "x"}, "--help");
  expect_error({"a", "--output", "none/page.html"}, "there is no folder none");
  expect_error({"a", "--output", "a"}, "it is a folder");
  expect_error({"a", "--output", "a/metrics.csv"}, "is not an HTML page");
  EXPECT_THAT(read_text(folder_ + "/a/metrics.csv"), HasSubstr("epoch,step"));
  expect_error({"a", "--output", "/proc/page.html"}, "/proc/page.html");
  write_file(folder_ + "/bad/metrics.csv", "time,loss\n");
  expect_error({"bad"}, "must be epoch,step");
  std::filesystem::create_symlink("loop", folder_ + "/bad/events.out.tfevents.1");
  std::filesystem::create_symlink("events.out.tfevents.1", folder_ + "/bad/loop");
  expect_error({"bad"}, "cannot read bad/events.out.tfevents.1");
}

TEST_F(LevinReportTool, ShowsTheTrainingData) {
  const std::string folder = make_run("a");
  write_file(folder + "/data.json", R"({"examples": 3, "tensors": [], "classes": [{"name": "owl", "count": 3}]})");
  write_file(folder + "/data.png", "bytes");
  EXPECT_EQ(run({"a"}).status, 0);
  EXPECT_THAT(read_text(folder + "/report.html"), HasSubstr(R"("classes":[{"count":3,"name":"owl"}])"));
  EXPECT_THAT(read_text(folder + "/report.html"), HasSubstr("data:image/png;base64,Ynl0ZXM="));
  for (const char* damaged : {"{", R"({"examples": 3})", R"({"examples": "x", "tensors": [], "classes": []})"}) {
    write_file(folder + "/data.json", damaged);
    const auto result = run({"a"});
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.err, HasSubstr("data.json is damaged and left out")) << damaged;
  }
}

TEST_F(LevinReportTool, ARunWithoutValuesHasAPage) {
  write_file(folder_ + "/new/config.yaml", "seed: 1\n");
  const auto result = run({"new"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("new: No value has been logged yet."));
}

// --- Scaling and sweeps ---

/// Runs of 3 epochs of 50,000 images on 1, 2 and 4 devices, whose epochs take 45, 24 and 12 s.
std::vector<std::string> write_scaling_runs(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [devices, seconds] : {std::pair{1, 45.0}, {2, 24.0}, {4, 12.0}}) {
    names.push_back("on" + std::to_string(devices));
    const std::string run = folder + "/" + names.back();
    write_run(run, {.last_step = 30, .steps_of_epoch = 10},
              [devices = devices, seconds = seconds](int64_t step) -> std::vector<MetricValue> {
                std::vector<MetricValue> values{{"train_loss", 3.0 / static_cast<double>(step * devices)}};
                if (step > 10 && step % 10 == 0)
                  values.insert(values.end(), {{"throughput/epoch_seconds", step == 20 ? seconds + 1 : seconds - 1},
                                               {"throughput/epoch_samples", 50'000},
                                               {"throughput/devices", static_cast<double>(devices)}});
                return values;
              });
    write_file(run + "/config.yaml", "model: {name: resnet50v2}\ndata: {name: fashion_mnist_enlarged}\n");
  }
  return names;
}

constexpr const char* kSweepHead =
    "run,status,rung,seconds,model.lr,data.batch_size,trainer.devices,val_loss,val_acc,error\n";

/// A sweep of seven runs: one failed, one waits, and one name has to be quoted.
void write_sweep(const std::string& folder) {
  std::string table = kSweepHead;
  int number = 0;
  for (const double lr : {0.001, 0.01, 0.1})
    for (const int devices : {1, 2}) {
      const double loss = 1.5 + std::abs(std::log10(lr) + 2) - 0.1 * devices;
      const std::string name = "000" + std::to_string(number++);
      const bool failed = number == 6;
      table += name + (failed ? ",failed,,2.5," : ",finished,1," + std::to_string(20 / devices) + ".25,") +
               std::to_string(lr) + ",\"[8, 8]\"," + std::to_string(devices) + "," +
               (failed ? ",,\"out of memory, alas\"\n" : std::to_string(loss) + ",0.5,\n");
      if (failed) continue;
      write_run(folder + "/" + name, {.last_step = 40}, [loss](int64_t step) -> std::vector<MetricValue> {
        return {{"train_loss", loss + 1.0 / static_cast<double>(step)},
                {"val_loss", loss + 1.0 / static_cast<double>(step)}};
      });
      write_file(folder + "/" + name + "/config.yaml", "trainer: {devices: " + std::to_string(devices) +
                                                           ", callbacks: [early_stopping: {monitor: val_loss}]}\n");
    }
  table += "0006,waiting,,,0.5,\"[8, 8]\",2,,,\n";
  write_file(folder + "/sweep.csv", table);
  write_file(folder + "/sweep.yaml",
             "options: [model.lr, data.batch_size, trainer.devices]\nmonitor: val_loss\nmode: min\n");
}

nlohmann::json data_of(const std::string& page) {
  const std::string text = read_text(page);
  const std::string opening = R"(<script type="application/json" id="data">)";
  const size_t begin = text.find(opening) + opening.size();
  return nlohmann::json::parse(text.substr(begin, text.find("</script>", begin) - begin));
}

TEST_F(LevinReportTool, SaysHowTrainingTimeFallsWithDevices) {
  auto words = write_scaling_runs(folder_);
  ASSERT_EQ(run(words).status, 0);
  const auto data = data_of(folder_ + "/report.html");
  ASSERT_EQ(data["scaling"].size(), 1u);
  EXPECT_EQ(data["scaling"][0]["label"], "resnet50v2 on fashion_mnist_enlarged");
  const auto& rows = data["scaling"][0]["rows"];
  ASSERT_EQ(rows.size(), 3u);
  const std::vector<std::vector<double>> expected{{1, 45, 1111, 1}, {2, 24, 2083, 1.88}, {4, 12, 4167, 3.75}};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["devices"], expected[i][0]);
    EXPECT_DOUBLE_EQ(rows[i]["seconds"], expected[i][1]);
    EXPECT_EQ(std::round(rows[i]["samples"].get<double>()), expected[i][2]);
    EXPECT_NEAR(rows[i]["speedup"].get<double>(), expected[i][3], 0.0051);
    EXPECT_EQ(rows[i]["runs"], nlohmann::json::array({i}));
  }
  EXPECT_TRUE(data["sweep"].is_null());
}

TEST_F(LevinReportTool, TakesFromTheSweepHowRunsOfCsvAloneEnded) {
  std::string table = "run,status,rung,seconds,model.lr,val_loss,error\n";
  int number = 0;
  for (const char* status : {"finished", "stopped_early", "failed", "running", "waiting"}) {
    const std::string name = "000" + std::to_string(number++);
    table += name + "," + status + ",,2.5,0.1,1.0,\n";
    write_run(folder_ + "/sweep/" + name, {.last_step = 4, .events = false}, [](int64_t) -> std::vector<MetricValue> {
      return {{"val_loss", 1.0}};
    });
  }
  write_file(folder_ + "/sweep/sweep.csv", table);
  write_file(folder_ + "/sweep/sweep.yaml", "options: [model.lr]\nmonitor: val_loss\nmode: min\n");
  ASSERT_EQ(run({"sweep"}).status, 0);
  const auto runs = data_of(folder_ + "/sweep/report.html")["runs"];
  std::vector<std::string> statuses;
  for (const auto& each : runs) {
    statuses.push_back(each["status"]);
    EXPECT_EQ(each["seconds"], 2.5);
  }
  EXPECT_EQ(statuses, (std::vector<std::string>{"finished", "finished", "failed", "unfinished", "unfinished"}));
  // By itself a run has nothing that says it.
  ASSERT_EQ(run({"sweep/0000"}).status, 0);
  const auto alone = data_of(folder_ + "/sweep/0000/report.html")["runs"][0];
  EXPECT_EQ(alone["status"], "unknown");
  EXPECT_TRUE(alone["seconds"].is_null());
}

TEST_F(LevinReportTool, ARepeatedRunCountsInTheMean) {
  const auto log_seconds = [&](const std::string& name, double seconds) {
    write_run(folder_ + "/" + name, {.last_step = 1, .events = false}, [&](int64_t) -> std::vector<MetricValue> {
      return {{"throughput/epoch_seconds", seconds}, {"throughput/epoch_samples", 100}};
    });
    // Without the metric the configuration says how many devices there were.
    write_file(folder_ + "/" + name + "/config.yaml", "trainer: {devices: 2, num_nodes: 2}\n");
  };
  log_seconds("a", 10);
  log_seconds("b", 30);
  ASSERT_EQ(run({"a", "b"}).status, 0);
  const auto row = data_of(folder_ + "/report.html")["scaling"][0]["rows"][0];
  EXPECT_EQ(row["devices"], 4);
  EXPECT_EQ(row["seconds"], 20);
  EXPECT_EQ(row["samples"], 5);
}

TEST_F(LevinReportTool, ReadsASweep) {
  write_sweep(folder_ + "/sweep");
  const auto result = run({"sweep", "--time-to", "val_loss=1.6"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("sweep/report.html: 5 runs"));
  const auto data = data_of(folder_ + "/sweep/report.html");
  const auto& sweep = data["sweep"];
  ASSERT_EQ(sweep["runs"].size(), 7u);
  EXPECT_EQ(sweep["options"], nlohmann::json::parse(R"(["model.lr", "data.batch_size", "trainer.devices"])"));
  EXPECT_EQ(sweep["metrics"], nlohmann::json::parse(R"(["val_loss", "val_acc"])"));
  EXPECT_EQ(sweep["runs"][0]["options"][1], "[8, 8]");
  EXPECT_EQ(sweep["runs"][0]["seconds"], 20.25);
  EXPECT_EQ(sweep["runs"][5]["error"], "out of memory, alas");
  EXPECT_TRUE(sweep["runs"][5]["run"].is_null());
  EXPECT_TRUE(sweep["runs"][6]["seconds"].is_null());
  EXPECT_EQ(data["runs"].size(), 5u);
  EXPECT_THAT(data["runs"][0]["name"].get<std::string>(), HasSubstr("0000 lr=0.001"));

  // val_loss is 1.4 + 1 / step and 1.3 + 1 / step with the middle rate, and stays above the target with the others.
  const auto& rows = data["targets"][0]["runs"];
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_TRUE(rows[0]["step"].is_null());
  EXPECT_EQ(rows[2]["step"], 5);
  EXPECT_EQ(rows[3]["step"], 4);
  EXPECT_EQ(rows[3]["devices"], 2);
  EXPECT_GE(rows[3]["seconds"], 0);
}

TEST_F(LevinReportTool, SaysWhatIsWrongWithASweep) {
  make_run("a");
  write_sweep(folder_ + "/sweep");
  expect_error({"a", "sweep"}, "sweep is a sweep's folder; hint: give it alone");
  expect_error({"a", "--time-to", "val_loss"}, "--time-to must be a metric and a number; got 'val_loss'");
  expect_error({"a", "--time-to", "val_los=0.5"}, "no run has logged val_los; valid: lr-AdamW, train_loss");
  write_file(folder_ + "/sweep/sweep.csv", "run,loss\n");
  expect_error({"sweep"}, "sweep.csv is not a sweep's table");
  write_file(folder_ + "/sweep/sweep.csv", "run,status,rung,seconds,model.lr,val_loss,error\n");
  expect_error({"sweep"}, "disagree about what varies: model.lr, data.batch_size, trainer.devices");
  write_file(folder_ + "/sweep/sweep.csv", std::string(kSweepHead) + "0000,waiting,,,1,8,1,,,\n0001,wai");
  const auto torn = run({"sweep"});
  EXPECT_EQ(torn.status, 0) << torn.err;
  EXPECT_THAT(read_text(folder_ + "/sweep/report.html"), HasSubstr("1 rows of sweep.csv were damaged"));
}

// --- In a browser ---

std::optional<std::string> find_browser() {
  if (const char* environment = std::getenv("LEVIN_CHROMIUM")) return environment;
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"})
    if (std::filesystem::exists(path)) return path;
  return std::nullopt;
}

struct Image {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;
};

Image read_png(const std::string& path) {
  png_image png{.version = PNG_IMAGE_VERSION};
  Image image;
  if (png_image_begin_read_from_file(&png, path.c_str()) == 0) {
    ADD_FAILURE() << path << ": " << png.message;
    return image;
  }
  png.format = PNG_FORMAT_RGB;
  image.width = static_cast<int>(png.width);
  image.height = static_cast<int>(png.height);
  image.rgb.resize(PNG_IMAGE_SIZE(png));
  EXPECT_NE(png_image_finish_read(&png, nullptr, image.rgb.data(), 0, nullptr), 0) << png.message;
  return image;
}

/// The share of an image's pixels that are coloured, and how bright the whole is on average (0 to 255).
struct Impression {
  double coloured = 0;
  double brightness = 0;
};

Impression look_at(const Image& image) {
  Impression impression;
  const double pixels = static_cast<double>(image.width) * image.height;
  for (size_t i = 0; i + 2 < image.rgb.size(); i += 3) {
    const auto [least, greatest] = std::minmax({image.rgb[i], image.rgb[i + 1], image.rgb[i + 2]});
    if (greatest - least > 80) impression.coloured += 1 / pixels;
    impression.brightness += greatest / pixels;
  }
  return impression;
}

class LevinReportBrowser : public LevinReportTool {
 protected:
  void SetUp() override {
    LevinReportTool::SetUp();
    if (!browser_) GTEST_SKIP() << "no chromium; scripts/bootstrap --with-test-packages installs it";
  }

  ProgramResult browse(const std::string& page, std::vector<std::string> options) const {
    std::vector<std::string> words{*browser_,
                                   "--headless",
                                   "--no-sandbox",
                                   "--disable-gpu",
                                   "--no-first-run",
                                   "--disable-dev-shm-usage",
                                   "--hide-scrollbars",
                                   "--enable-logging=stderr",
                                   "--user-data-dir=" + fresh_folder("browser")};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("file://" + page);
    return run_program(words, {.environment = {{"HOME", fresh_folder("home")}}, .timeout = std::chrono::seconds(200)});
  }

  /// Opens the page with report_browser_checks.js in it and expects that the checks find nothing wrong.
  /// @return milliseconds from the navigation until the charts were drawn (of more than 100, every twentieth)
  double check(const std::string& page, bool quick = false, const std::string& size = "1500,1200") const {
    const std::string script = read_text(testing::source_path("tests/tools/report_browser_checks.js"));
    std::string text = read_text(page);
    const size_t end = text.rfind("</body>");
    text.insert(end, std::string("<script") + (quick ? " data-quick" : "") + ">" + script + "</script>\n");
    const std::string path = page + ".checked.html";
    write_file(path, text);
    const auto result = browse(path, {"--window-size=" + size, "--dump-dom"});
    EXPECT_EQ(result.status, 0) << result.err;
    const std::string opening = "<pre id=\"checks\">BEGIN\n";
    const size_t begin = result.out.rfind(opening);
    if (begin == std::string::npos) {
      ADD_FAILURE() << "the checks did not come to their end\n" << result.err;
      return 0;
    }
    const size_t from = begin + opening.size();
    EXPECT_EQ(result.out.substr(from, result.out.find("\nEND", from) - from), "");
    // Our own message shows that those of the page would be seen.
    size_t messages = 0;
    for (size_t at = result.err.find("CONSOLE"); at != std::string::npos; at = result.err.find("CONSOLE", at + 1))
      ++messages;
    EXPECT_EQ(messages, 1u) << result.err;
    EXPECT_THAT(result.err, HasSubstr("checks done"));
    const std::string opened = "data-opened=\"";
    return std::atof(result.out.c_str() + result.out.find(opened) + opened.size());
  }

 private:
  const std::optional<std::string> browser_ = find_browser();
};

TEST_F(LevinReportBrowser, OneRunIsShownAndAnswersToItsControls) {
  ASSERT_EQ(run({make_run("a")}).status, 0);
  check(folder_ + "/a/report.html");
}

TEST_F(LevinReportBrowser, TheTrainingDataAreShown) {
  const std::string folder = make_run("a");
  write_file(folder + "/data.json",
             R"({"examples": 6, "tensors": [{"name": "<b>image", "shape": [2, 3, 4, 5], "type": "float32", "min": null,
                 "max": 1.5, "mean": 0.25, "not_finite": 0}],
                 "classes": [{"name": "</script><img src=x>", "count": 4}, {"name": "dog", "count": 2}]})");
  write_file(folder + "/data.png", encode_png(at::ones({3, 8, 9}, at::kByte)));
  ASSERT_EQ(run({"a"}).status, 0);
  check(folder + "/report.html");
}

TEST_F(LevinReportBrowser, HostileNamesAndValuesDoNoHarm) {
  const std::vector<std::string> names{"train_<script>alert(1)</script>",
                                       "</script><img src=x onerror=alert(2)>",
                                       "<b>损失</b>/ünïcode/😀",
                                       std::string(200, 'x'),
                                       "a/b/c/d",
                                       " ",
                                       "__proto__",
                                       "constructor",
                                       "{{data}}",
                                       "\"quoted\", name\n",
                                       "bytes \xff\xfe"};
  const auto hostile = [&](int64_t step) {
    std::vector<MetricValue> values;
    for (size_t i = 0; i < names.size(); ++i)
      values.push_back({names[i], std::sin(static_cast<double>(step) / 9 + static_cast<double>(i))});
    values.push_back({"train_loss", step % 10 == 3 ? NAN : step % 10 == 7 ? -INFINITY : 1.0});
    values.push_back({"val_loss", NAN});
    values.push_back({"huge", 1e300 * static_cast<double>(step)});
    values.push_back({"tiny", 1e-300 * static_cast<double>(step)});
    values.push_back({"zero", 0});
    if (step == 5) values.push_back({"once", 7});
    return values;
  };
  for (const char* name : {"/<b>1", "/<b>2"}) {
    write_run(folder_ + name, {}, hostile);
    write_file(folder_ + name + "/config.yaml", std::string("\"</script><img src=x>\": \"<b>") + name + "\"\n");
    write_file(folder_ + name + "/profile_fit_rank0.txt", "</pre><img src=x>");
  }
  ASSERT_EQ(run({"<b>1", "<b>2"}).status, 0);
  check(folder_ + "/report.html", false, "700,1200");
}

TEST_F(LevinReportBrowser, AThousandMetricsAreShown) {
  write_run(folder_ + "/many", {.last_step = 20, .events = false}, [](int64_t step) {
    std::vector<MetricValue> values;
    for (int i = 0; i < 1000; ++i)
      values.push_back({"layer" + std::to_string(i) + "/norm", std::sin(static_cast<double>(step * (i + 1)))});
    return values;
  });
  ASSERT_EQ(run({"many"}).status, 0);
  std::printf("1000 metrics: 50 charts were drawn %.0f ms after the navigation\n",
              check(folder_ + "/many/report.html", true));
}

TEST_F(LevinReportBrowser, AMillionScalarsAreShown) {
  std::mt19937 random(1);
  std::vector<MetricValue> values(10);
  for (size_t i = 0; i < values.size(); ++i) values[i].name = "train_loss_of_" + std::to_string(i);
  write_run(folder_ + "/long", {.last_step = 100'000, .steps_of_epoch = 1000}, [&](int64_t step) {
    for (auto& value : values)
      value.value = std::normal_distribution<double>()(random) + 3e3 / (1e3 + static_cast<double>(step));
    return values;
  });
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(run({"long"}).status, 0);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::string page = folder_ + "/long/report.html";
  const double opened = check(page, true);
  std::printf(
      "report of 1,000,000 scalars: written in %.1f s, %.1f MB, all charts drawn %.0f ms after the navigation\n",
      seconds.count(), static_cast<double>(std::filesystem::file_size(page)) / 1e6, opened);
  EXPECT_GT(opened, 0);
  EXPECT_LT(std::filesystem::file_size(page), 5'000'000u) << "so that it opens soon";
}

TEST_F(LevinReportBrowser, ScalingIsATableAndThreeFigures) {
  auto words = write_scaling_runs(folder_);
  words.insert(words.end(), {"--time-to", "train_loss=0.2"});
  ASSERT_EQ(run(words).status, 0);
  check(folder_ + "/report.html");
  const std::string dump = browse(folder_ + "/report.html", {"--dump-dom"}).out;
  for (const char* text :
       {"1\u2009111", "2\u2009083", "4\u2009167", ">1.00<", ">1.88<", ">3.75<", "resnet50v2 on fashion_mnist_enlarged",
        "Time of an epoch", "Throughput", "Speed-up", "Time to train_loss 0.2"})
    EXPECT_THAT(dump, HasSubstr(text));
}

TEST_F(LevinReportBrowser, ASweepIsATableThatSortsAndFigures) {
  write_sweep(folder_ + "/sweep");
  ASSERT_EQ(run({"sweep", "--time-to", "val_loss=2.5"}).status, 0);
  check(folder_ + "/sweep/report.html");
  write_file(folder_ + "/waiting/sweep.csv", std::string(kSweepHead) + "0000,waiting,,,1,8,1,,,\n");
  write_file(folder_ + "/waiting/sweep.yaml", "options: [model.lr, data.batch_size, trainer.devices]\n");
  ASSERT_EQ(run({"waiting"}).status, 0) << "no run has written anything yet";
  const auto result = browse(folder_ + "/waiting/report.html", {"--dump-dom"});
  EXPECT_THAT(result.out, HasSubstr("1 run: 1 waiting."));
  EXPECT_THAT(result.err, Not(HasSubstr("CONSOLE")));
}

TEST_F(LevinReportBrowser, ScreenshotsShowTheChartsInLightAndDark) {
  ASSERT_EQ(run({make_run("a"), make_run("b"), "-o", "page.html"}).status, 0);
  for (const bool dark : {false, true}) {
    const std::string picture = folder_ + (dark ? "/dark.png" : "/light.png");
    const auto result =
        browse(folder_ + "/page.html",
               {"--window-size=1400,1600", "--virtual-time-budget=5000", "--screenshot=" + picture,
                dark ? "--blink-settings=preferredColorScheme=0" : "--blink-settings=preferredColorScheme=1"});
    EXPECT_THAT(result.err, Not(HasSubstr("CONSOLE")));
    const Image image = read_png(picture);
    EXPECT_EQ(image.width, 1400);
    const auto impression = look_at(image);
    EXPECT_GT(impression.coloured, 0.001) << picture;
    EXPECT_LT(impression.coloured, 0.2) << picture;
    if (dark) {
      EXPECT_LT(impression.brightness, 80);
    } else {
      EXPECT_GT(impression.brightness, 200);
    }
  }
}

}  // namespace
}  // namespace levin
