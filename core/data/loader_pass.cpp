#include <levin/core/data/loader_pass.h>

#include <algorithm>
#include <utility>

namespace levin {

DataLoader::Pass::State::State(std::shared_ptr<data::BatchSource> source, int64_t position,
                               std::optional<Lengths> lengths, std::shared_ptr<data::SkippedExamples> skipped)
    : source_(std::move(source)), position_(position), lengths_(std::move(lengths)), skipped_(std::move(skipped)) {}

DataLoader::Pass::State::~State() {
  source_.reset();  // its workers may still skip examples
  if (skipped_ != nullptr) skipped_->report();
}

std::optional<Batch> DataLoader::Pass::State::next() {
  if (error_) std::rethrow_exception(error_);
  if (ended_) return std::nullopt;
  try {
    auto batch = source_->next(waited_);
    if (batch)
      ++position_;
    else
      end();
    return batch;
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

void DataLoader::Pass::State::end() {
  ended_ = true;
  if (skipped_ != nullptr) skipped_->report();
}

std::optional<int64_t> DataLoader::Pass::State::remaining() const {
  if (!lengths_) return std::nullopt;
  return std::max<int64_t>(lengths_->num_batches - position_, 0);
}

std::optional<DataLoader::Pass::Share> DataLoader::Pass::State::share(int64_t batch) const {
  if (!lengths_) return std::nullopt;
  return lengths_->share(batch);
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
