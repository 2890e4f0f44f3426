#include <levin/core/nn/forward_context.h>

#include <levin/core/base/mutex.h>

#include <utility>

namespace levin {
namespace {

struct Captures {
  Mutex mutex;
  std::vector<std::function<ForwardContext()>> all LEVIN_GUARDED_BY(mutex);
};

Captures& captures() {
  static auto* const captures = new Captures;
  return *captures;
}

}  // namespace

void add_forward_context(std::function<ForwardContext()> capture) {
  const MutexLock lock(captures().mutex);
  captures().all.push_back(std::move(capture));
}

std::vector<ForwardContext> capture_forward_contexts() {
  const MutexLock lock(captures().mutex);
  std::vector<ForwardContext> contexts;
  for (const auto& capture : captures().all)
    if (ForwardContext context = capture()) contexts.push_back(std::move(context));
  return contexts;
}

}  // namespace levin
