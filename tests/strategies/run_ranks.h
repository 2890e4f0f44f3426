#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>

namespace c10d {
class Store;
}

namespace levin::testing {

enum class RankKind { kThreads, kProcesses };

/// What one rank does; `store` is common to all of them.
using RankMain = std::function<void(int64_t rank, const c10::intrusive_ptr<c10d::Store>& store)>;

/// Runs ranks as threads of this process, or as forked processes in which a fresh thread runs them, and waits for all.
/// What a rank throws, expectations that fail in it and a process that does not end are failures of the calling test.
void run_ranks(RankKind kind, int64_t count, const RankMain& rank_main);

/// Calls `attempt` and returns the message of what it throws; a test failure and "" when it throws nothing.
std::string message_of(const std::function<void()>& attempt);

/// That `part` is in a message, and that the message is without c10's list of functions.
void expect_contains(const std::string& message, const std::string& part);

}  // namespace levin::testing
