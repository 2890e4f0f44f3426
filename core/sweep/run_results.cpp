#include <levin/core/sweep/run_results.h>

#include <levin/core/base/csv.h>
#include <levin/core/base/file_system.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace levin::sweep {

Metrics last_metrics(const std::string& run_folder, std::optional<int64_t> epochs) {
  const std::string path = run_folder + "/metrics.csv";
  if (!FileSystem::current().exists(path)) return {};
  const auto rows = parse_csv(FileSystem::current().read_file(path));
  if (rows.empty()) return {};
  const CsvRow& header = rows.front();
  const auto epoch_column = static_cast<size_t>(std::find(header.begin(), header.end(), "epoch") - header.begin());
  std::vector<std::optional<double>> last(header.size());
  for (size_t i = 1; i < rows.size(); ++i) {
    const CsvRow& row = rows[i];
    if (row.size() != header.size()) continue;
    if (epochs && epoch_column < row.size() &&
        std::strtod(row[epoch_column].c_str(), nullptr) >= static_cast<double>(*epochs))
      continue;
    for (size_t column = 0; column < row.size(); ++column)
      if (!row[column].empty()) last[column] = std::strtod(row[column].c_str(), nullptr);
  }
  Metrics metrics;
  for (size_t column = 0; column < header.size(); ++column)
    if (last[column] && header[column] != "epoch" && header[column] != "step")
      metrics.emplace_back(header[column], *last[column]);
  return metrics;
}

std::string last_error(const std::string& run_folder) {
  constexpr std::streamoff kEnd = 1 << 16;
  std::ifstream file(run_folder + "/output.txt", std::ios::binary | std::ios::ate);
  if (!file) return "";
  file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - kEnd));
  constexpr std::string_view kLead = "error: ";
  std::string error;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kLead)) error = line.substr(kLead.size());
  return error;
}

}  // namespace levin::sweep
