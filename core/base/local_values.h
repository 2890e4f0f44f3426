#pragma once

namespace levin {

/// Scope in which this thread computes with what the rank has of tensors that ranks divide, as with ordinary ones: in
/// the update of a metric, whose states ranks combine afterwards.
class [[nodiscard]] LocalValuesScope {
 public:
  LocalValuesScope() { enter(); }
  ~LocalValuesScope() { leave(); }
  LocalValuesScope(const LocalValuesScope&) = delete;
  LocalValuesScope& operator=(const LocalValuesScope&) = delete;

  /// Whether the calling thread is in one.
  static bool is_active();
  /// Begins and ends one; one may be inside another.
  static void enter();
  static void leave();
};

}  // namespace levin
