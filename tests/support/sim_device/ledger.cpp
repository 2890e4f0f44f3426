#include "tests/support/sim_device/ledger.h"

#include <fmt/format.h>

#include <mutex>
#include <numeric>
#include <utility>

namespace levin::testing::sim {
namespace {

std::mutex ledger_mutex;
Report ledger_report;
std::function<void(Wait)> wait_observer;

}  // namespace

std::string name_of(Wait kind) {
  switch (kind) {
    case Wait::kStream:
      return "stream synchronised";
    case Wait::kEvent:
      return "event synchronised";
    case Wait::kDevice:
      return "device synchronised";
    case Wait::kItem:
      return "value read (item)";
    case Wait::kCopyToHost:
      return "copy to the host";
    case Wait::kCopyFromHost:
      return "copy from the host";
    case Wait::kStagedCopy:
      return "copy from memory that is not page-locked";
    case Wait::kShapeFromData:
      return "shape that depends on data";
    case Wait::kCommunicator:
      return "communicator created";
    case Wait::kBarrier:
      return "barrier";
  }
  return "unknown";
}

int64_t Report::total_waits() const {
  return std::accumulate(waits.begin(), waits.end(), int64_t{0},
                         [](int64_t sum, const auto& entry) { return sum + entry.second; });
}

std::string Report::to_string() const {
  std::string text = fmt::format("{} kernels ({} off the thread's current device), {} copies, {} allocations", kernels,
                                 kernels_off_current_device, copies, allocations);
  for (const auto& [kind, count] : waits) text += fmt::format("\n  host wait: {} x{}", name_of(kind), count);
  for (const auto& [fault, count] : faults) text += fmt::format("\n  FAULT: {} x{}", fault, count);
  return text;
}

Ledger& Ledger::instance() {
  static Ledger ledger;
  return ledger;
}

Report Ledger::report() const {
  const std::lock_guard lock(ledger_mutex);
  return ledger_report;
}

void Ledger::reset() {
  const std::lock_guard lock(ledger_mutex);
  ledger_report = {};
}

void Ledger::observe_waits(std::function<void(Wait)> observer) {
  const std::lock_guard lock(ledger_mutex);
  wait_observer = std::move(observer);
}

void Ledger::add_kernel(bool on_current_device) {
  const std::lock_guard lock(ledger_mutex);
  ++ledger_report.kernels;
  if (!on_current_device) ++ledger_report.kernels_off_current_device;
}

void Ledger::add_copy(bool between_devices) {
  const std::lock_guard lock(ledger_mutex);
  ++ledger_report.copies;
  if (between_devices) ++ledger_report.copies_between_devices;
}

void Ledger::add_allocation() {
  const std::lock_guard lock(ledger_mutex);
  ++ledger_report.allocations;
}

void Ledger::add_wait(Wait kind) {
  std::function<void(Wait)> observer;
  {
    const std::lock_guard lock(ledger_mutex);
    ++ledger_report.waits[kind];
    observer = wait_observer;
  }
  if (observer) observer(kind);
}

void Ledger::add_fault(const std::string& description) {
  const std::lock_guard lock(ledger_mutex);
  ++ledger_report.faults[description];
}

}  // namespace levin::testing::sim
