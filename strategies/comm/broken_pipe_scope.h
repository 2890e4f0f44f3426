#pragma once

#include <signal.h>

namespace levin {

/// Keeps SIGPIPE from this thread, and from threads that it starts meanwhile for good: Gloo writes to connections that
/// the other side may have closed, and would end the process without a word. Such a write is an error instead.
class BrokenPipeScope {
 public:
  BrokenPipeScope();
  ~BrokenPipeScope();
  BrokenPipeScope(const BrokenPipeScope&) = delete;
  BrokenPipeScope& operator=(const BrokenPipeScope&) = delete;

 private:
  bool was_blocked_;
};

}  // namespace levin
