#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/logger.h>
#include <levin/loggers/event_file_writer.h>
#include <levin/loggers/fault_guard.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace levin {

/// Options of TensorBoardLogger, explained in describe().
struct TensorBoardLoggerOptions {
  std::string save_dir = {};
  std::string name = {};
  std::string version = {};
  bool log_graph = false;
  std::string prefix = {};
  double flush_seconds = 1;

  static void describe(Schema<TensorBoardLoggerOptions>& schema);
};

/// Writes TensorBoard's event files into the run's folder, or into one of its own: metrics (with the epoch) as scalars,
/// hyper-parameters as a text table and for the HPARAMS page, texts, histograms, images and, with `log_graph`, the
/// model's graph. A fit that goes on from a checkpoint in the same folder tells readers which steps it logs again.
class TensorBoardLogger final : public Logger, public Stateful {
 public:
  using Options = TensorBoardLoggerOptions;

  explicit TensorBoardLogger(const Options& options = {});
  ~TensorBoardLogger() override;

  std::optional<LoggerFolder> folder() const override {
    return LoggerFolder{options_.save_dir, options_.name, options_.version};
  }
  std::string_view prefix() const override { return options_.prefix; }
  bool wants_graph() const override { return options_.log_graph; }
  void start(const RunInfo& run) override;
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) override;
  void log_hyperparameters(const Config& hyperparameters) override;
  void log_text(const std::string& name, const std::string& text, int64_t step) override;
  void log_histogram(const std::string& name, std::span<const double> values, int64_t step) override;
  void log_image(const std::string& name, const at::Tensor& image, int64_t step) override;
  void log_graph(const std::string& graph_def) override;
  void flush() override;
  void finish(TrainerStatus status) override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  /// The writer when it takes events: not before start, and not while a fault has filled the memory meant for them.
  EventFileWriter* writer();
  void write_when_due();
  void close();

  const Options options_;
  FaultGuard guard_{"TensorBoard logger"};
  std::optional<EventFileWriter> writer_;
  bool has_hyperparameters_ = false;
  int64_t lost_events_ = 0;
  int64_t last_step_ = -1;  ///< of the metrics, the greatest
  std::chrono::steady_clock::time_point last_write_;
};

}  // namespace levin
