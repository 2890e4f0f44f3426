#include <levin/loggers/console_logger.h>

#include <levin/core/base/log.h>
#include <levin/loggers/logger_place.h>

#include <fmt/format.h>

#include <cmath>
#include <string_view>

namespace levin {
namespace {

/// `text` on one line.
std::string in_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n')
      line += "\\n";
    else if (static_cast<unsigned char>(c) >= ' ')  // nothing that moves the cursor
      line += c;
  }
  return line;
}

}  // namespace

void ConsoleLoggerOptions::describe(Schema<ConsoleLoggerOptions>& schema) {
  schema.field("digits", &ConsoleLoggerOptions::digits, "significant digits of a value").at_least(1).at_most(17);
  describe_prefix(schema);
}

void ConsoleLogger::log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) {
  std::string line = fmt::format("step {}, epoch {}:", step, epoch);
  const char* separator = " ";
  for (const auto& [name, value] : values) {
    line += separator + in_one_line(name) + ' ';
    line += std::isnan(value) ? "nan" : fmt::format("{:.{}g}", value, options_.digits);
    separator = ", ";
  }
  log::info(line);
}

void ConsoleLogger::log_text(const std::string& name, const std::string& text, int64_t step) {
  log::info(fmt::format("step {}: {}: {}", step, in_one_line(name), in_one_line(text)));
}

}  // namespace levin
