#include <levin/loggers/fault_guard.h>

#include <levin/core/base/log.h>

#include <fmt/format.h>

namespace levin {

void FaultGuard::failed(const Error& error) {
  constexpr std::chrono::seconds kPause(5);
  failing_ = true;
  next_try_ = std::chrono::steady_clock::now() + kPause;
  if (warned_) return;
  warned_ = true;
  log::warning(fmt::format("{}: {}; training goes on, and writing will be tried again", logger_, error.what()));
}

void FaultGuard::report_lost(int64_t count, const std::string& what) const {
  if (count > 0) log::warning(fmt::format("{}: {} {} could not be written and are lost", logger_, count, what));
}

}  // namespace levin
