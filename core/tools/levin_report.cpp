// levin-report: writes a page that shows what one or several runs did.

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/tools/report/page.h>
#include <levin/core/tools/report/run_folder.h>
#include <levin/core/tools/tool_main.h>

#include <boost/program_options.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

namespace fs = std::filesystem;
namespace options = boost::program_options;

constexpr int kSuccess = 0;

constexpr const char* kUsage =
    "Usage: levin-report RUN_DIR [RUN_DIR...] [--output FILE]\n"
    "\n"
    "Writes an HTML page with the curves, the use of the hardware, the configuration and findings of a run, or of "
    "several\n"
    "runs laid over each other. RUN_DIR is a folder that a run writes to, such as levin_logs/version_0; a run that "
    "still\n"
    "trains may be looked at. The page needs no network and no other file. Status 2: an error.\n";

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

/// Through a file beside it, so that a browser never sees half a page.
void write(const std::string& path, const std::string& page) {
  auto& files = levin::FileSystem::current();
  const std::string temporary = path + ".tmp";
  try {
    auto file = files.create(temporary);
    file->append(page);
    file->close();
    files.rename(temporary, path);
  } catch (const levin::Error&) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

int run(int argc, char** argv) {
  options::options_description visible("Options");
  visible.add_options()("help,h", "print this help")(
      "output,o", options::value<std::string>(),
      "the page; RUN_DIR/report.html for one run and report.html for several, when not given. A page that is there is "
      "replaced, any other file is not");
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

  std::vector<levin::report::RunFolder> runs;
  for (const auto& folder : folders) {
    runs.push_back(levin::report::read_run_folder(folder));
    for (const auto& note : runs.back().notes) std::cerr << folder << ": " << note << "\n";
  }

  std::string output = folders.size() == 1 ? (fs::path(folders.front()) / "report.html").string() : "report.html";
  if (parsed.count("output") > 0) output = parsed["output"].as<std::string>();
  check_output(output);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string page = levin::report::make_page(
      runs, {.folder = fs::absolute(output).parent_path().string(), .now = std::chrono::duration<double>(now).count()});
  write(output, page);

  size_t metrics = 0;
  for (const auto& run : runs) metrics += run.metrics.all().size();
  std::printf("%s: %zu run%s, %zu metrics, %.1f MB\n", output.c_str(), runs.size(), runs.size() == 1 ? "" : "s",
              metrics, static_cast<double>(page.size()) / 1e6);
  return kSuccess;
}

}  // namespace

int main(int argc, char** argv) { return levin::tool_main("report", run, argc, argv); }
