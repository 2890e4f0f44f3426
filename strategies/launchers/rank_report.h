#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin {

/// Outcome of a rank that is a forked process, as it tells its parent through a pipe.
struct RankReport {
  enum class Kind : uint8_t { kSuccess, kConfigError, kLevinError, kKeptType, kOtherError };

  Kind kind = Kind::kSuccess;
  bool consequence = false;                    ///< whether the error only tells of another rank's
  std::chrono::steady_clock::time_point time;  ///< the clock is the same in all processes of a host
  std::string component;                       ///< component of a Levin error
  size_t type = 0;                             ///< of an error of LibTorch or the standard library (kKeptType)
  std::string message;                         ///< text of an error, without the component

  static RankReport success();
  /// Describes the exception under way; to be called in a handler.
  static RankReport of_current_exception();

  std::string to_bytes() const;
  /// Parses a report; nothing when it is not whole.
  static std::optional<RankReport> from_bytes(std::string_view bytes);

  /// Throws the error, with the rank's number in its message. Its type is the nearest one of Levin, LibTorch or the
  /// standard library that the error's class is or derives from; levin::Error where there is none with a text.
  [[noreturn]] void raise(int64_t rank) const;
};

}  // namespace levin
