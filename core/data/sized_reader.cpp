#include <levin/core/data/sized_reader.h>

#include <levin/core/data/data_notes.h>
#include <levin/core/data/mixed_dataset.h>

#include <optional>
#include <span>
#include <typeinfo>
#include <utility>

namespace levin::data {

namespace {

// Streams of whole batches lie below those of samples (0, 1, ...) and of the order (-1).
constexpr int64_t kFirstBatchStream = -2;
/// Tells the streams that all ranks have in common from those of their parts.
constexpr uint64_t kCommonStreams = 0x6c65'7669'6e5f'6d78;

Batch fetch(const SizedPass& pass, int64_t batch) {
  const BatchPlan::Range part = pass.plan.range(batch);
  const auto indices =
      std::span(pass.order).subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin));
  const Dataset& dataset = *pass.dataset;
  Generator generator(pass.seed, pass.epoch, kFirstBatchStream - part.begin);
  return noting_errors(
      [&] {
        const auto* mixed = dynamic_cast<const MixedDataset*>(&dataset);
        if (mixed == nullptr) return dataset.get_batch(indices, generator);
        const BatchPlan::Range whole = pass.plan.global_range(batch);
        Generator common(pass.seed ^ kCommonStreams, pass.epoch, whole.begin);
        const int64_t before = part.begin == whole.begin ? whole.end - 1 : part.begin - 1;
        const bool is_whole = part.begin == whole.begin && part.end == whole.end;
        return mixed->get_part(indices,
                               is_whole ? std::nullopt : std::optional(pass.order[static_cast<size_t>(before)]),
                               generator, common);
      },
      [&](ErrorNotes& notes) { note_data(notes, "get_batch", typeid(dataset), indices); });
}

}  // namespace

SizedReader::SizedReader(std::shared_ptr<const SizedPass> pass, int64_t first_batch, int64_t stride)
    : pass_(std::move(pass)), batch_(first_batch), stride_(stride) {}

std::optional<Batch> SizedReader::next() {
  if (batch_ >= pass_->plan.num_batches()) return std::nullopt;
  return fetch(*pass_, std::exchange(batch_, batch_ + stride_));
}

}  // namespace levin::data
