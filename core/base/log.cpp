#include <levin/core/base/log.h>

#include <cstdio>
#include <mutex>
#include <set>

namespace levin::log {
namespace {

struct Output {
  std::mutex mutex;
  std::function<void(const std::string&)> sink;
  std::set<std::string, std::less<>> printed_once;
};

Output& output() {
  static Output* instance = new Output;  // outlives every static object that may still log
  return *instance;
}

void write(const std::string& line) {
  const std::lock_guard lock(output().mutex);
  if (output().sink) {
    output().sink(line);
    return;
  }
  std::fputs((line + "\n").c_str(), stderr);
}

bool first_time(std::string_view message) {
  const std::lock_guard lock(output().mutex);
  return output().printed_once.emplace(message).second;
}

}  // namespace

void info(std::string_view message) { write("[levin] " + std::string(message)); }

void warning(std::string_view message) { write("[levin] warning: " + std::string(message)); }

void warning_once(std::string_view message) {
  if (first_time(message)) warning(message);
}

void info_once(std::string_view message) {
  if (first_time(message)) info(message);
}

void set_sink(std::function<void(const std::string& line)> sink) {
  const std::lock_guard lock(output().mutex);
  output().sink = std::move(sink);
}

}  // namespace levin::log
