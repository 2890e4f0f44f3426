#pragma once

#include <levin/core/base/file_system.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/state.h>
#include <levin/core/interfaces/logger.h>
#include <levin/loggers/fault_guard.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin {

/// Options of CsvLogger, explained in describe().
struct CsvLoggerOptions {
  std::string save_dir = {};
  std::string name = {};
  std::string version = {};
  std::string prefix = {};
  /// Rows that may wait in memory. A row waits no longer than about a second while further rows arrive.
  int64_t flush_every = 100;

  static void describe(Schema<CsvLoggerOptions>& schema);
};

/// Writes `metrics.csv` and `hparams.yaml` into the run's folder, or into one of its own.
///
/// The columns are `epoch`, `step` and one a metric in order of first appearance; each log_metrics call makes one row,
/// with an empty cell where it has no value. A value called `epoch` or `step` takes the place of the trainer's. Numbers
/// are written so that reading them gives the same double; `nan`, `inf` and `-inf` are words. A file that is there
/// already is continued. When a new metric appears the file is written anew with the wider header, beside the old one,
/// and renamed: it is whole and rectangular at every moment.
///
/// A checkpoint counts the rows that were logged before it. A fit that goes on from it in the same folder logs again
/// what came after it: those rows are removed, where the file begins with the rows that were counted. So are all rows
/// where it would have gone on (ckpt: auto), and there was no checkpoint yet.
class CsvLogger final : public Logger, public Stateful {
 public:
  using Options = CsvLoggerOptions;

  explicit CsvLogger(const Options& options = {});
  ~CsvLogger() override;

  std::optional<LoggerFolder> folder() const override {
    return LoggerFolder{options_.save_dir, options_.name, options_.version};
  }
  std::string_view prefix() const override { return options_.prefix; }
  void start(const RunInfo& run) override;
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) override;
  void log_hyperparameters(const Config& hyperparameters) override;
  void flush() override;
  void finish(TrainerStatus status) override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

  /// What whole rows are told by; trailing empty cells, which a wider header adds, do not count.
  struct Rows {
    int64_t count = 0;
    uint64_t bytes = 0;
    uint64_t digest = 0;

    /// Adds a row, which is given without its end.
    void add(std::string_view row);
  };

 private:
  /// A value of the row being made. It counts only when `row` is the row's number, so that no cell needs clearing.
  struct Cell {
    double value = 0;
    uint64_t row = 0;
  };

  void close();
  void read_existing();
  void keep_first(const Rows& kept);
  size_t column_of(const std::string& name);
  void append_row(int64_t step, int64_t epoch);
  bool write_pending(bool now_or_never);
  void write_rows();
  void write_hyperparameters();
  void open();
  void rewrite();
  std::string header() const;

  const Options options_;
  FaultGuard guard_{"CSV logger"};
  std::string directory_;  ///< empty: not started, or the folder holds a metrics.csv that is not ours
  std::string path_;
  std::string hyperparameters_;  ///< YAML not written yet

  std::vector<std::string> columns_;  ///< of metrics, without epoch and step
  std::unordered_map<std::string, size_t> column_index_;
  std::vector<Cell> cells_;
  uint64_t row_ = 0;
  std::optional<double> given_epoch_;  ///< in place of the trainer's, in this row
  std::optional<double> given_step_;   ///< likewise

  std::string pending_;  ///< whole rows of columns_.size() metrics that are not in the file yet
  int64_t pending_rows_ = 0;
  Rows logged_;  ///< those of the file and those that wait
  int64_t lost_rows_ = 0;
  std::chrono::steady_clock::time_point last_write_;

  // The file on the disk. When it is torn it may end in a part of a row, beyond `file_size_`.
  std::unique_ptr<WritableFile> file_;
  uint64_t header_size_ = 0;
  uint64_t file_size_ = 0;  ///< header and whole rows, in bytes
  size_t file_columns_ = 0;
  bool torn_ = false;
};

}  // namespace levin
