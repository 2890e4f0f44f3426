#pragma once

#include <levin/core/base/config.h>
#include <levin/core/sweep/executor.h>
#include <levin/core/sweep/machine_share.h>
#include <levin/core/sweep/run_devices.h>
#include <levin/core/sweep/run_table.h>
#include <levin/core/sweep/settings.h>
#include <levin/core/sweep/successive_halving.h>
#include <levin/core/sweep/sweep_folder.h>
#include <levin/core/sweep/sweep_options.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::sweep {

/// Trains a program's model with many configurations: plans the runs and checks the configuration of each, then starts
/// them, follows them and keeps the table. What is finished stays finished when a sweep is started again.
class Sweep {
 public:
  /// `resolve`: of the program, with every default; `resolve({})` has the section `sweep`. Throws ConfigError for
  /// whatever is wrong with any of the runs.
  explicit Sweep(Resolve resolve);
  ~Sweep();

  /// Runs what is not finished yet; ends early at SIGINT and SIGTERM, with each run saved. Throws levin::Error.
  void run();

  /// After run(): the table, and what failed.
  std::string report() const { return table_.to_text(folder_->path()); }
  bool has_failures() const;
  /// The signal that ended it early, or 0.
  int interrupted_by() const { return signal_; }

 private:
  /// What a run needs beside what the table has of it.
  struct Details {
    Settings settings;  ///< all that differ from the program's configuration
    RunDevices devices;
    std::optional<int64_t> max_epochs;
  };

  void plan(const Config& base);
  void add_run(const Settings& common, const Settings& varied);
  void check_run(const Run& run, const Config& resolved);
  void plan_rungs();
  Config description(const Config& base) const;
  void open_folder();
  void restore();

  bool start_next();
  std::optional<int64_t> next_run();
  void keep_next_run();
  RunCommand command_of(const Run& run, MachineShare::Variables variables) const;
  void finish(const RunEnd& end);
  std::optional<double> value_at(const Run& run, size_t rung) const;
  void end_rung(Run& run);
  void say(const Run& run) const;
  void warn_without_monitor() const;
  void write_table();
  std::string run_folder(const Run& run) const { return folder_->path() + "/" + run.name(); }

  const Resolve resolve_;
  SettingMeanings meanings_{resolve_};
  const std::string program_;
  SweepOptions options_;
  RunTable table_;
  std::vector<Details> details_;           ///< of each run
  std::map<std::string, int64_t> stores_;  ///< folders that checkpoints are uploaded to, and the run of each
  std::vector<int64_t> rung_epochs_;       ///< empty without early stopping
  std::optional<SuccessiveHalving> halving_;
  std::optional<MachineShare> machine_;  ///< where runs are this machine's own processes

  std::optional<SweepFolder> folder_;
  std::shared_ptr<Executor> executor_;  ///< goes first, with what still runs
  std::deque<int64_t> interrupted_;     ///< runs that come before all others
  size_t next_fresh_ = 0;               ///< no run before it is still to begin
  std::map<int64_t, double> running_;   ///< since when, in seconds on a steady clock
  int signal_ = 0;
};

}  // namespace levin::sweep
