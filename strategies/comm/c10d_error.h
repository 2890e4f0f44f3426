#pragma once

#include <chrono>
#include <exception>
#include <string>

namespace levin {

/// What an error of c10d or Gloo says, without LibTorch's C++ stack trace and without the place in Gloo's sources.
std::string c10d_message(const std::exception& error);

/// Whether the error says that a time limit passed: for the words of a message only, as its own words are asked.
bool is_timeout(const std::exception& error);

/// "5 s", "0.25 s"
std::string format_seconds(std::chrono::milliseconds duration);

}  // namespace levin
