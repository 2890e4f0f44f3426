#include <levin/core/data/inline_source.h>

#include <levin/core/base/error.h>
#include <levin/core/data/fetch_scope.h>

namespace levin::data {

std::optional<Batch> InlineSource::next(std::chrono::nanoseconds& waited) {
  if (stopped_) throw Error("data", "this pass over the data loader has ended because a new one was started");
  FetchScope scope;
  const auto begin = std::chrono::steady_clock::now();
  auto batch = reader_->next();
  waited += std::chrono::steady_clock::now() - begin;
  return batch;
}

}  // namespace levin::data
