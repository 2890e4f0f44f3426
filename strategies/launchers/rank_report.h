#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin {

/// How a rank that is a forked process fared, as it tells its parent through a pipe.
struct RankReport {
  enum class Kind : uint8_t { kSuccess, kConfigError, kLevinError, kOtherError };

  Kind kind = Kind::kSuccess;
  bool consequence = false;                    ///< the error only tells of another rank's
  std::chrono::steady_clock::time_point time;  ///< the clock is the same in all processes of a host
  std::string component;                       ///< of a Levin error
  std::string message;                         ///< of an error, without the component

  static RankReport success();
  /// To be called in a handler: describes the exception under way.
  static RankReport of_current_exception();

  std::string to_bytes() const;
  /// Nothing when the report is not whole.
  static std::optional<RankReport> from_bytes(std::string_view bytes);

  /// Throws the error, with the rank's number in its message: the same kind of Levin error, or else levin::Error.
  [[noreturn]] void raise(int64_t rank) const;
};

}  // namespace levin
