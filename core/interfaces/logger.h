#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/events.h>
#include <levin/core/base/registry.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace at {
class Tensor;
}

namespace levin {

/// One named value at a step.
struct MetricValue {
  std::string name = {};
  double value = 0;
};

/// Folder and name of a run.
struct RunInfo {
  std::string directory = {};  ///< the run's folder, which checkpoints share, or that of the logger's LoggerFolder
  std::string name = {};       ///< the folder's own, such as "version_3"
  /// The checkpoint that a fit goes on from: a logger may go on with what wrote it. Empty for anything else.
  std::string resumed_from = {};
};

/// The folder `save_dir/name/version` of a logger's own.
struct LoggerFolder {
  std::string save_dir = {};  ///< empty: default_root_dir
  std::string name = {};      ///< of a folder below it, or of several, "a/b"; empty: none
  /// Of the folder itself; a number is that of version_N. Empty: a new version_N.
  std::string version = {};

  /// Returns whether any of them is given; where none is, the logger writes into the run's folder.
  bool is_given() const { return !save_dir.empty() || !name.empty() || !version.empty(); }
};

/// Receives what is logged, on rank 0, at logging boundaries only. Implementations must not throw for a passing fault
/// (a full disk, a server away): they warn once and go on, so that training never ends because of a logger.
class Logger : public Configurable {
 public:
  /// Returns which folder its files go to, where their names in it are always the same: two such loggers of one class
  /// cannot share a folder, and the first of all is where the run's folder is. Nothing: it writes no such files.
  virtual std::optional<LoggerFolder> folder() const { return std::nullopt; }
  /// Returns what the trainer puts before the names of all that is logged, with "-" between; empty: nothing.
  virtual std::string_view prefix() const { return {}; }
  /// Returns whether it wants log_graph to be called when training starts.
  virtual bool wants_graph() const { return false; }

  /// Called once before anything is logged; may be called again for a further fit of the same trainer.
  virtual void start(const RunInfo& /*run*/) {}
  /// Takes the metrics of one boundary. `values` are ordered by first appearance and valid during the call.
  virtual void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) = 0;
  /// Takes the module's hyper-parameters and the resolved configuration.
  virtual void log_hyperparameters(const Config& /*hyperparameters*/) {}
  virtual void log_text(const std::string& /*name*/, const std::string& /*text*/, int64_t /*step*/) {}
  virtual void log_histogram(const std::string& /*name*/, std::span<const double> /*values*/, int64_t /*step*/) {}
  /// Takes an image of uint8 or floating values between 0 and 1, [channels, height, width] with 1 (grey), 3 (RGB) or 4
  /// (RGBA) channels. The trainer hands over uint8 in contiguous memory on the CPU; see core/base/image_bytes.h.
  virtual void log_image(const std::string& /*name*/, const at::Tensor& /*image*/, int64_t /*step*/) {}
  /// Takes the graph of the model, a serialised GraphDef (tensorflow/core/framework/graph.proto).
  virtual void log_graph(const std::string& /*graph_def*/) {}
  virtual void after_save_checkpoint(const CheckpointEvent& /*event*/) {}
  /// Writes what is buffered to disk.
  virtual void flush() {}
  virtual void finish(TrainerStatus /*status*/) {}
};

}  // namespace levin
