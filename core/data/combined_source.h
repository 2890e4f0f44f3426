#pragma once

#include <levin/core/data/batch_source.h>
#include <levin/core/data/combined_plan.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// Source of batches that have one of each of several sources in them: tensor "x" of the part "a" is "a.x".
class CombinedSource : public BatchSource {
 public:
  struct Part {
    std::string name = {};
    /// Starts one of the part's passes at a batch, for this rank or for the first one.
    std::function<std::unique_ptr<BatchSource>(CombinedPlan::Place place, bool of_first_rank)> open = {};
  };
  CombinedSource(CombinedPlan plan, std::vector<Part> parts, int64_t first_batch);

  /// A rank that has no example of a sized part's last batch gets the first rank's, so that all have the same parts.
  std::optional<Batch> next(std::chrono::nanoseconds& waited) override;
  void stop() override { stopped_ = true; }

 private:
  struct Reading {
    Part part;
    std::unique_ptr<BatchSource> source;
    int64_t pass = -1;
    bool ended = false;  ///< unsized, and has given all it has
  };
  std::optional<Batch> next_of(size_t part, CombinedPlan::Place place, std::chrono::nanoseconds& waited);

  CombinedPlan plan_;
  std::vector<Reading> parts_;
  int64_t batch_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace levin::data
