#include <levin/core/base/debug_checks.h>

#include <atomic>
#include <cstdint>

namespace levin {
namespace {

std::atomic<int64_t> living{0};

}  // namespace

DebugChecks::DebugChecks() { living.fetch_add(1, std::memory_order_relaxed); }
DebugChecks::~DebugChecks() { living.fetch_sub(1, std::memory_order_relaxed); }

bool DebugChecks::are_on() { return living.load(std::memory_order_relaxed) > 0; }

}  // namespace levin
