#pragma once

#include <levin/core/data/batch_source.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/skipped_examples.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

namespace levin {

/// Counters of one pass, with its source.
class DataLoader::Pass::State {
 public:
  /// Lengths of a pass that are known beforehand.
  struct Lengths {
    int64_t num_batches = 0;
    std::function<Share(int64_t batch)> share = {};
  };
  /// `position`: batches consumed already. `lengths`: nothing where data are unsized. `skipped`: what is reported at
  /// the end, or nullptr.
  State(std::shared_ptr<data::BatchSource> source, int64_t position, std::optional<Lengths> lengths,
        std::shared_ptr<data::SkippedExamples> skipped = nullptr);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::optional<Batch> next();
  std::optional<int64_t> remaining() const;
  std::optional<Share> share(int64_t batch) const;
  int64_t position() const { return position_; }
  std::chrono::nanoseconds waited() const { return waited_; }

 private:
  void end();

  std::shared_ptr<data::BatchSource> source_;
  int64_t position_;
  std::optional<Lengths> lengths_;
  std::shared_ptr<data::SkippedExamples> skipped_;
  std::chrono::nanoseconds waited_{0};
  std::exception_ptr error_;  ///< thrown again by each later call
  bool ended_ = false;
};

}  // namespace levin
