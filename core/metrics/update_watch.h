#pragma once

namespace levin::metrics {

class Metric;

/// Is told of the metrics that change in this thread, from its construction to its end or as long as there is no watch
/// within it.
class UpdateWatch {
 public:
  UpdateWatch(const UpdateWatch&) = delete;
  UpdateWatch& operator=(const UpdateWatch&) = delete;

  /// A metric calls it before it changes.
  static void tell(Metric& metric);

 protected:
  UpdateWatch();
  ~UpdateWatch();

 private:
  virtual void before_change(Metric& metric) = 0;

  UpdateWatch* const outer_;
};

}  // namespace levin::metrics
