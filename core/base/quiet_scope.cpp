#include <levin/core/base/quiet_scope.h>

#include <utility>

namespace levin::log {
namespace {

thread_local bool thread_is_quiet = false;

}  // namespace

QuietScope::QuietScope() : former_(std::exchange(thread_is_quiet, true)) {}
QuietScope::~QuietScope() { thread_is_quiet = former_; }
bool QuietScope::is_quiet() { return thread_is_quiet; }

}  // namespace levin::log
