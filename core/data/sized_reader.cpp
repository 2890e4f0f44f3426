#include <levin/core/data/sized_reader.h>

#include <levin/core/data/data_notes.h>
#include <levin/core/data/fetch_trace.h>
#include <levin/core/data/mixed_dataset.h>

#include <exception>
#include <optional>
#include <span>
#include <typeinfo>
#include <utility>
#include <vector>

namespace levin::data {

namespace {

// Streams of whole batches lie below those of samples (0, 1, ...) and of the order (-1).
constexpr int64_t kFirstBatchStream = -2;
/// Tells the streams that all ranks have in common from those of their parts.
constexpr uint64_t kCommonStreams = 0x6c65'7669'6e5f'6d78;

/// Fetches the examples of a batch; `before`: the one before them in the batch of all ranks, where they are a part of
/// it.
Batch fetch(const SizedPass& pass, int64_t batch, std::span<const int64_t> indices, std::optional<int64_t> before) {
  const BatchPlan::Range part = pass.plan.range(batch);
  Generator generator(pass.seed, pass.epoch, kFirstBatchStream - part.begin);
  const auto* mixed = dynamic_cast<const MixedDataset*>(pass.dataset.get());
  if (mixed == nullptr) return pass.dataset->get_batch(indices, generator);
  Generator common(pass.seed ^ kCommonStreams, pass.epoch, pass.plan.global_range(batch).begin);
  return mixed->get_part(indices, before, generator, common);
}

/// Fetches them with others in the places of those that cannot be read. Examples are only read one by one where a
/// batch fails.
Batch fetch_readable(const SizedPass& pass, int64_t batch, std::span<const int64_t> indices,
                     std::optional<int64_t> before) {
  for (;;) {
    const std::vector<int64_t> readable = pass.skipped->replaced(indices);
    if (before) before = pass.skipped->replaced({&*before, 1}).front();
    std::optional<Batch> result;
    std::exception_ptr error;
    const auto reason = reason_of_failure([&] {
      try {
        result = fetch(pass, batch, readable, before);
      } catch (...) {
        error = std::current_exception();
        throw;
      }
    });
    if (!reason) return std::move(*result);
    const Generator generator(pass.seed, pass.epoch);
    bool found = pass.skipped->note_unreadable(*pass.dataset, readable, generator);
    if (before && pass.skipped->note_unreadable(*pass.dataset, {&*before, 1}, generator)) found = true;
    // Each can be read: it was putting them together.
    if (!found) std::rethrow_exception(error);
  }
}

Batch fetch(const SizedPass& pass, int64_t batch) {
  const BatchPlan::Range part = pass.plan.range(batch);
  const auto indices =
      std::span(pass.order).subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin));
  const Dataset& dataset = *pass.dataset;
  FetchTrace::begin_batch(batch, typeid(dataset), indices);
  return noting_errors(
      [&] {
        const BatchPlan::Range whole = pass.plan.global_range(batch);
        std::optional<int64_t> before;
        if (part.begin != whole.begin || part.end != whole.end)
          before = pass.order[static_cast<size_t>(part.begin == whole.begin ? whole.end - 1 : part.begin - 1)];
        return pass.skipped == nullptr ? fetch(pass, batch, indices, before)
                                       : fetch_readable(pass, batch, indices, before);
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
