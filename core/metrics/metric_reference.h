#pragma once

#include <memory>
#include <string_view>

namespace levin::metrics {

class Metric;

/// Points to a metric that somebody else owns, and knows when it is gone.
class MetricReference {
 public:
  MetricReference() = default;
  /// Allocates when the metric is referred to for the first time.
  explicit MetricReference(Metric& metric);

  /// Returns whether it was given a metric, gone or not.
  explicit operator bool() const { return metric_ != nullptr; }
  bool is_gone() const { return metric_ != nullptr && alive_.expired(); }
  /// Returns whether it points to this very object, rather than to one that had its address before.
  bool refers_to(const Metric& metric) const { return metric_ == &metric && !alive_.expired(); }
  /// Returns the metric, or nullptr when none was given. Throws levin::Error with the name it was logged as when it is
  /// gone.
  Metric* get(std::string_view logged_as) const;

 private:
  Metric* metric_ = nullptr;
  std::weak_ptr<const void> alive_;
};

}  // namespace levin::metrics
