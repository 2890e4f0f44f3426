#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

/// Where the calling thread's time goes while it fetches examples: "decode", a transform's name. Measured while an
/// object of this class lives in the thread; elsewhere a FetchPart costs a look at a pointer.
class FetchTimes {
 public:
  FetchTimes();
  ~FetchTimes();
  FetchTimes(const FetchTimes&) = delete;
  FetchTimes& operator=(const FetchTimes&) = delete;

  using Part = std::pair<std::string, std::chrono::nanoseconds>;
  /// Returns the parts in the order in which they were first met.
  const std::vector<Part>& parts() const { return parts_; }

 private:
  friend class FetchPart;
  void add(std::string_view name, std::chrono::nanoseconds time);

  std::vector<Part> parts_;
  FetchTimes* outer_;
};

/// A part of the work on an example: adds its lifetime to the thread's FetchTimes, where there is one. Parts are not
/// nested.
class FetchPart {
 public:
  /// `name` must live as long.
  explicit FetchPart(std::string_view name);
  ~FetchPart();
  FetchPart(const FetchPart&) = delete;
  FetchPart& operator=(const FetchPart&) = delete;

 private:
  FetchTimes* times_;
  std::string_view name_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace levin::data
