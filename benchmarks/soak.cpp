/// Does anything grow in a long run? Trains a tiny model very often and prints, as it goes, the resident memory,
/// threads and descriptors of the process:
///
///   steps      1,000,000 steps of one fit, with progress, a CSV file and a checkpoint every 50,000
///   epochs     10,000 epochs of ten steps, with a validation and two checkpoints (best, last) after each
///   metrics    1,000 metrics logged in each of 20,000 steps
///   fits       100 fits in one process, in turn on one device, ranks as threads, and with loader threads
///
///   build/bin/soak [share] [steps|epochs|metrics|fits ...]      share: of those numbers, 1 unless told
///
/// Status 1 where the last reading has more threads or descriptors than the one in the middle, or memory more than 5 %
/// and 8 MiB above it: memory that comes late is either a leak or a buffer whose size nobody has bounded.

#include "measure.h"

#include <levin/levin.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::seconds_since;

constexpr int64_t kReadings = 10;

struct Reading {
  double mib = 0;
  int64_t threads = 0;
  int64_t descriptors = 0;
};

int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

Reading read_process() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return {.mib = static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20),
          .threads = entries_of("/proc/self/task"),
          // The one that lists them is not counted.
          .descriptors = entries_of("/proc/self/fd") - 1};
}

/// Readings at equal distances of something that is done `count` times.
class Readings {
 public:
  Readings(std::string name, int64_t count) : name_(std::move(name)), every_(std::max<int64_t>(1, count / kReadings)) {}

  void count() {
    if (++done_ % every_ != 0) return;
    readings_.push_back(read_process());
    const Reading& newest = readings_.back();
    std::printf("%-8s %9lld  %7.1f MiB  %3lld threads  %3lld descriptors  %8.1f s\n", name_.c_str(),
                static_cast<long long>(done_), newest.mib, static_cast<long long>(newest.threads),
                static_cast<long long>(newest.descriptors), seconds_since(started_));
    std::fflush(stdout);
  }

  bool flat() const {
    const Reading& early = readings_.at(readings_.size() / 2);
    const Reading& late = readings_.back();
    const bool grew = late.mib > early.mib * 1.05 && late.mib > early.mib + 8;
    const bool same = !grew && late.threads <= early.threads && late.descriptors <= early.descriptors;
    std::printf("%-8s %s: memory %+.1f MiB, threads %+lld, descriptors %+lld since the middle\n", name_.c_str(),
                same ? "flat" : "GROWS", late.mib - early.mib, static_cast<long long>(late.threads - early.threads),
                static_cast<long long>(late.descriptors - early.descriptors));
    return same;
  }

 private:
  std::string name_;
  int64_t every_;
  int64_t done_ = 0;
  Clock::time_point started_ = Clock::now();
  std::vector<Reading> readings_;
};

struct TinyOptions {
  int64_t metrics = 1;
  static void describe(levin::Schema<TinyOptions>& schema) {
    schema.field("metrics", &TinyOptions::metrics, "values logged in a step").at_least(1);
  }
};

class Tiny : public levin::Module {
 public:
  using Options = TinyOptions;
  explicit Tiny(const Options& options) {
    for (int64_t i = 1; i < options.metrics; ++i) names_.push_back(fmt::format("metric_{}", i));
    layer_ = register_module("layer", torch::nn::Linear(8, 1));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const auto loss = torch::mse_loss(layer_(batch["x"]), batch["y"]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true, .prog_bar = true});
    for (const auto& name : names_) log(name, loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  levin::StepOutput validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    log("val_loss", torch::mse_loss(layer_(batch["x"]), batch["y"]));
    return {};
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-4});
  }

 private:
  torch::nn::Linear layer_{nullptr};
  std::vector<std::string> names_;
};

levin::DataLoader loader(int64_t workers = 0) {
  const auto x = torch::arange(320, torch::kFloat).view({40, 8}).sin();
  return {std::make_shared<levin::data::TensorDataset>(levin::Batch{{"x", x}, {"y", x.sum(1, true)}}),
          {.batch_size = 4, .shuffle = true, .num_workers = workers}};
}

