#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Files that predictions are written to.
enum class PredictionFormat {
  kSafetensors,  ///< a file with a tensor for each name
  kCsv,          ///< a row for each example, a column for each text and number of it: "y", or "y[0]", "y[1]"
  kNpy,          ///< a file of NumPy for each name
  kPng,          ///< an image for each example and name
};

/// Options of PredictionWriter, explained in describe().
struct PredictionWriterOptions {
  std::string output_dir = {};
  PredictionFormat format = PredictionFormat::kSafetensors;
  bool merge = false;

  static void describe(Schema<PredictionWriterOptions>& schema);
};

/// Writes what predict_step returns as it comes, so that memory does not grow with the data: a file for each batch and
/// rank, `batch_000000012_rank_0001.safetensors`, below `loader_1/` where there are several loaders. `predict` then
/// returns nothing, unless it is told to.
class PredictionWriter final : public Callback {
 public:
  using Options = PredictionWriterOptions;

  explicit PredictionWriter(const Options& options = {});

  void on_predict_start(Trainer& trainer, Module& module) override;
  void on_predict_batch_end(Trainer& trainer, Module& module, const Batch& prediction, const Batch& batch,
                            int64_t batch_idx, int64_t dataloader_idx) override;
  void on_predict_end(Trainer& trainer, Module& module) override;
  bool takes_predictions() const override { return true; }

 private:
  /// The folder of a loader's files.
  std::string folder(const Trainer& trainer, int64_t loader) const;
  /// Makes one file, or one set of them, of the parts in a folder, in the order of the examples.
  void merge(const std::string& folder) const;

  const Options options_;
  std::string root_;
};

}  // namespace levin
