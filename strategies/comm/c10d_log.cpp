#include <levin/strategies/comm/c10d_log.h>

#include <levin/core/base/mutex.h>

#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>

namespace levin {
namespace {

/// Who wants quiet, and the level to go back to when nobody does any more.
struct Listeners {
  Mutex mutex;
  int hiding_warnings LEVIN_GUARDED_BY(mutex) = 0;
  int hiding_errors LEVIN_GUARDED_BY(mutex) = 0;
  int usual_level LEVIN_GUARDED_BY(mutex) = 0;

  void change(QuietC10d::Hides hides, int by) {
    static const bool user_decides = std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr;
    if (user_decides) return;
    const MutexLock lock(mutex);
    if (hiding_warnings + hiding_errors == 0) usual_level = FLAGS_caffe2_log_level;
    (hides == QuietC10d::Hides::kErrors ? hiding_errors : hiding_warnings) += by;
    const int wanted = hiding_errors > 0 ? c10::GLOG_FATAL : hiding_warnings > 0 ? c10::GLOG_ERROR : usual_level;
    FLAGS_caffe2_log_level = std::max(wanted, usual_level);
  }
};

Listeners& listeners() {
  static Listeners all;
  return all;
}

}  // namespace

QuietC10d::QuietC10d(Hides hides) : hides_(hides) { listeners().change(hides_, 1); }

QuietC10d::~QuietC10d() { listeners().change(hides_, -1); }

}  // namespace levin
