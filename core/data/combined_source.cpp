#include <levin/core/data/combined_source.h>

#include <levin/core/base/error.h>

#include <utility>

namespace levin::data {

CombinedSource::CombinedSource(CombinedPlan plan, std::vector<Part> parts, int64_t first_batch)
    : plan_(std::move(plan)), batch_(first_batch) {
  for (auto& part : parts) parts_.push_back({.part = std::move(part)});
}

std::optional<Batch> CombinedSource::next_of(size_t part, CombinedPlan::Place place, std::chrono::nanoseconds& waited) {
  Reading& reading = parts_[part];
  if (reading.pass != place.pass) {
    reading.source = reading.part.open(place, /*of_first_rank=*/false);
    reading.pass = place.pass;
  }
  auto batch = reading.source->next(waited);
  if (batch) return batch;
  if (plan_.lengths[part]) return reading.part.open(place, /*of_first_rank=*/true)->next(waited);
  reading.ended = true;
  return std::nullopt;
}

std::optional<Batch> CombinedSource::next(std::chrono::nanoseconds& waited) {
  if (stopped_) throw Error("data", "this pass over the data loader has ended because a new one was started");
  Batch combined;
  for (size_t part = 0; part < parts_.size(); ++part) {
    if (parts_[part].ended) continue;
    const auto place = plan_.place(part, batch_);
    auto batch = place ? next_of(part, *place, waited) : std::nullopt;
    if (batch)
      combined.set_part(parts_[part].part.name, *batch);
    else if (plan_.mode == CombinedMode::kMinSize)
      return std::nullopt;
  }
  if (combined.empty()) return std::nullopt;
  ++batch_;
  return combined;
}

}  // namespace levin::data
