#pragma once

#include "tiny.h"

#include <levin/core/data/dataset.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace levin::testing {

/// The examples of tiny_dataset(examples), of a number that nobody knows beforehand. Each reader has every
/// num_readers-th of them; reader 1 only those before `end_of_reader_1`, where that is given.
class TinyStream : public data::IterableDataset {
 public:
  explicit TinyStream(int64_t examples, std::optional<int64_t> end_of_reader_1 = {})
      : examples_(tiny_dataset(examples)), end_of_reader_1_(end_of_reader_1) {}

  std::unique_ptr<data::ExampleStream> stream(const data::StreamContext& context) const override {
    const int64_t end = context.reader == 1 ? end_of_reader_1_.value_or(examples_->size()) : examples_->size();
    return std::make_unique<Stream>(examples_, context.reader, context.num_readers, end);
  }

 private:
  class Stream : public data::ExampleStream {
   public:
    Stream(std::shared_ptr<data::TensorDataset> examples, int64_t first, int64_t stride, int64_t end)
        : examples_(std::move(examples)), next_(first), stride_(stride), end_(end) {}
    std::optional<Batch> next() override {
      if (next_ >= end_) return std::nullopt;
      data::Generator generator(0, 0);
      const Batch example = examples_->get(next_, generator);
      next_ += stride_;
      return example;
    }

   private:
    std::shared_ptr<data::TensorDataset> examples_;
    int64_t next_;
    int64_t stride_;
    int64_t end_;
  };

  std::shared_ptr<data::TensorDataset> examples_;
  std::optional<int64_t> end_of_reader_1_;
};

}  // namespace levin::testing
