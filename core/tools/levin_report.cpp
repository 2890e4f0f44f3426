// levin-report: writes a page that shows what one or several runs did.

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/tools/report/page.h>
#include <levin/core/tools/report/run_folder.h>
#include <levin/core/tools/report/sweep_folder.h>
#include <levin/core/tools/report/time_to_target.h>
#include <levin/core/tools/tool_main.h>

#include <boost/program_options.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

namespace fs = std::filesystem;
namespace options = boost::program_options;

constexpr int kSuccess = 0;

constexpr const char* kUsage =
    "Usage: levin-report RUN_DIR [RUN_DIR...] [--time-to METRIC=VALUE...] [--output FILE]\n"
    "       levin-report SWEEP_DIR [--time-to METRIC=VALUE...] [--output FILE]\n"
    "\n"
    "Writes an HTML page with the curves, the use of the hardware, the configuration and findings of a run, or of "
    "several\n"
    "runs laid over each other. RUN_DIR is a folder that a run writes to, such as levin_logs/version_0; a run that "
    "still\n"
    "trains may be looked at. Runs on several numbers of devices get tables and plots of how training time falls. "
    "SWEEP_DIR\n"
    "is the folder of a sweep: its table, parallel coordinates and all its runs. The page needs no network and no "
    "other\n"
    "file. Status 2: an error.\n";

/// What every page begins with, by which a file that may be replaced is known.
constexpr std::string_view kFirstWords = "<!doctype html>\n<!-- levin-report -->";

/// Throws where a page must not be written.
void check_output(const std::string& path) {
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  if (!fs::is_directory(folder))
    throw levin::Error("report", "cannot write " + path + ": there is no folder " + folder.string());
  if (fs::is_directory(path))
    throw levin::Error("report", "cannot write " + path + ": it is a folder; hint: --output takes a file's name");
  if (!fs::exists(path)) return;
  std::ifstream file(path, std::ios::binary);
  std::string beginning(kFirstWords.size(), ' ');
  if (fs::file_size(path) > 0 &&
      (!file.read(beginning.data(), static_cast<std::streamsize>(beginning.size())) || beginning != kFirstWords))
    throw levin::Error("report", "will not replace " + path + ": it is there and is not an HTML page of this tool");
}

/// The runs of a sweep that have written something. Those that have not are only in its table.
std::vector<levin::report::RunFolder> read_runs(levin::report::SweepFolder& sweep) {
  std::vector<levin::report::RunFolder> runs;
  for (auto& run : sweep.runs) {
    const std::string folder = (fs::path(sweep.path) / run.name).string();
    if (!levin::report::is_run_folder(folder)) continue;
    run.folder = runs.size();
    runs.push_back(levin::report::read_run_folder(folder));
    levin::report::add_from_sweep(runs.back(), run);
  }
  return runs;
}

std::vector<levin::report::RunFolder> read_runs(const std::vector<std::string>& folders) {
  std::vector<levin::report::RunFolder> runs;
  for (const auto& folder : folders) {
    if (levin::report::is_sweep_folder(folder))
      throw levin::Error("command line", folder + " is a sweep's folder; hint: give it alone, or some of its runs");
    runs.push_back(levin::report::read_run_folder(folder));
  }
  return runs;
}

/// A target that no run has logged a value of is a slip of the pen.
void check_targets(const std::vector<levin::report::Target>& targets,
                   const std::vector<levin::report::RunFolder>& runs) {
  for (const auto& target : targets) {
    std::set<std::string> names;
    for (const auto& run : runs)
      for (const auto& [name, series] : run.metrics.all()) names.insert(name);
    if (names.contains(target.metric)) continue;
    throw levin::Error("command line", "--time-to: no run has logged " + target.metric + "; valid: " +
                                           levin::join(std::vector<std::string>(names.begin(), names.end())));
  }
}

int run(int argc, char** argv) {
  options::options_description visible("Options");
  visible.add_options()("help,h", "print this help")(
      "output,o", options::value<std::string>(),
      "the page; RUN_DIR/report.html for one run and report.html for several, when not given. A page that is there is "
      "replaced, any other file is not")(
      "time-to", options::value<std::vector<std::string>>()->default_value({}, ""),
      "METRIC=VALUE: also show when each run reached this value, by number of devices; may be given several times");
  options::options_description all;
  all.add(visible).add_options()("runs", options::value<std::vector<std::string>>()->default_value({}, ""));
  options::positional_options_description positions;
  positions.add("runs", -1);
  options::variables_map parsed;
  options::store(options::command_line_parser(argc, argv).options(all).positional(positions).run(), parsed);
  if (parsed.count("help") > 0) {
    std::cout << kUsage << "\n" << visible;
    return kSuccess;
  }

  const auto folders = parsed["runs"].as<std::vector<std::string>>();
  if (folders.empty()) throw levin::Error("command line", "no run given; hint: levin-report levin_logs/version_0");
  for (size_t i = 0; i < folders.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      std::error_code missing;
      if (folders[i] == folders[j] || fs::equivalent(folders[i], folders[j], missing))
        throw levin::Error("command line", "the run " + folders[i] + " is given twice");
    }

  std::vector<levin::report::Target> targets;
  for (const auto& text : parsed["time-to"].as<std::vector<std::string>>())
    targets.push_back(levin::report::parse_target(text));

  std::optional<levin::report::SweepFolder> sweep;
  if (folders.size() == 1 && levin::report::is_sweep_folder(folders.front()))
    sweep = levin::report::read_sweep_folder(folders.front());
  const auto runs = sweep ? read_runs(*sweep) : read_runs(folders);
  for (const auto& run : runs)
    for (const auto& note : run.notes) std::cerr << run.path << ": " << note << "\n";
  check_targets(targets, runs);

  std::string output = folders.size() == 1 ? (fs::path(folders.front()) / "report.html").string() : "report.html";
  if (parsed.count("output") > 0) output = parsed["output"].as<std::string>();
  check_output(output);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string page = levin::report::make_page(runs,
                                                    {.folder = fs::absolute(output).parent_path().string(),
                                                     .now = std::chrono::duration<double>(now).count(),
                                                     .targets = targets},
                                                    sweep ? &*sweep : nullptr);
  levin::FileSystem::current().replace_file(output, page);

  size_t metrics = 0;
  for (const auto& run : runs) metrics += run.metrics.all().size();
  std::printf("%s: %zu run%s, %zu metrics, %.1f MB\n", output.c_str(), runs.size(), runs.size() == 1 ? "" : "s",
              metrics, static_cast<double>(page.size()) / 1e6);
  return kSuccess;
}

}  // namespace

int main(int argc, char** argv) { return levin::tool_main("report", run, argc, argv); }
