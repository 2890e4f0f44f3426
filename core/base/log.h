#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

/// Messages to the user, on standard error, led by "[levin]", or by "[levin rank 1]" where there are several ranks.
namespace levin::log {

void info(std::string_view message);
void warning(std::string_view message);
/// Prints a message once in the life of the process.
void warning_once(std::string_view message);
void info_once(std::string_view message);

// The same on rank 0 alone, for messages that all ranks would print alike.
void rank_zero_info(std::string_view message);
void rank_zero_warning(std::string_view message);
void rank_zero_warning_once(std::string_view message);
void rank_zero_info_once(std::string_view message);

/// Sets the rank of the calling thread during the scope's lifetime. Threads without a scope (those of data loaders)
/// count as the rank that was set last outside a scope (set_process_rank), 0 of 1 at first.
class RankScope {
 public:
  RankScope(int64_t rank, int64_t world_size);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  int64_t former_rank_;
  int64_t former_world_size_;
};
/// Returns the calling thread's rank, which leads its messages.
int64_t rank();
/// Sets the rank of the process, for its threads outside a RankScope.
void set_process_rank(int64_t rank, int64_t world_size);

/// Sends messages to `sink` instead, such as a progress bar that must redraw itself; nullptr restores standard error.
void set_sink(std::function<void(const std::string& line)> sink);

}  // namespace levin::log
