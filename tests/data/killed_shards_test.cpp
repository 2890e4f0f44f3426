// Training on tar shards that is killed and goes on with other ranks: the order of samples is that of one run.

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/descriptor.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/tar_shards.h>
#include <levin/core/optim/sgd.h>

#include "../support/self_program.h"
#include "../support/tiny.h"
#include "reader_checks.h"
#include "tar_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace levin {
namespace {

constexpr int64_t kEpochs = 2;
constexpr int64_t kGlobalBatch = 6;
const std::vector<int64_t> kShardSizes{50, 31, 1, 77, 62};

struct RecorderOptions {
  std::string path = {};
  static void describe(Schema<RecorderOptions>& schema) {
    schema.field("path", &RecorderOptions::path, "where lines are appended");
  }
};

/// Writes down which samples each step of each rank had.
class Recorder : public Module {
 public:
  using Options = RecorderOptions;
  explicit Recorder(const Options& options)
      : layer_(register_module("layer", torch::nn::Linear(1, 1))),
        file_(::open(options.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {}

  StepOutput training_step(const Batch& batch, int64_t /*batch_idx*/) override {
    const at::Tensor number = batch["number"].contiguous();
    const std::vector<int64_t> numbers(number.const_data_ptr<int64_t>(),
                                       number.const_data_ptr<int64_t>() + number.numel());
    const std::string line =
        fmt::format("{} {} {}\n", trainer().global_step(), trainer().global_rank(), fmt::join(numbers, " "));
    // In one piece, and there even if the process is killed next.
    EXPECT_EQ(::write(file_.number(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
    return layer_(number.to(torch::kFloat).unsqueeze(1) / 100).square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-3});
  }

 private:
  torch::nn::Linear layer_;
  Descriptor file_;
};

/// Trains on the shards in `folder`, from the newest checkpoint of this record where there is one. `saves`: a
/// checkpoint after each step, of which each file is synced; only what is killed needs them.
void train_on_shards(const std::string& folder, int64_t ranks, const std::string& record, bool saves) {
  seed_everything(11);
  TrainerOptions options = testing::quiet(kEpochs);
  // Ranks that hang say where, before the test's time is over.
  options.strategy = Spec<Strategy>(Config::parse("{name: ddp_threads, hang_timeout: 90}", {}));
  options.devices = ranks;
  options.default_root_dir = folder;
  options.enable_checkpointing = saves;
  if (saves)
    options.callbacks = {make<ModelCheckpoint>(
        {.save_last = true, .every_n_train_steps = 1, .dirpath = folder + "/" + record + "_checkpoints"})};
  Trainer trainer(options);
  data::TarShardsOptions shards{.shards = {folder + "/shards"}, .fields = {{"number", "cls"}}, .shuffle_buffer = 20};
  shards.global_batch_size = kGlobalBatch;
  shards.num_workers = 2;
  const std::string last = folder + "/" + record + "_checkpoints/last";
  trainer.fit(make<Recorder>({.path = folder + "/" + record}), make<data::TarShards>(shards),
              std::filesystem::exists(last) ? last : "");
}

const testing::SelfProgram shard_training("tar_shards_training", [] {
  try {
    train_on_shards(std::getenv("LEVIN_TEST_FOLDER"), std::stoll(std::getenv("LEVIN_TEST_RANKS")), "killed",
                    /*saves=*/true);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
});

/// The samples of each step that all ranks wrote down, rank by rank. Steps that were taken again must be the same.
std::map<int64_t, std::vector<int64_t>> samples_of_steps(const std::string& text, int64_t ranks) {
  std::map<int64_t, std::map<int64_t, std::vector<int64_t>>> of_ranks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int64_t step = 0;
    int64_t rank = 0;
    words >> step >> rank;
    for (int64_t number = 0; words >> number;) of_ranks[step][rank].push_back(number);
  }
  std::map<int64_t, std::vector<int64_t>> found;
  for (const auto& [step, parts] : of_ranks) {
    if (std::ssize(parts) < ranks) continue;  // killed before the others wrote
    for (const auto& part : parts) found[step].insert(found[step].end(), part.second.begin(), part.second.end());
  }
  return found;
}

TEST(KilledTarShards, GoOnToTheSameOrderOfSamplesWithOtherRanks) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("shards"));
  int64_t number = 0;
  for (size_t shard = 0; shard < kShardSizes.size(); ++shard) {
    testing::TarWriter tar;
    for (int64_t i = 0; i < kShardSizes[shard]; ++i, ++number)
      tar.add(fmt::format("{:04}.cls", number), std::to_string(number));
    folder.write(fmt::format("shards/{}.tar", shard), tar.str());
  }
  train_on_shards(folder.path(), 1, "whole", /*saves=*/false);
  const auto whole = samples_of_steps(testing::read_text(folder.path("whole")), 1);
  // 221 samples: the last batch of an epoch has five, so that ranks have parts of different sizes.
  ASSERT_EQ(std::ssize(whole), kEpochs * ((number + kGlobalBatch - 1) / kGlobalBatch));
  ASSERT_EQ(whole.at(36).size(), 5U);

  std::map<int64_t, std::vector<int64_t>> seen;
  size_t before = 0;
  data::Generator moments(static_cast<uint64_t>(::getpid()), 0);
  const auto text = [&] {
    return std::filesystem::exists(folder.path("killed")) ? testing::read_text(folder.path("killed")).substr(before)
                                                          : "";
  };
  const auto compare = [&](int64_t ranks) {
    for (const auto& [step, samples] : samples_of_steps(text(), ranks)) {
      EXPECT_EQ(samples, whole.at(step)) << "step " << step;
      seen[step] = samples;
    }
    before += text().size();
  };
  for (const int64_t ranks : {2, 3}) {
    const int64_t lines = 8 + moments.below(40);
    SCOPED_TRACE(fmt::format("{} ranks, killed after {} lines", ranks, lines));
    testing::RunningProgram program(
        shard_training.words(),
        shard_training.options({{"LEVIN_TEST_FOLDER", folder.path()}, {"LEVIN_TEST_RANKS", std::to_string(ranks)}}));
    ASSERT_TRUE(program.wait_until([&] {
      const std::string written = text();
      return std::count(written.begin(), written.end(), '\n') >= lines;
    })) << program.err();
    program.send(SIGKILL);
    const auto ended = program.wait();
    EXPECT_EQ(ended.signal, SIGKILL) << ended.err;
    compare(ranks);
  }
  train_on_shards(folder.path(), 2, "killed", /*saves=*/false);
  compare(2);
  EXPECT_EQ(seen, whole);
}

}  // namespace
}  // namespace levin
