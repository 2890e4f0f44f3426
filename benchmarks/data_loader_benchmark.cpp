// Images a second of levin::DataLoader against torch::data::make_data_loader with Stack: two workers, batches of 64,
// data of Fashion-MNIST's shape in memory, per-example transforms (normalisation and random mirroring by the same
// tensor operations). Each side is written as its users write it: torch::data with Normalize and Stack, and a coin from
// torch::rand, since it gives its data sets no generator; Levin with the generator that `get` is given. A second
// torch::data row draws the coin from a std::mt19937 of each thread instead, which is faster but can be neither seeded
// nor resumed. Nothing consumes the batches, so this is the most that each can deliver.

#include "measure.h"

#include <levin/core/data/byte_images.h>
#include <levin/core/data/data_loader.h>

#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using levin::benchmarks::median;

constexpr int64_t kNumImages = 6'400;
constexpr int64_t kBatchSize = 64;
constexpr int64_t kNumWorkers = 2;
constexpr double kMean = 0.2860;
constexpr double kStd = 0.3530;
// Repetitions of all benchmarks are run in turns, so that other load on the machine meets them alike.
constexpr int kRepetitions = 15;

struct Source {
  torch::Tensor bytes = torch::randint(256, {kNumImages, 1, 28, 28}, torch::kByte);
  torch::Tensor images = bytes.to(torch::kFloat) / 255;
  torch::Tensor labels = torch::randint(10, {kNumImages}, torch::kLong);
};

const Source& source() {
  static const Source made;
  return made;
}

class TorchExamples : public torch::data::datasets::Dataset<TorchExamples> {
 public:
  torch::data::Example<> get(size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {source().images[row], source().labels[row]};
  }
  std::optional<size_t> size() const override { return kNumImages; }
};

class TorchMirror : public torch::data::transforms::TensorTransform<torch::Tensor> {
 public:
  explicit TorchMirror(bool own_coin) : own_coin_(own_coin) {}
  torch::Tensor operator()(torch::Tensor image) override { return tails() ? image.flip(2) : image; }

 private:
  bool tails() const {
    if (!own_coin_) return torch::rand({1}).item<float>() < 0.5F;
    static thread_local std::mt19937 engine{std::random_device{}()};
    return (engine() & 1) == 1;
  }

  bool own_coin_;
};

class LevinExamples : public levin::data::Dataset {
 public:
  int64_t size() const override { return kNumImages; }
  levin::Batch get(int64_t index, levin::data::Generator& generator) const override {
    auto image = source().images[index].sub(mean_).div(std_);
    if (generator.below(2) == 1) image = image.flip(2);
    return {{"image", image}, {"label", source().labels[index]}};
  }

 private:
  torch::Tensor mean_ = torch::full({1, 1, 1}, kMean);
  torch::Tensor std_ = torch::full({1, 1, 1}, kStd);
};

/// Counts images a second of real time, and the page faults that a batch costs.
class Count {
 public:
  explicit Count(benchmark::State& state) : state_(state), faults_(page_faults()) {}
  ~Count() {
    const auto batches = static_cast<double>(state_.iterations()) * (static_cast<double>(kNumImages) / kBatchSize);
    state_.SetItemsProcessed(state_.iterations() * kNumImages);
    state_.counters["page_faults_a_batch"] = static_cast<double>(page_faults() - faults_) / batches;
  }

 private:
  static int64_t page_faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  }
  benchmark::State& state_;
  int64_t faults_;
};

void read_torch(benchmark::State& state, bool own_coin) {
  source();
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      TorchExamples()
          .map(torch::data::transforms::Normalize<>(kMean, kStd))
          .map(TorchMirror(own_coin))
          .map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(kBatchSize).workers(kNumWorkers));
  const Count count(state);
  for (auto _ : state)
    for (auto& batch : *loader) benchmark::DoNotOptimize(batch.data.const_data_ptr());
}

void torch_stack(benchmark::State& state) { read_torch(state, false); }
void torch_stack_own_coin(benchmark::State& state) { read_torch(state, true); }

void read_levin(benchmark::State& state, const std::shared_ptr<const levin::data::Dataset>& dataset,
                int64_t num_workers) {
  const levin::DataLoader loader(dataset, {.batch_size = kBatchSize, .shuffle = true, .num_workers = num_workers});
  int64_t epoch = 0;
  const Count count(state);
  for (auto _ : state) {
    auto pass = loader.pass({.seed = 1, .epoch = epoch++});
    while (auto batch = pass.next()) benchmark::DoNotOptimize((*batch)["image"].const_data_ptr());
  }
}

void levin_examples(benchmark::State& state) {
  source();
  read_levin(state, std::make_shared<LevinExamples>(), kNumWorkers);
}

void levin_batches(benchmark::State& state) {
  const auto dataset = std::make_shared<levin::data::ByteImages>(
      source().bytes, source().labels,
      levin::data::ByteImagesOptions{.mean = {kMean}, .std = {kStd}, .flip = true, .max_shift = 0});
  read_levin(state, dataset, state.range(0));
}

void configure(benchmark::internal::Benchmark* made) {
  made->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(0.05)->Repetitions(kRepetitions);
}

BENCHMARK(torch_stack)->Apply(configure);
BENCHMARK(torch_stack_own_coin)->Apply(configure);
BENCHMARK(levin_examples)->Apply(configure);
BENCHMARK(levin_batches)->ArgName("workers")->Arg(0)->Arg(kNumWorkers)->Apply(configure);

/// Prints the medians of all repetitions and how they compare, instead of each repetition.
class MedianReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const auto& run : runs)
      if (run.run_type == Run::RT_Iteration) add(run);
  }
  void Finalize() override {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.name < b.name; });
    std::printf("%-26s %16s %16s %20s\n", "median of repetitions", "images/s", "CPU us an image",
                "page faults a batch");
    for (const auto& row : rows_)
      std::printf("%-26s %16.0f %16.2f %20.2f\n", row.name.c_str(), median(row.rates), median(row.cpu),
                  median(row.faults));
    for (const char* base : {"torch_stack", "torch_stack_own_coin"}) {
      const auto torch = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.name == base; });
      if (torch == rows_.end()) continue;
      for (const auto& row : rows_)
        if (row.name.rfind("levin", 0) == 0)
          std::printf("ratio %s : %s = %.2f\n", row.name.c_str(), base, median(row.rates) / median(torch->rates));
    }
  }

 private:
  struct Row {
    std::string name;
    std::vector<double> rates;
    std::vector<double> cpu;
    std::vector<double> faults;
  };

  void add(const Run& run) {
    const std::string name = run.run_name.function_name + (run.run_name.args.empty() ? "" : "/" + run.run_name.args);
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& known) { return known.name == name; });
    if (row == rows_.end()) row = rows_.insert(rows_.end(), Row{.name = name, .rates = {}, .cpu = {}, .faults = {}});
    row->rates.push_back(run.counters.at("items_per_second"));
    row->cpu.push_back(run.cpu_accumulated_time * 1e6 / (static_cast<double>(run.iterations) * kNumImages));
    row->faults.push_back(run.counters.at("page_faults_a_batch"));
  }

  std::vector<Row> rows_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string in_turns = "--benchmark_enable_random_interleaving=true";
  arguments.insert(arguments.begin() + 1, in_turns.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  torch::set_num_threads(1);
  MedianReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}
