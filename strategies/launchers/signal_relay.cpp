#include <levin/strategies/launchers/signal_relay.h>

#include <levin/core/base/mutex.h>
#include <levin/core/base/signals.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace levin {
namespace {

/// What happened to one of the signals. Handlers write it, so everything in it is lock-free.
struct Arrivals {
  std::atomic<int64_t> direct{0};
  std::atomic<int64_t> relayed{0};  ///< by the parent
  std::atomic<int64_t> handled{0};  ///< after pairs were counted as one
  bool installed = false;
  struct sigaction previous {};
};

std::array<Arrivals, kEndSignals.size()> arrivals;
std::atomic<pid_t> relaying_parent{0};  ///< 0 in a process that is no child of a relay
Mutex scope_mutex;
int scopes LEVIN_GUARDED_BY(scope_mutex) = 0;

size_t index_of(int signal) {
  return static_cast<size_t>(std::find(kEndSignals.begin(), kEndSignals.end(), signal) - kEndSignals.begin());
}

/// Only what a signal handler may do.
void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  Arrivals& here = arrivals[index_of(signal)];
  const bool relayed = info->si_code == SI_USER && info->si_pid == relaying_parent.load();
  const int64_t count = (relayed ? here.relayed : here.direct).fetch_add(1) + 1;
  int64_t handled = here.handled.load();
  while (handled < count && !here.handled.compare_exchange_weak(handled, count)) {
  }
  if (handled < count) {
    if ((here.previous.sa_flags & SA_SIGINFO) != 0)
      here.previous.sa_sigaction(signal, info, context);
    else
      here.previous.sa_handler(signal);
  }
  errno = saved_errno;
}

bool is_handled(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void install() {
  const bool may_handle = !SignalScope::leaves_handlers();
  for (size_t i = 0; i < end_signals().size(); ++i) {
    Arrivals& here = arrivals[i];
    sigaction(end_signals()[i], nullptr, &here.previous);
    here.installed = may_handle && is_handled(here.previous);
    if (!here.installed) continue;
    struct sigaction action = here.previous;
    action.sa_flags |= SA_SIGINFO | SA_RESTART;
    action.sa_sigaction = on_signal;
    sigaction(end_signals()[i], &action, nullptr);
  }
}

void restore() {
  for (size_t i = 0; i < end_signals().size(); ++i) {
    if (!arrivals[i].installed) continue;
    struct sigaction present {};
    sigaction(end_signals()[i], nullptr, &present);
    // A handler that somebody has put in place since then stays.
    const bool ours = (present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == on_signal;
    if (ours) sigaction(end_signals()[i], &arrivals[i].previous, nullptr);
  }
}

}  // namespace

SignalRelay::SignalRelay() {
  const MutexLock lock(scope_mutex);
  if (scopes++ == 0) install();
  for (size_t i = 0; i < end_signals().size(); ++i) passed_on_[i] = arrivals[i].handled.load();
}

SignalRelay::~SignalRelay() {
  const MutexLock lock(scope_mutex);
  if (--scopes == 0) restore();
}

void SignalRelay::poll(const std::function<void(int signal)>& pass_on) {
  for (size_t i = 0; i < end_signals().size(); ++i)
    for (const int64_t handled = arrivals[i].handled.load(); passed_on_[i] < handled; ++passed_on_[i])
      pass_on(end_signals()[i]);
}

void SignalRelay::enter_child(pid_t parent) const {
  // What the parent handled before the fork is handled here too, though it may still be about to pass it on.
  for (size_t i = 0; i < end_signals().size(); ++i) {
    arrivals[i].direct.store(arrivals[i].handled.load());
    arrivals[i].relayed.store(passed_on_[i]);
  }
  relaying_parent.store(parent);
}

}  // namespace levin
