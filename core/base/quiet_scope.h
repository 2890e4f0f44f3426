#pragma once

namespace levin::log {

/// Makes the calling thread print warnings alone, and no other messages, during the scope's lifetime.
class QuietScope {
 public:
  QuietScope();
  ~QuietScope();
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;

  /// Whether the calling thread is in one.
  static bool is_quiet();

 private:
  const bool former_;
};

}  // namespace levin::log
