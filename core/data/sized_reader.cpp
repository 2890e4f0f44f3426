#include <levin/core/data/sized_reader.h>

#include <levin/core/data/data_notes.h>

#include <span>
#include <typeinfo>
#include <utility>

namespace levin::data {

namespace {

// Streams of whole batches lie below those of samples (0, 1, ...) and of the order (-1).
constexpr int64_t kFirstBatchStream = -2;

}  // namespace

SizedReader::SizedReader(std::shared_ptr<const SizedPass> pass, int64_t first_batch, int64_t stride)
    : pass_(std::move(pass)), batch_(first_batch), stride_(stride) {}

std::optional<Batch> SizedReader::next() {
  if (batch_ >= pass_->plan.num_batches()) return std::nullopt;
  const auto [begin, end] = pass_->plan.range(batch_);
  batch_ += stride_;
  Generator generator(pass_->seed, pass_->epoch, kFirstBatchStream - begin);
  const auto indices = std::span(pass_->order).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  const Dataset& dataset = *pass_->dataset;
  return noting_errors([&] { return dataset.get_batch(indices, generator); },
                       [&](ErrorNotes& notes) { note_data(notes, "get_batch", typeid(dataset), indices); });
}

}  // namespace levin::data
