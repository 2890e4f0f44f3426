#include <levin/core/base/log.h>

#include <levin/core/base/mutex.h>
#include <levin/core/base/quiet_scope.h>
#include <levin/core/base/sink_scope.h>
#include <levin/core/base/utf8.h>

#include <atomic>
#include <cstdio>
#include <set>

namespace levin::log {
namespace {

struct Output {
  Mutex mutex;
  std::function<void(const std::string&)> sink LEVIN_GUARDED_BY(mutex);
  std::set<std::string, std::less<>> printed_once LEVIN_GUARDED_BY(mutex);
};

Output& output() {
  static Output* instance = new Output;  // outlives every static object that may still log
  return *instance;
}

constexpr int64_t kUnset = -1;
thread_local int64_t thread_rank = kUnset;
thread_local int64_t thread_world_size = 1;
std::atomic<int64_t> process_rank{0};
std::atomic<int64_t> process_world_size{1};

int64_t current_rank() { return thread_rank != kUnset ? thread_rank : process_rank.load(std::memory_order_relaxed); }
int64_t world_size() {
  return thread_rank != kUnset ? thread_world_size : process_world_size.load(std::memory_order_relaxed);
}

std::string led(std::string_view message) {
  const std::string head = world_size() == 1 ? "[levin] " : "[levin rank " + std::to_string(current_rank()) + "] ";
  return head + std::string(message);
}

void write(const std::string& text) {
  const std::string line = printable_text(text);
  const MutexLock lock(output().mutex);
  if (SinkScope::show(line, output().sink)) return;
  if (output().sink) {
    output().sink(line);
    return;
  }
  std::fputs((line + "\n").c_str(), stderr);
}

bool first_time(std::string_view message) {
  const MutexLock lock(output().mutex);
  return output().printed_once.emplace(message).second;
}

}  // namespace

void info(std::string_view message) {
  if (!QuietScope::is_quiet()) write(led(message));
}

void warning(std::string_view message) { write(led("warning: " + std::string(message))); }

void warning_once(std::string_view message) {
  if (first_time(message)) warning(message);
}

void info_once(std::string_view message) {
  if (!QuietScope::is_quiet() && first_time(message)) info(message);
}

void rank_zero_info(std::string_view message) {
  if (current_rank() == 0 && !QuietScope::is_quiet()) write("[levin] " + std::string(message));
}

void rank_zero_warning(std::string_view message) {
  if (current_rank() == 0) write("[levin] warning: " + std::string(message));
}

void rank_zero_warning_once(std::string_view message) {
  if (current_rank() == 0 && first_time(message)) rank_zero_warning(message);
}

void rank_zero_info_once(std::string_view message) {
  if (current_rank() == 0 && !QuietScope::is_quiet() && first_time(message)) rank_zero_info(message);
}

int64_t rank() { return current_rank(); }

RankScope::RankScope(int64_t rank, int64_t world_size)
    : former_rank_(thread_rank), former_world_size_(thread_world_size) {
  thread_rank = rank;
  thread_world_size = world_size;
}

RankScope::~RankScope() {
  thread_rank = former_rank_;
  thread_world_size = former_world_size_;
}

void set_process_rank(int64_t rank, int64_t world_size) {
  process_rank.store(rank, std::memory_order_relaxed);
  process_world_size.store(world_size, std::memory_order_relaxed);
}

void set_sink(std::function<void(const std::string& line)> sink) {
  const MutexLock lock(output().mutex);
  output().sink = std::move(sink);
}

}  // namespace levin::log
