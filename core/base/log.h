#pragma once

#include <functional>
#include <string>
#include <string_view>

/// Messages to the user, on standard error, led by "[levin]" (and the rank when there are several).
namespace levin::log {

void info(std::string_view message);
void warning(std::string_view message);
/// Prints a message once in the life of the process.
void warning_once(std::string_view message);
void info_once(std::string_view message);

/// Sends messages elsewhere: a progress bar that must redraw itself, a test. nullptr restores standard error.
void set_sink(std::function<void(const std::string& line)> sink);

}  // namespace levin::log
