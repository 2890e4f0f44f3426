#include <levin/core/base/sink_scope.h>

#include <levin/core/base/mutex.h>

#include <utility>
#include <vector>

namespace levin::log {
namespace {

struct Scopes {
  Mutex mutex;
  std::vector<std::pair<const SinkScope*, SinkScope::Show>> all LEVIN_GUARDED_BY(mutex);  ///< oldest first
};

Scopes& scopes() {
  static Scopes* instance = new Scopes;  // outlives every static object that may still log
  return *instance;
}

}  // namespace

SinkScope::SinkScope(Show show) {
  const MutexLock lock(scopes().mutex);
  scopes().all.emplace_back(this, std::move(show));
}

SinkScope::~SinkScope() {
  const MutexLock lock(scopes().mutex);
  std::erase_if(scopes().all, [this](const auto& scope) { return scope.first == this; });
}

bool SinkScope::show(const std::string& line, const Sink& sink) {
  const MutexLock lock(scopes().mutex);
  if (scopes().all.empty()) return false;
  scopes().all.back().second(line, sink);
  return true;
}

}  // namespace levin::log
