#include <levin/core/data/sized_reader.h>

#include <span>
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
  const std::span<const int64_t> order(pass_->order);
  return pass_->dataset->get_batch(order.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                                   generator);
}

}  // namespace levin::data
