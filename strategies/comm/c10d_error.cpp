#include <levin/strategies/comm/c10d_error.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <string_view>

namespace levin {
namespace {

// Gloo leads its messages with "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] ".
std::string_view without_source_place(std::string_view text) {
  if (!text.starts_with('[')) return text;
  const size_t end = text.find("] ");
  if (end == std::string_view::npos) return text;
  const std::string_view place = text.substr(0, end);
  const bool is_place = place.find(".cc:") != std::string_view::npos || place.find(".h:") != std::string_view::npos;
  return is_place ? text.substr(end + 2) : text;
}

}  // namespace

std::string c10d_message(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string_view text = c10_error ? c10_error->what_without_backtrace() : error.what();
  text = without_source_place(text);
  // An error that was made from another one carries the trace of the first in its text.
  text = text.substr(0, text.find("Exception raised from"));
  text = text.substr(0, text.find_last_not_of(" .\n") + 1);
  return std::string(text);
}

bool is_timeout(const std::exception& error) {
  // Gloo throws its time-outs as it throws broken connections: the words are all there is.
  const std::string text = error.what();
  for (const char* words : {"imed out", "imeout", "ime out"})
    if (text.find(words) != std::string::npos) return true;
  return false;
}

std::string format_seconds(std::chrono::milliseconds duration) {
  return fmt::format("{:g} s", static_cast<double>(duration.count()) / 1000);
}

}  // namespace levin
