#include <levin/callbacks/checkpoint_name.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace levin {
namespace {

constexpr const char* kEpoch = "epoch";
constexpr const char* kStep = "step";
constexpr int64_t kWidest = 99;
/// File systems take 255 bytes; what is added while a checkpoint is written, and for a version, has its place too.
constexpr size_t kLongest = 200;

[[noreturn]] void refuse(const std::string& option, const std::string& pattern, const std::string& problem) {
  throw ConfigError(
      fmt::format("{} must be a name with values in braces; got '{}': {}; valid: {{epoch}}, {{step:06d}}, "
                  "{{val_loss:.2f}}",
                  option, pattern, problem));
}

/// Whether `spec`, what is behind the colon, asks for more digits or spaces than a name should have.
bool is_too_wide(std::string_view spec) {
  int64_t number = 0;
  for (const char c : spec) {
    number = c >= '0' && c <= '9' ? number * 10 + (c - '0') : 0;
    if (number > kWidest) return true;
  }
  return false;
}

std::vector<std::string> known_names(const std::map<std::string, double>& metrics) {
  std::vector<std::string> names{kEpoch, kStep};
  for (const auto& [name, value] : metrics)
    if (name != kEpoch && name != kStep) names.push_back(name);
  return names;
}

}  // namespace

CheckpointName::CheckpointName(const std::string& pattern, bool insert_names, const std::string& option)
    : option_(option) {
  if (pattern.empty()) refuse(option, pattern, "it is empty");
  if (pattern.front() == '.') refuse(option, pattern, "it begins with a dot, which marks temporary folders");
  size_t position = 0;
  while (position < pattern.size()) {
    const size_t open = pattern.find('{', position);
    Part part{.text = pattern.substr(position, open == std::string::npos ? open : open - position)};
    if (part.text.find('}') != std::string::npos) refuse(option, pattern, "a closing brace has no opening one");
    if (part.text.find('/') != std::string::npos) refuse(option, pattern, "it has a slash; dirpath is for folders");
    position = pattern.size();
    if (open != std::string::npos) {
      const size_t close = pattern.find('}', open);
      if (close == std::string::npos) refuse(option, pattern, "an opening brace has no closing one");
      const std::string inside = pattern.substr(open + 1, close - open - 1);
      const size_t colon = inside.find(':');
      part.value = inside.substr(0, colon);
      part.format = "{" + (colon == std::string::npos ? "" : inside.substr(colon)) + "}";
      if (part.value.empty()) refuse(option, pattern, "braces without a name");
      if (is_too_wide(part.format)) refuse(option, pattern, fmt::format("a width or precision beyond {}", kWidest));
      if (insert_names) part.text += part.value + "=";
      position = close + 1;
    }
    parts_.push_back(std::move(part));
  }
  try {
    std::map<std::string, double> sample;
    for (const auto& part : parts_) sample[part.value] = 0.5;
    if (const size_t length = render(0, 0, sample).size(); length > kLongest)
      refuse(option, pattern, fmt::format("it makes names of {} bytes; valid: at most {}", length, kLongest));
  } catch (const fmt::format_error& error) {
    refuse(option, pattern, error.what());
  }
}

std::string CheckpointName::render(int64_t epoch, int64_t step, const std::map<std::string, double>& metrics) const {
  std::string name;
  for (const auto& part : parts_) {
    name += part.text;
    if (part.value.empty()) continue;
    const auto metric = metrics.find(part.value);
    if (part.value == kEpoch || part.value == kStep) {
      const int64_t count = part.value == kEpoch ? epoch : step;
      name += fmt::format(fmt::runtime(part.format), count);
    } else if (metric != metrics.end()) {
      name += fmt::format(fmt::runtime(part.format), metric->second);
    } else {
      if (missed_.insert(part.value).second)
        log::rank_zero_warning(
            fmt::format("{} names the metric '{}', which was not logged so far: 'none' stands in its "
                        "place{}",
                        option_, part.value, valid_names_hint(part.value, known_names(metrics))));
      name += "none";
    }
  }
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

}  // namespace levin
