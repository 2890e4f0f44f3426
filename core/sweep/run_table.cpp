#include <levin/core/sweep/run_table.h>

#include <levin/core/base/csv.h>
#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

namespace levin::sweep {
namespace {

constexpr std::array<std::pair<RunStatus, const char*>, 5> kStatusNames = {{{RunStatus::kWaiting, "waiting"},
                                                                            {RunStatus::kRunning, "running"},
                                                                            {RunStatus::kStoppedEarly, "stopped_early"},
                                                                            {RunStatus::kFinished, "finished"},
                                                                            {RunStatus::kFailed, "failed"}}};

const char* status_name(RunStatus status) {
  return std::find_if(kStatusNames.begin(), kStatusNames.end(), [&](const auto& pair) { return pair.first == status; })
      ->second;
}

std::string short_number(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.4g}", value); }

std::string option_text(const Run& run, const std::string& option) {
  const Setting* setting = find_setting(run.settings, option);
  return setting != nullptr ? value_text(setting->value) : "";
}

std::string aligned(const std::vector<CsvRow>& rows, size_t left_columns) {
  std::vector<size_t> widths(rows.front().size());
  for (const CsvRow& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const CsvRow& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += (i == 0 ? "" : "  ") +
              (i < left_columns ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("{:>{}}", row[i], widths[i]));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

/// "best on average  model.lr=0.001  val_loss 0.31 over 3 seeds"; empty where runs are not repeated.
std::string best_average(const RunTable& table) {
  struct Group {
    Settings settings;
    double sum = 0;
    int64_t count = 0;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Group> groups;
  std::map<size_t, size_t> places;
  for (const Run& run : table.runs) {
    const auto value = run.metric(table.monitor);
    if (run.status != RunStatus::kFinished || !value) continue;
    const auto [place, is_new] = places.try_emplace(run.combination, groups.size());
    if (is_new) groups.push_back({.settings = without_seed(run.settings)});
    groups[place->second].sum += *value;
    ++groups[place->second].count;
  }
  std::erase_if(groups, [](const Group& group) { return group.count < 2 || !std::isfinite(group.sum); });
  if (groups.empty()) return "";
  const auto& best = *std::min_element(groups.begin(), groups.end(), [&](const Group& a, const Group& b) {
    return table.mode == MonitorMode::kMax ? a.mean() > b.mean() : a.mean() < b.mean();
  });
  return fmt::format("best on average  {}  {} {} over {} seeds\n", describe(best.settings), table.monitor,
                     short_number(best.mean()), best.count);
}

}  // namespace

std::string Run::name() const { return fmt::format("{:04}", number); }

std::optional<double> Run::metric(const std::string& wanted) const {
  for (const auto& [name, value] : metrics)
    if (name == wanted) return value;
  return {};
}

std::string RunTable::to_csv() const {
  std::vector<std::string> metrics;
  for (const Run& run : runs)
    for (const auto& [name, value] : run.metrics)
      if (std::find(metrics.begin(), metrics.end(), name) == metrics.end()) metrics.push_back(name);
  CsvRow header = {"run", "status", "rung", "seconds"};
  header.insert(header.end(), options.begin(), options.end());
  header.insert(header.end(), metrics.begin(), metrics.end());
  header.emplace_back("error");
  std::string text = csv_line(header);
  for (const Run& run : runs) {
    CsvRow row = {run.name(), status_name(run.status), has_rungs ? std::to_string(run.rung) : "",
                  fmt::format("{:.3f}", run.seconds)};
    for (const std::string& option : options) row.push_back(option_text(run, option));
    for (const std::string& metric : metrics) {
      const auto value = run.metric(metric);
      row.push_back(!value ? "" : std::isnan(*value) ? "nan" : fmt::format("{}", *value));
    }
    row.push_back(run.error);
    text += csv_line(row);
  }
  return text;
}

void RunTable::restore(const std::string& csv) {
  const auto rows = parse_csv(csv);
  if (rows.empty()) return;
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::find(rows[0].begin(), rows[0].end(), name) - rows[0].begin());
  };
  // The last one: a metric may have its name.
  const auto last_column = [&](const char* name) {
    const auto found = std::find(rows[0].rbegin(), rows[0].rend(), name);
    return found == rows[0].rend() ? rows[0].size() : static_cast<size_t>(rows[0].rend() - found - 1);
  };
  const size_t width = rows[0].size();
  const size_t error = last_column("error");
  if (error >= width || column("seconds") >= width) return;
  for (size_t i = 1; i < rows.size(); ++i) {
    const CsvRow& row = rows[i];
    const auto run = std::find_if(runs.begin(), runs.end(), [&](const Run& each) { return each.name() == row[0]; });
    if (row.size() != width || run == runs.end()) continue;
    for (const auto& [status, name] : kStatusNames)
      if (row[1] == name) run->status = status;
    run->rung = static_cast<size_t>(std::strtoll(row[2].c_str(), nullptr, 10));
    run->seconds = std::strtod(row[3].c_str(), nullptr);
    run->error = row[error];
  }
}

const Run* RunTable::best() const {
  for (const RunStatus status : {RunStatus::kFinished, RunStatus::kStoppedEarly}) {
    const Run* found = nullptr;
    for (const Run& run : runs) {
      const auto value = run.metric(monitor);
      if (run.status != status || !value || !std::isfinite(*value)) continue;
      const auto former = found != nullptr ? found->metric(monitor) : std::nullopt;
      if (!former || (mode == MonitorMode::kMax ? *value > *former : *value < *former)) found = &run;
    }
    if (found != nullptr) return found;
  }
  return nullptr;
}

std::string RunTable::why_no_best() const {
  if (best() != nullptr) return "";
  std::vector<std::string> names;
  int64_t with_value = 0;
  int64_t without_number = 0;
  for (const Run& run : runs) {
    if (const auto value = run.metric(monitor)) {
      ++with_value;
      without_number += std::isfinite(*value) ? 0 : 1;
    }
    for (const auto& [name, value] : run.metrics)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "";
  if (with_value == 0)
    return fmt::format("no run has a value of sweep.monitor, {}{}", monitor, valid_names_hint(monitor, names));
  if (without_number < with_value)
    return fmt::format("no run that finished has a number for sweep.monitor, {}", monitor);
  return fmt::format(
      "sweep.monitor, {}, is NaN or infinite in every run that has a value of it ({}); hint: smaller learning "
      "rates, or the callback nan_monitor, which says where a NaN comes from",
      monitor, counted(without_number, "run"));
}

std::string RunTable::to_text(const std::string& folder) const {
  const Run* best_run = best();
  CsvRow header = {"", "run", "status"};
  header.insert(header.end(), options.begin(), options.end());
  if (has_rungs) header.emplace_back("rung");
  header.push_back(monitor);
  header.emplace_back("seconds");
  std::vector<CsvRow> rows = {header};
  for (const Run& run : runs) {
    CsvRow row = {&run == best_run ? "*" : "", run.name(), status_name(run.status)};
    for (const std::string& option : options) row.push_back(option_text(run, option));
    if (has_rungs) row.push_back(std::to_string(run.rung));
    const auto value = run.metric(monitor);
    row.push_back(value ? short_number(*value) : "");
    row.push_back(fmt::format("{:.1f}", run.seconds));
    rows.push_back(std::move(row));
  }
  std::string text = aligned(rows, 3);
  for (const Run& run : runs)
    if (run.status == RunStatus::kFailed)
      text += fmt::format("failed  {}  {}; hint: {}/{}/output.txt\n", run.name(), run.error, folder, run.name());
  if (best_run != nullptr)
    text += fmt::format("best    {}  {} {}  {}\n", best_run->name(), monitor, short_number(*best_run->metric(monitor)),
                        describe(best_run->settings));
  text += best_average(*this);
  return text + fmt::format("table   {}/sweep.csv\n", folder);
}

}  // namespace levin::sweep
