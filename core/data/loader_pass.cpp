#include <levin/core/data/loader_pass.h>

#include <algorithm>
#include <utility>

namespace levin {

DataLoader::Pass::State::State(std::shared_ptr<data::BatchSource> source, int64_t position,
                               std::optional<data::BatchPlan> plan)
    : source_(std::move(source)), position_(position), plan_(plan) {}

std::optional<Batch> DataLoader::Pass::State::next() {
  if (error_) std::rethrow_exception(error_);
  if (ended_) return std::nullopt;
  try {
    auto batch = source_->next(waited_);
    if (batch)
      ++position_;
    else
      ended_ = true;
    return batch;
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

std::optional<int64_t> DataLoader::Pass::State::remaining() const {
  if (!plan_) return std::nullopt;
  return std::max<int64_t>(plan_->num_batches() - position_, 0);
}

std::optional<DataLoader::Pass::Share> DataLoader::Pass::State::share(int64_t batch) const {
  if (!plan_) return std::nullopt;
  const int64_t all = plan_->global_count(batch);
  if (all == 0) return Share{};
  return Share{.own = plan_->own_count(batch), .all = all};
}

DataLoader::Pass::Pass(std::unique_ptr<State> state) : state_(std::move(state)) {}
DataLoader::Pass::Pass(Pass&&) noexcept = default;
DataLoader::Pass& DataLoader::Pass::operator=(Pass&&) noexcept = default;
DataLoader::Pass::~Pass() = default;

std::optional<Batch> DataLoader::Pass::next() { return state_->next(); }
std::optional<int64_t> DataLoader::Pass::remaining() const { return state_->remaining(); }
std::optional<DataLoader::Pass::Share> DataLoader::Pass::share(int64_t batch) const { return state_->share(batch); }
int64_t DataLoader::Pass::position() const { return state_->position(); }
std::chrono::nanoseconds DataLoader::Pass::waited() const { return state_->waited(); }

}  // namespace levin
