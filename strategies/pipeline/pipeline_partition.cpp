#include <levin/strategies/pipeline/pipeline_partition.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/even_cut.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace levin {
namespace {

/// Sums of whatever a user writes outgrow 64 bits.
using Wide = __int128;

std::string named(std::string_view sequential) {
  return sequential.empty() ? "the sequential" : fmt::format("the sequential `{}`", sequential);
}

std::string counted(Wide count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void check_stages(int64_t units, int64_t stages, std::string_view sequential) {
  LEVIN_CHECK(stages >= 1, fmt::format("a pipeline of {} stages", stages));
  if (stages > units)
    throw ConfigError(
        fmt::format("{} for the {} of {}; every stage needs at least one; hint: fewer devices, fewer "
                    "stages on each, or a sequential of more, smaller units",
                    counted(stages, "stage"), counted(units, "unit"), named(sequential)));
}

/// In nanoseconds, elements or bytes: whole numbers, so that equal costs compare equal however they are added up.
int64_t cost_of(const ChainUnit& unit, BalanceBy by) {
  constexpr double kMostSeconds = 1e9;
  switch (by) {
    case BalanceBy::kTime:
      LEVIN_CHECK(unit.seconds >= 0 && unit.seconds < kMostSeconds,
                  fmt::format("unit {} took {} seconds", unit.name, unit.seconds));
      return std::llround(unit.seconds * 1e9);
    case BalanceBy::kParameters:
      LEVIN_CHECK(unit.parameters >= 0, fmt::format("unit {} has {} parameters", unit.name, unit.parameters));
      return unit.parameters;
    case BalanceBy::kMemory:
      LEVIN_CHECK(unit.bytes >= 0, fmt::format("unit {} takes {} bytes", unit.name, unit.bytes));
      return unit.bytes;
  }
  throw InternalError("unknown kind of balance");
}

std::vector<int64_t> costs_of(const std::vector<ChainUnit>& units, BalanceBy by) {
  std::vector<int64_t> costs;
  for (const ChainUnit& unit : units) costs.push_back(cost_of(unit, by));
  return costs;
}

std::vector<int64_t> sums_of_stages(const std::vector<int64_t>& values, const std::vector<int64_t>& balance) {
  std::vector<int64_t> sums;
  auto begin = values.begin();
  for (const int64_t count : balance) {
    sums.push_back(std::accumulate(begin, begin + count, int64_t{0}));
    begin += count;
  }
  return sums;
}

/// 1234567 as 1,234,567.
std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  for (size_t left = digits.size(); left > 3; left -= 3) digits.insert(left - 3, ",");
  return digits;
}

const char* word_for(BalanceBy by) {
  switch (by) {
    case BalanceBy::kTime:
      return "time";
    case BalanceBy::kParameters:
      return "parameters";
    case BalanceBy::kMemory:
      return "memory";
  }
  throw InternalError("unknown kind of balance");
}

std::string label(const ChainUnit& unit) { return unit.type.empty() ? unit.name : unit.name + " " + unit.type; }

std::string units_text(const std::vector<ChainUnit>& units, size_t begin, int64_t count) {
  if (count == 1) return label(units[begin]);
  return fmt::format("{} - {} ({})", label(units[begin]), label(units[begin + static_cast<size_t>(count) - 1]),
                     counted(count, "unit"));
}

/// Columns as wide as their widest cell, with a rule below the first row.
class TextTable {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string to_text(const std::vector<bool>& is_number) const {
    std::vector<size_t> widths(is_number.size(), 0);
    for (const auto& row : rows_)
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string text;
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i)
        line += (i == 0 ? "  " : " | ") +
                (is_number[i] ? fmt::format("{:>{}}", row[i], widths[i]) : fmt::format("{:<{}}", row[i], widths[i]));
      text += line + "\n";
      if (&row == &rows_.front()) text += std::string(line.size(), '-') + "\n";
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace

void check_balance(const std::vector<int64_t>& balance, int64_t units, int64_t stages, std::string_view sequential) {
  const auto entries = static_cast<int64_t>(balance.size());
  const std::string written = fmt::format("balance [{}]", fmt::join(balance, ", "));
  constexpr const char* kHint = "hint: `balance: auto` cuts by itself";
  if (entries != stages)
    throw ConfigError(fmt::format("{} has {}; the pipeline has {}; hint: one number a stage, or `balance: auto`",
                                  written, counted(entries, "stage"), counted(stages, "stage")));
  check_stages(units, stages, sequential);
  for (size_t stage = 0; stage < balance.size(); ++stage)
    if (balance[stage] < 1)
      throw ConfigError(
          fmt::format("{} gives stage {} (the first is 0) {} of the {} of {}; every stage needs at least "
                      "one; {}",
                      written, stage, balance[stage], counted(units, "unit"), named(sequential), kHint));
  const Wide sum = std::accumulate(balance.begin(), balance.end(), Wide{0});
  if (sum != units)
    throw ConfigError(
        fmt::format("{} has {}; {} has {}; {}", written, counted(sum, "unit"), named(sequential), units, kHint));
}

std::vector<int64_t> automatic_balance(const std::vector<ChainUnit>& units, int64_t stages, BalanceBy by,
                                       std::string_view sequential) {
  check_stages(static_cast<int64_t>(units.size()), stages, sequential);
  return even_cut(costs_of(units, by), stages);
}

std::string partition_table(const std::vector<ChainUnit>& units, const std::vector<int64_t>& balance, BalanceBy by,
                            const std::vector<std::string>& places, double expected_bubble) {
  LEVIN_CHECK(places.size() == balance.size(), fmt::format("{} places for {} stages", places.size(), balance.size()));
  const std::vector<int64_t> costs = sums_of_stages(costs_of(units, by), balance);
  const std::vector<int64_t> parameters = sums_of_stages(costs_of(units, BalanceBy::kParameters), balance);
  const int64_t whole = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  const bool has_cost_column = by != BalanceBy::kParameters;

  TextTable table;
  std::vector<bool> is_number = {true, false, false, true, true};
  std::vector<std::string> header = {"stage", "runs on", "units", "parameters", "share"};
  if (has_cost_column) {
    header.insert(header.end() - 1, by == BalanceBy::kTime ? "time (ms)" : "memory (MiB)");
    is_number.push_back(true);
  }
  table.add(std::move(header));
  size_t begin = 0;
  for (size_t stage = 0; stage < balance.size(); ++stage) {
    const auto cost = static_cast<double>(costs[stage]);
    std::vector<std::string> row = {std::to_string(stage), places[stage], units_text(units, begin, balance[stage]),
                                    with_commas(parameters[stage])};
    if (has_cost_column)
      row.push_back(by == BalanceBy::kTime ? fmt::format("{:.2f}", cost / 1e6) : fmt::format("{:.1f}", cost / 0x1p20));
    row.push_back(whole == 0 ? "-" : fmt::format("{:.1f} %", 100 * cost / static_cast<double>(whole)));
    table.add(std::move(row));
    begin += static_cast<size_t>(balance[stage]);
  }
  std::string evenness = fmt::format("imbalance unknown (no {} to compare)", word_for(by));
  if (whole > 0) {
    const double mean = static_cast<double>(whole) / static_cast<double>(costs.size());
    const auto largest = static_cast<double>(*std::max_element(costs.begin(), costs.end()));
    evenness = fmt::format("imbalance {:.2f} (largest / mean {})", largest / mean, word_for(by));
  }
  return table.to_text(is_number) + fmt::format("  {}; expected bubble {:.1f} %\n", evenness, 100 * expected_bubble);
}

}  // namespace levin
