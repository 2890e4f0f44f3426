#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/batch_summary.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Options of DataSummary, explained in describe().
struct DataSummaryOptions {
  int64_t batches = 10;
  int64_t images = 64;

  static void describe(Schema<DataSummaryOptions>& schema);
};

/// Writes what the first training batches hold to the run's folder, where levin-report finds it: data.json (tensors of
/// the first batch, and how often each class occurs in all of them), and data.png, a picture of the first. Batches are
/// rank 0's, as steps get them.
class DataSummary final : public Callback {
 public:
  using Options = DataSummaryOptions;

  explicit DataSummary(const Options& options = {}) : options_(options) {}

  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_end(Trainer& trainer, Module& module) override;

 private:
  void write(const Trainer& trainer);

  const Options options_;
  std::vector<data::TensorSummary> tensors_;
  data::ClassCounts classes_;
  int64_t batches_ = 0;  ///< seen; -1: written
  int64_t examples_ = 0;
};

}  // namespace levin
