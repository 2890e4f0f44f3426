#pragma once

#include <levin/core/base/registry.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace levin::sweep {

/// A run that is to be started.
struct RunCommand {
  int64_t number = 0;
  std::string folder = {};                              ///< absolute
  std::vector<std::string> words = {};                  ///< the command line
  std::map<std::string, std::string> environment = {};  ///< variables that are set for it
};

/// How a run ended.
struct RunEnd {
  int64_t number = 0;
  int status = 0;        ///< the exit status; 128 + the signal's number for one that a signal ended
  std::string how = {};  ///< for messages: "was ended by signal 9 (Killed)"; empty where the status says it all
  double seconds = 0;    ///< that it took
};

/// What an executor is told of the sweep.
struct ExecutorContext {
  std::string folder = {};  ///< of the sweep, absolute
  int64_t parallel = 1;     ///< runs at a time
  int lock = -1;            ///< descriptor of the sweep's lock: a process that inherits it keeps the folder locked
};

/// Where the runs of a sweep go: starts them, and says how they ended. Both from one thread. Its destructor ends what
/// still runs, as far as it can.
class Executor : public Configurable {
 public:
  /// Called once, before all else.
  virtual void begin(const ExecutorContext& context) = 0;
  /// Whether runs share the cores and GPUs of this machine, which the sweep then divides among them.
  virtual bool is_local() const = 0;
  /// Whether it takes any number of runs at once and starts them when there is room. Others are given `parallel`.
  virtual bool has_queue() const { return false; }
  /// Starts runs; what they print goes to output.txt in their folders. A run may have been started before, by a sweep
  /// that was killed meanwhile: it must not run twice. Throws levin::Error where none can be started.
  virtual void start(const std::vector<RunCommand>& runs) = 0;
  /// Those that have ended since the last call; does not wait.
  virtual std::vector<RunEnd> poll() = 0;
  /// Passes on a signal to the runs: the first one asks them to save and end.
  virtual void interrupt(int signal) = 0;
};

}  // namespace levin::sweep
