#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace levin {

/// What a reader makes of one file at most.
struct TreeLimits {
  int depth = 400;                     ///< levels of values inside each other
  uint64_t visits = 2'000'000;         ///< of values, where one that is shared counts each time
  uint64_t bytes = uint64_t{1} << 30;  ///< of copies
};

/// Bounds what is made of a tree of values in a file that anyone may have written. Values that share parts, or lie
/// inside themselves, take few bytes in the file and have no end when each is visited. A reader enters every level and
/// counts what it visits and copies; each function throws levin::Error beyond the limits.
class TreeBudget {
 public:
  /// `component` is that of the errors.
  explicit TreeBudget(std::string_view component, const TreeLimits& limits = {})
      : component_(component), limits_(limits) {}

  /// One level, which ends with this.
  class Level {
   public:
    explicit Level(int& depth) : depth_(&depth) { ++depth; }
    ~Level() {
      if (depth_ != nullptr) --*depth_;
    }
    Level(Level&& other) noexcept : depth_(std::exchange(other.depth_, nullptr)) {}
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int* depth_;
  };
  [[nodiscard]] Level enter();

  void visit(uint64_t values = 1);
  void copy(uint64_t bytes);

 private:
  std::string component_;
  TreeLimits limits_;
  int depth_ = 0;
  uint64_t visits_ = 0;
  uint64_t bytes_ = 0;
};

/// Returns whether lists and objects of a JSON text lie deeper inside each other than TreeLimits allow: nlohmann::json
/// copies, compares and prints them by recursion.
bool is_too_deep_json(std::string_view text);

}  // namespace levin
