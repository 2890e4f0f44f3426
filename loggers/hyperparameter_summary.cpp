#include <levin/loggers/hyperparameter_summary.h>

#include <levin/loggers/config_leaves.h>

#include <protozero/pbf_writer.hpp>

#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <string_view>

namespace levin::tensorboard {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '\n':
        result += "<br>";
        break;
      case '\\':
      case '`':
      case '*':
      case '_':
      case '|':
      case '[':
      case ']':
        result += '\\';
        [[fallthrough]];
      default:
        result += c;
    }
  }
  return result;
}

std::optional<double> as_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

constexpr protozero::pbf_tag_type kSessionStart = 3, kSessionEnd = 4;  // of HParamsPluginData

}  // namespace

std::string hyperparameter_table(const Config& config) {
  std::string table = "| name | value |\n| --- | --- |\n";
  for_each_leaf(config, [&](const std::string& path, const Config& value) {
    table += "| " + escaped(path) + " | " + escaped(leaf_text(value)) + " |\n";
  });
  return table;
}

std::string session_start(const Config& config) {
  constexpr protozero::pbf_tag_type kHparams = 1, kStartTime = 5;         // of SessionStartInfo
  constexpr protozero::pbf_tag_type kKey = 1, kValue = 2;                 // of a map's entry
  constexpr protozero::pbf_tag_type kNumber = 2, kString = 3, kBool = 4;  // of google.protobuf.Value
  std::string data;
  protozero::pbf_writer plugin(data);
  protozero::pbf_writer session(plugin, kSessionStart);
  for_each_leaf(config, [&](const std::string& path, const Config& value) {
    if (value.is_null()) return;
    const std::string text = leaf_text(value);
    const bool plain = value.is_scalar() && !value.quoted();
    protozero::pbf_writer entry(session, kHparams);
    entry.add_string(kKey, path);
    protozero::pbf_writer message(entry, kValue);
    if (plain && (text == "true" || text == "false")) {
      message.add_bool(kBool, text == "true");
    } else if (const auto number = plain ? as_number(text) : std::nullopt) {
      message.add_double(kNumber, *number);
    } else {
      message.add_string(kString, text);
    }
  });
  session.add_double(kStartTime, now());
  session.commit();
  return data;
}

std::string session_end(TrainerStatus status) {
  constexpr protozero::pbf_tag_type kStatus = 1, kEndTime = 2;  // of SessionEndInfo
  constexpr int32_t kSuccess = 1, kFailure = 2;
  std::string data;
  protozero::pbf_writer plugin(data);
  protozero::pbf_writer session(plugin, kSessionEnd);
  session.add_enum(kStatus, status == TrainerStatus::kFinished ? kSuccess : kFailure);
  session.add_double(kEndTime, now());
  session.commit();
  return data;
}

}  // namespace levin::tensorboard
