#pragma once

#include <levin/core/base/state.h>
#include <levin/core/metrics/metric_reference.h>
#include <levin/core/metrics/update_watch.h>

#include <vector>

namespace levin::metrics {

/// Takes back at its end what this thread has added to metrics during its lifetime, whether these were logged or not.
class TakenBackUpdates final : public UpdateWatch {
 public:
  TakenBackUpdates() = default;
  ~TakenBackUpdates();

 private:
  struct Kept {
    MetricReference metric;
    State state;
  };

  void before_change(Metric& metric) override;

  std::vector<Kept> kept_;
};

}  // namespace levin::metrics
