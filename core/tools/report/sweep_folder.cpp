#include <levin/core/tools/report/sweep_folder.h>

#include <levin/core/base/config.h>
#include <levin/core/base/csv.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace levin::report {
namespace {

namespace fs = std::filesystem;

const std::array<std::string, 4> kFirstColumns{"run", "status", "rung", "seconds"};
constexpr std::string_view kLastColumn = "error";

double number_or_unknown(const std::string& text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() ? value : kUnknown;
}

std::string scalar_or_empty(const Config& config, const std::string& name) {
  const Config* value = config.find(name);
  return value != nullptr && value->is_scalar() ? value->text() : "";
}

/// The names of the columns between the first ones and the last.
std::vector<std::string> varying_columns(const std::string& path, const std::vector<std::string>& names) {
  const bool is_sweep = names.size() > kFirstColumns.size() && names.back() == kLastColumn &&
                        std::equal(kFirstColumns.begin(), kFirstColumns.end(), names.begin());
  if (!is_sweep)
    throw Error("report",
                fmt::format("{} is not a sweep's table: its columns must be {}, options, metrics, {}; got '{}'", path,
                            join(kFirstColumns), kLastColumn, join(names).substr(0, 200)));
  return {names.begin() + kFirstColumns.size(), names.end() - 1};
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

bool is_sweep_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(path) / "sweep.csv", ignored) &&
         fs::is_regular_file(fs::path(path) / "sweep.yaml", ignored);
}

SweepFolder read_sweep_folder(const std::string& path) {
  SweepFolder sweep{.path = path};
  const Config config = Config::load(path + "/sweep.yaml");
  sweep.monitor = scalar_or_empty(config, "monitor");
  sweep.monitor_is_maximized = scalar_or_empty(config, "mode") == "max";
  if (const Config* options = config.find("options"); options != nullptr && options->is_sequence())
    for (const auto& option : options->items())
      if (option.is_scalar()) sweep.options.push_back(option.text());

  const std::string table = path + "/sweep.csv";
  const std::string content = FileSystem::current().read_file(table);
  std::string_view text = content;
  const auto names = take_csv_row(text);
  const auto columns = varying_columns(table, names);
  if (columns.size() < sweep.options.size() || !std::equal(sweep.options.begin(), sweep.options.end(), columns.begin()))
    throw Error("report", fmt::format("{} and sweep.yaml disagree about what varies: {} should follow 'seconds'", table,
                                      join(sweep.options)));
  const auto num_options = static_cast<std::ptrdiff_t>(sweep.options.size());
  sweep.metrics.assign(columns.begin() + num_options, columns.end());

  size_t damaged = 0;
  while (!text.empty()) {
    const auto cells = take_csv_row(text);
    if (cells.size() != names.size()) {
      ++damaged;
      if (cells.empty()) break;  // the last row has no end
      continue;
    }
    const auto first = cells.begin() + kFirstColumns.size();
    sweep.runs.push_back({.name = cells[0],
                          .status = cells[1],
                          .rung = cells[2],
                          .seconds = number_or_unknown(cells[3]),
                          .options = {first, first + num_options},
                          .metrics = {first + num_options, cells.end() - 1},
                          .error = cells.back(),
                          .folder = {}});
  }
  if (damaged > 0) sweep.notes.push_back(fmt::format("{} rows of sweep.csv were damaged and left out.", damaged));
  return sweep;
}

void add_from_sweep(RunFolder& run, const SweepRun& row) {
  if (run.status == RunStatus::kUnknown) {
    if (row.status == "finished" || row.status == "stopped_early") run.status = RunStatus::kFinished;
    if (row.status == "failed") run.status = RunStatus::kFailed;
    if (row.status == "running" || row.status == "waiting") run.status = RunStatus::kUnfinished;
  }
  if (std::isnan(run.seconds)) run.seconds = row.seconds;
}

std::string sweep_run_label(const SweepFolder& sweep, const SweepRun& run) {
  std::string label;
  for (size_t i = 0; i < sweep.options.size(); ++i) {
    const std::string& name = sweep.options[i];
    const auto shares_last_part = [&](const std::string& other) { return last_part(other) == last_part(name); };
    const bool is_enough = std::count_if(sweep.options.begin(), sweep.options.end(), shares_last_part) == 1;
    label += fmt::format("{}{}={}", label.empty() ? "" : " ", is_enough ? last_part(name) : name, run.options[i]);
  }
  return label;
}

}  // namespace levin::report
