#include <levin/core/metrics/update_watch.h>

#include <utility>

namespace levin::metrics {
namespace {

thread_local UpdateWatch* innermost_watch = nullptr;

}  // namespace

UpdateWatch::UpdateWatch() : outer_(std::exchange(innermost_watch, this)) {}
UpdateWatch::~UpdateWatch() { innermost_watch = outer_; }

void UpdateWatch::tell(Metric& metric) {
  if (innermost_watch != nullptr) innermost_watch->before_change(metric);
}

}  // namespace levin::metrics