class Counting : public levin::Callback {
 public:
  Counting(Readings& readings, bool epochs) : readings_(readings), epochs_(epochs) {}
  void on_train_batch_end(levin::Trainer& /*trainer*/, levin::Module& /*module*/, const levin::StepOutput& /*output*/,
                          const levin::Batch& /*batch*/, int64_t /*batch_idx*/) override {
    if (!epochs_) readings_.count();
  }
  void on_train_epoch_end(levin::Trainer& /*trainer*/, levin::Module& /*module*/) override {
    if (epochs_) readings_.count();
  }

 private:
  Readings& readings_;
  bool epochs_;
};

levin::TrainerOptions options(const std::string& folder) {
  levin::TrainerOptions options;
  options.accelerator = "cpu";
  options.devices = 1;
  options.default_root_dir = folder;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.logger = {levin::make<levin::CsvLogger>({})};
  options.enable_checkpointing = false;
  return options;
}

void steps(Readings& readings, int64_t count, const std::string& folder) {
  levin::TrainerOptions given = options(folder);
  given.max_steps = count;
  given.enable_checkpointing = true;
  given.callbacks = {levin::make<levin::ModelCheckpoint>({.every_n_train_steps = std::max<int64_t>(1, count / 20)}),
                     std::make_shared<Counting>(readings, /*epochs=*/false)};
  levin::Trainer(given).fit(levin::make<Tiny>({}), loader());
}

void epochs(Readings& readings, int64_t count, const std::string& folder) {
  levin::TrainerOptions given = options(folder);
  given.max_epochs = count;
  given.enable_checkpointing = true;
  given.callbacks = {levin::make<levin::ModelCheckpoint>({.monitor = "val_loss", .save_last = true}),
                     std::make_shared<Counting>(readings, /*epochs=*/true)};
  levin::Trainer(given).fit(levin::make<Tiny>({}), loader(), loader());
}

void metrics(Readings& readings, int64_t count, const std::string& folder) {
  levin::TrainerOptions given = options(folder);
  given.max_steps = count;
  given.callbacks = {std::make_shared<Counting>(readings, /*epochs=*/false)};
  levin::Trainer(given).fit(levin::make<Tiny>({.metrics = 1000}), loader());
}

void fits(Readings& readings, int64_t count, const std::string& folder) {
  for (int64_t i = 0; i < count; ++i) {
    levin::TrainerOptions given = options(folder);
    given.max_epochs = 2;
    if (i % 3 == 1) {
      given.strategy = "ddp_threads";
      given.devices = 2;
    }
    levin::Trainer(given).fit(levin::make<Tiny>({}), loader(/*workers=*/i % 3 == 2 ? 2 : 0), loader());
    readings.count();
  }
}

struct Kind {
  const char* name;
  int64_t count;
  void (*run)(Readings&, int64_t, const std::string&);
};
constexpr Kind kKinds[] = {
    {"steps", 1'000'000, steps}, {"epochs", 10'000, epochs}, {"metrics", 20'000, metrics}, {"fits", 100, fits}};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  double share = 1;
  if (!words.empty() && std::isdigit(static_cast<unsigned char>(words.front()[0])) != 0) {
    share = std::stod(words.front());
    words.erase(words.begin());
  }
  bool flat = true;
  for (const auto& kind : kKinds) {
    if (!words.empty() && std::find(words.begin(), words.end(), kind.name) == words.end()) continue;
    const auto folder = std::filesystem::temp_directory_path() / fmt::format("levin_soak_{}", getpid());
    std::filesystem::create_directories(folder);
    const auto count = std::max<int64_t>(kReadings, static_cast<int64_t>(static_cast<double>(kind.count) * share));
    Readings readings(kind.name, count);
    kind.run(readings, count, folder);
    flat = readings.flat() && flat;
    std::filesystem::remove_all(folder);
  }
  return flat ? 0 : 1;
}
