#pragma once

#include <levin/core/base/lifeline.h>
#include <levin/core/sweep/executor.h>

#include <sys/types.h>

#include <chrono>
#include <map>
#include <vector>

namespace levin::sweep {

/// Runs are processes on this machine. They end when this process dies, kill -9 included.
class LocalExecutor final : public Executor {
 public:
  LocalExecutor() = default;
  ~LocalExecutor() override;

  void begin(const ExecutorContext& context) override { lock_ = context.lock; }
  bool is_local() const override { return true; }
  void start(const std::vector<RunCommand>& runs) override;
  std::vector<RunEnd> poll() override;
  void interrupt(int signal) override;

 private:
  struct Child {
    pid_t process;  ///< and of its process group
    std::chrono::steady_clock::time_point began;
  };

  Lifeline lifeline_;
  int lock_ = -1;
  std::map<int64_t, Child> children_;  ///< by the run's number
};

}  // namespace levin::sweep
