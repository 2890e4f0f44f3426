#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/tuner.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// Options of BatchSizeFinder, explained in describe().
struct BatchSizeFinderOptions {
  std::string mode = "power";
  int64_t steps_per_trial = 3;
  int64_t init_val = 2;
  int64_t max_trials = 25;
  double margin = 0.05;
  int64_t max_val = 8192;
  bool update_attr = true;
  std::string batch_arg_name = "batch_size";

  static void describe(Schema<BatchSizeFinderOptions>& schema);
};

/// Before a fit: finds a large batch size of one rank that fits into memory, by training some steps with each candidate
/// and taking them back (see DryRun), and trains with it; validation keeps its own. A candidate must fit on every rank:
/// where one runs out of memory, all step back. No candidate is larger than the data set allows. A fit that resumes
/// goes on with the size that was found before the checkpoint was made.
class BatchSizeFinder final : public Tuner {
 public:
  using Options = BatchSizeFinderOptions;

  explicit BatchSizeFinder(const Options& options = {});

  /// Examples in a batch of one rank; nothing before a search, or when it found none.
  std::optional<int64_t> batch_size() const { return batch_size_; }
  std::string report() const override { return report_; }

  void on_load_checkpoint(Trainer& trainer, Module& module, const State& checkpoint) override;
  void on_fit_start(Trainer& trainer, Module& module) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  enum class Fit { kYes, kNoMemory, kNoData, kInterrupted };
  Fit try_size(Trainer& trainer, int64_t batch_size) const;
  /// Returns nothing when a signal ended the search.
  std::optional<std::string> search(Trainer& trainer);
  std::string how_to_set(Trainer& trainer, const Module& module) const;

  const Options options_;
  std::optional<int64_t> batch_size_;
  std::string report_;
};

}  // namespace levin
