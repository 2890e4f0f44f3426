#pragma once

#include <levin/core/data/batch_reader.h>
#include <levin/core/data/batch_source.h>

#include <atomic>
#include <memory>

namespace levin::data {

/// Fetches each batch in the calling thread when it is asked for.
class InlineSource : public BatchSource {
 public:
  explicit InlineSource(std::unique_ptr<BatchReader> reader) : reader_(std::move(reader)) {}
  std::optional<Batch> next(std::chrono::nanoseconds& waited) override;
  void stop() override { stopped_ = true; }

 private:
  std::unique_ptr<BatchReader> reader_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace levin::data
