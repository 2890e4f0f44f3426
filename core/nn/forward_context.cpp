#include <levin/core/nn/forward_context.h>

#include <mutex>
#include <utility>

namespace levin {
namespace {

struct Captures {
  std::mutex mutex;
  std::vector<std::function<ForwardContext()>> all;
};

Captures& captures() {
  static auto* const captures = new Captures;
  return *captures;
}

}  // namespace

void add_forward_context(std::function<ForwardContext()> capture) {
  const std::lock_guard lock(captures().mutex);
  captures().all.push_back(std::move(capture));
}

std::vector<ForwardContext> capture_forward_contexts() {
  const std::lock_guard lock(captures().mutex);
  std::vector<ForwardContext> contexts;
  for (const auto& capture : captures().all)
    if (ForwardContext context = capture()) contexts.push_back(std::move(context));
  return contexts;
}

}  // namespace levin
