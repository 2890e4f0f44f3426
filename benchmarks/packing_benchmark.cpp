/// Training on packed rows against other ways to make batches of documents of different lengths: padded rows in random
/// order, padded rows sorted by length, and rows without padding, each of one document. Prints processor time for each
/// thousand tokens that are learned, the share of padding, and the ratios of the medians' runs to packed rows.
///
///   build/bin/packing_benchmark FOLDER [rounds] [documents]        FOLDER: of a language model, with config.json

#include "measure.h"
#include "run_in_turns.h"

#include <levin/core/data/documents/packed_rows.h>
#include <levin/core/data/length_grouped_sampler.h>
#include <levin/levin.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;
using levin::data::RowPacker;

constexpr int64_t kContext = 1024;
constexpr int64_t kTokensOfBatch = 4 * kContext;

/// Log-normal, as the lengths of chats are: a median of 180 tokens and a mean of 260.
std::vector<int64_t> lengths_of(int64_t documents) {
  torch::manual_seed(1);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < documents; ++i)
    lengths.push_back(
        std::min<int64_t>(kContext, 8 + static_cast<int64_t>(180 * std::exp(0.9 * torch::randn({}).item<double>()))));
  return lengths;
}

/// Rows of documents, padded to the longest of a batch.
class Rows : public levin::data::Dataset {
 public:
  Rows(std::vector<RowPacker::Row> rows, int64_t vocabulary) : rows_(std::move(rows)), vocabulary_(vocabulary) {}
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  levin::Batch get_batch(std::span<const int64_t> indices, levin::data::Generator&) const override {
    const auto count = static_cast<int64_t>(indices.size());
    int64_t width = 0;
    for (const int64_t index : indices) width = std::max(width, length(rows_[static_cast<size_t>(index)]));
    at::Tensor tokens = torch::randint(vocabulary_, {count, width});
    at::Tensor positions = torch::full({count, width}, -1, at::kLong);
    at::Tensor next = torch::full({count, width}, -100, at::kLong);
    for (int64_t row = 0; row < count; ++row) {
      int64_t at = 0;
      for (const RowPacker::Piece& piece : rows_[static_cast<size_t>(indices[static_cast<size_t>(row)])]) {
        const auto size = static_cast<int64_t>(piece.size());
        positions[row].narrow(0, at, size).copy_(torch::arange(size));
        next[row].narrow(0, at, size).copy_(torch::randint(vocabulary_, {size}));
        at += size;
      }
    }
    return {{"tokens", tokens}, {"next", next}, {"positions", positions}};
  }
  static int64_t length(const RowPacker::Row& row) {
    int64_t sum = 0;
    for (const RowPacker::Piece& piece : row) sum += static_cast<int64_t>(piece.size());
    return sum;
  }

 private:
  std::vector<RowPacker::Row> rows_;
  int64_t vocabulary_;
};

/// Leaves out the first steps, in which memory is taken.
struct Counted : levin::Callback {
  static constexpr int64_t kWarmUp = 2;
  void on_train_batch_start(levin::Trainer&, levin::Module&, const levin::Batch& batch, int64_t batch_idx) override {
    if (batch_idx == kWarmUp) started = processor_seconds();
    if (batch_idx < kWarmUp) return;
    learned += batch["next"].ne(-100).sum().item<int64_t>();
    places += batch["next"].numel();
  }
  void on_train_end(levin::Trainer&, levin::Module&) override { seconds = processor_seconds() - started; }
  double started = 0;
  double seconds = 0;
  int64_t learned = 0;
  int64_t places = 0;
};

RowPacker::Piece piece_of(int64_t length) { return RowPacker::Piece(static_cast<size_t>(length), {0, 0}); }

std::vector<RowPacker::Row> one_by_one(const std::vector<int64_t>& lengths) {
  std::vector<RowPacker::Row> rows;
  for (const int64_t length : lengths) rows.push_back({piece_of(length)});
  return rows;
}

std::shared_ptr<Counted> train(const std::string& folder, const std::string& how, int64_t documents) {
  at::set_num_threads(1);
  levin::seed_everything(0);
  auto module = std::make_shared<levin::CausalLm>(levin::CausalLmOptions{.path = folder, .pretrained = false});
  auto lengths = lengths_of(documents);
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  int64_t batch_size = kTokensOfBatch / kContext;
  std::vector<RowPacker::Row> rows;
  std::shared_ptr<const levin::data::Sampler> sampler;
  if (how == "packed") {
    RowPacker packer(kContext);
    std::vector<RowPacker::Piece> window;
    for (const int64_t length : lengths) window.push_back(piece_of(length));
    rows = packer.add(std::move(window));
    for (auto& row : packer.finish()) rows.push_back(std::move(row));
  } else if (how == "full") {
    rows = one_by_one(std::vector<int64_t>(static_cast<size_t>(tokens / kContext), kContext));
  } else {
    rows = one_by_one(lengths);
    batch_size = kTokensOfBatch * documents / tokens;
    if (how == "sorted")
      sampler = std::make_shared<levin::data::LengthGroupedSampler>(
          lengths, levin::data::LengthGroupedSamplerOptions{.group_size = batch_size});
  }
  const auto counted = std::make_shared<Counted>();
  levin::TrainerOptions options;
  options.max_epochs = 1;
  options.accelerator = "cpu";
  options.optimizer = levin::Spec<levin::optim::NamedOptimizer>(levin::Config::parse("{name: adamw, lr: 1.0e-4}", {}));
  options.barebones = true;
  options.callbacks = {counted};
  levin::Trainer trainer(options);
  const auto data = std::make_shared<Rows>(std::move(rows), module->model()->options().vocabulary);
  trainer.fit(module, levin::DataLoader(std::shared_ptr<const levin::data::Dataset>(data), {.batch_size = batch_size},
                                        sampler));
  return counted;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--variant") {
    const auto counted = train(argv[2], argv[3], std::atoll(argv[4]));
    std::printf("%g %g\n", 1e3 * counted->seconds / static_cast<double>(counted->learned),
                1 - static_cast<double>(counted->learned) / static_cast<double>(counted->places));
    return 0;
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: packing_benchmark FOLDER [rounds] [documents]\n");
    return 2;
  }
  const int64_t rounds = argc > 2 ? std::atoll(argv[2]) : 3;
  const std::string documents = argc > 3 ? argv[3] : "200";
  const std::vector<std::string> ways = {"packed", "full", "sorted", "padded"};
  std::vector<std::vector<double>> seconds(ways.size()), ratios(ways.size());
  std::vector<double> padding(ways.size());
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < ways.size(); ++i) {
      const std::string command =
          std::string(argv[0]) + " --variant " + argv[1] + " " + ways[i] + " " + documents + " 2>/dev/null";
      FILE* const pipe = popen(command.c_str(), "r");
      double own = 0;
      if (pipe == nullptr || std::fscanf(pipe, "%lf %lf", &own, &padding[i]) != 2) {
        std::fprintf(stderr, "failed: %s\n", command.c_str());
        return 1;
      }
      pclose(pipe);
      seconds[i].push_back(own);
      ratios[i].push_back(seconds[0].back() / own);
    }
  for (size_t i = 0; i < ways.size(); ++i)
    std::printf("%s: %.1f ms for a thousand tokens, %.2f %% padding; packed rows take %.3f of it\n", ways[i].c_str(),
                1e3 * median(seconds[i]), 1e2 * padding[i], median(ratios[i]));
  return 0;
}
