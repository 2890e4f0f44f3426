#pragma once

namespace levin {

/// Keeps c10d, while one lives, from writing to standard error what it is about to throw anyway, which it would do with
/// stack traces. The level is one for the process: short calls only. Where the user has set TORCH_CPP_LOG_LEVEL, all
/// stays as it is.
class QuietC10d {
 public:
  enum class Hides { kWarnings, kErrors };

  explicit QuietC10d(Hides hides);
  ~QuietC10d();
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  Hides hides_;
};

}  // namespace levin
