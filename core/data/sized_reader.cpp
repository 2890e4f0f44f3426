#include <levin/core/data/sized_reader.h>

#include <levin/core/base/error.h>
#include <levin/core/data/batch_sampler.h>
#include <levin/core/data/data_notes.h>
#include <levin/core/data/fetch_trace.h>
#include <levin/core/data/mixed_dataset.h>

#include <fmt/format.h>
#include <exception>

#include <algorithm>
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

int64_t at_place(const IndexOrder& order, int64_t place) { return order.indices(place, place + 1).front(); }

Batch fetch(const SizedPass& pass, int64_t batch) {
  const BatchPlan::Range part = pass.plan.range(batch);
  const std::vector<int64_t> indices = pass.order->indices(part.begin, part.end);
  check_indices(indices, pass.dataset->size());  // an order that is not a list was not looked at before
  const Dataset& dataset = *pass.dataset;
  FetchTrace::begin_batch(batch, typeid(dataset), indices);
  return noting_errors(
      [&] {
        const BatchPlan::Range whole = pass.plan.global_range(batch);
        std::optional<int64_t> before;
        if (part.begin != whole.begin || part.end != whole.end)
          before = at_place(*pass.order, part.begin == whole.begin ? whole.end - 1 : part.begin - 1);
        return pass.skipped == nullptr ? fetch(pass, batch, indices, before)
                                       : fetch_readable(pass, batch, indices, before);
      },
      [&](ErrorNotes& notes) { note_data(notes, "get_batch", typeid(dataset), indices); });
}

void check_ends(const std::vector<int64_t>& ends, int64_t num_indices, int64_t num_batches, int64_t epoch) {
  int64_t before = 0;
  for (const int64_t end : ends) {
    if (end <= before)
      throw Error("data",
                  fmt::format("the batch sampler gave a batch that ends at {} after one that ends at {}; valid: "
                              "batches of at least one example",
                              end, before));
    before = end;
  }
  if (before != num_indices)
    throw Error("data", fmt::format("the batch sampler's last batch ends at {}; valid: {}, the number of examples in "
                                    "its order",
                                    before, num_indices));
  if (std::ssize(ends) != num_batches)
    throw Error("data", fmt::format("the batch sampler gave {} batches in epoch {}; valid: {}, its num_batches(), in "
                                    "every epoch",
                                    ends.size(), epoch, num_batches));
}

}  // namespace

void set_order(SizedPass& pass, const Sampler& sampler, BatchPlan plan) {
  const int64_t size = pass.dataset->size();
  noting_errors(
      [&] {
        if (const auto* batched = dynamic_cast<const BatchSampler*>(&sampler)) {
          BatchSampler::Batches batches = batched->batches(size, pass.seed, pass.epoch);
          check_ends(batches.ends, std::ssize(batches.order), batched->num_batches(size), pass.epoch);
          pass.order = listed_order(std::move(batches.order), size);
          plan.ends = std::make_shared<const std::vector<int64_t>>(std::move(batches.ends));
        } else {
          pass.order = index_order_of(sampler, size, pass.seed, pass.epoch);
        }
      },
      [&](ErrorNotes& notes) { note_data(notes, "order", typeid(sampler)); });
  plan.num_indices = pass.order->size();
  pass.plan = std::move(plan);
}

SizedReader::SizedReader(std::shared_ptr<const SizedPass> pass, int64_t first_batch, int64_t stride)
    : pass_(std::move(pass)), batch_(first_batch), stride_(stride) {}

std::optional<Batch> SizedReader::next() {
  if (batch_ >= pass_->plan.num_batches()) return std::nullopt;
  return fetch(*pass_, std::exchange(batch_, batch_ + stride_));
}

}  // namespace levin::data
