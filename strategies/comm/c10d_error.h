#pragma once

#include <chrono>
#include <exception>
#include <string>

namespace levin {

/// Returns the message of an error of c10d or Gloo, without LibTorch's C++ stack trace and the place in Gloo's sources.
std::string c10d_message(const std::exception& error);

/// Whether the error says that a time limit passed: for the words of a message only, as its own words are asked.
bool is_timeout(const std::exception& error);

/// Formats a duration: "5 s", "0.25 s".
std::string format_seconds(std::chrono::milliseconds duration);

}  // namespace levin
