#pragma once

#include <levin/core/data/batch_reader.h>

#include <memory>
#include <utility>

namespace levin::data {

/// Copies the batches of another reader into page-locked memory, in the thread that fetches.
class PinningReader : public BatchReader {
 public:
  explicit PinningReader(std::unique_ptr<BatchReader> reader) : reader_(std::move(reader)) {}
  std::optional<Batch> next() override {
    auto batch = reader_->next();
    if (batch) batch = batch->pin_memory();
    return batch;
  }

 private:
  std::unique_ptr<BatchReader> reader_;
};

}  // namespace levin::data
