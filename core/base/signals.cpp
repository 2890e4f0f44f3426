#include <levin/core/base/signals.h>

#include <levin/core/base/mutex.h>
#include <levin/core/base/slurm_job.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

namespace levin {
namespace {

std::atomic<int> received_signal{0};
std::atomic<int> adopted_signal{0};
Mutex scope_mutex;
int signal_scopes LEVIN_GUARDED_BY(scope_mutex) = 0;
int handling_scopes LEVIN_GUARDED_BY(scope_mutex) = 0;
/// Of end_signals(), before the first of the handling scopes.
std::array<struct sigaction, kEndSignals.size()> former LEVIN_GUARDED_BY(scope_mutex){};

void write_text(const char* text) {
  const ssize_t ignored = write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(ignored);
}

/// Only what a signal handler may do.
void on_signal(int signal) {
  if (received_signal.exchange(signal) == 0) {
    write_text("\n[levin] ending after the present step and saving; once more to end at once\n");
    return;
  }
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

std::span<const int> end_signals() { return std::span(kEndSignals).first(in_slurm_job() ? 3 : 2); }

SignalScope::SignalScope(bool handles) : handles_(handles) {
  const MutexLock lock(scope_mutex);
  if (signal_scopes++ == 0) {
    received_signal.store(0);
    adopted_signal.store(0);
  }
  if (!handles_ || handling_scopes++ > 0) return;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  // Without SA_RESETHAND the handler sees the second signal; raise() then ends the process after the handler returns.
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < end_signals().size(); ++i) sigaction(end_signals()[i], &action, &former[i]);
}

SignalScope::~SignalScope() {
  const MutexLock lock(scope_mutex);
  --signal_scopes;
  if (!handles_ || --handling_scopes > 0) return;
  for (size_t i = 0; i < end_signals().size(); ++i) sigaction(end_signals()[i], &former[i], nullptr);
}

int SignalScope::received() {
  const int own = received_signal.load(std::memory_order_relaxed);
  return own != 0 ? own : adopted_signal.load(std::memory_order_relaxed);
}

bool SignalScope::leaves_handlers() {
  const MutexLock lock(scope_mutex);
  return signal_scopes > 0 && handling_scopes == 0;
}

void SignalScope::adopt(int signal) { adopted_signal.store(signal, std::memory_order_relaxed); }

}  // namespace levin
