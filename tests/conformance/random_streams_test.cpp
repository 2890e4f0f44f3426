#include "tests/conformance/strategy_case.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>

#include <gtest/gtest.h>

#include <barrier>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

/// What ranks that are threads have drawn, by batch and rank.
class Draws {
 public:
  using ByRank = std::map<int64_t, double>;

  static void note(int64_t batch, int64_t rank, double value) {
    const std::lock_guard lock(mutex());
    all()[batch][rank] = value;
  }
  static std::map<int64_t, ByRank> take() {
    const std::lock_guard lock(mutex());
    return std::exchange(all(), {});
  }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<int64_t, ByRank>& all() {
    static std::map<int64_t, ByRank> all;
    return all;
  }
};

/// Adds noise to its input, and draws wherever user code may.
class NoisyNet : public Net {
 public:
  explicit NoisyNet(const Options& options) : Net(options) {}

  void setup(Stage) override { at::rand({3}); }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const at::Tensor noise = at::rand({1});
    Draws::note(trainer().total_batches(), trainer().global_rank(), noise.item<double>());
    Batch noisy = batch;
    noisy.set("x", batch["x"] + noise);
    return Net::training_step(noisy, batch_idx);
  }
};

struct NoisyRun {
  Outcome outcome;
  std::map<int64_t, Draws::ByRank> draws;
};

NoisyRun train_noisy(const StrategyCase& on, const std::function<void(TrainerOptions&)>& configure,
                     const std::string& ckpt = "") {
  seed_everything(ckpt.empty() ? 7 : 12345);  // a resumed run takes its random numbers from the checkpoint
  Draws::take();
  const auto module = make<NoisyNet>({.dropout = 0.3});
  const TrainingRun run{.configure = configure};
  Trainer trainer(trainer_options(run, on));
  trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .num_workers = 1, .global_batch_size = 8}), {},
              ckpt);
  NoisyRun result;
  for (const auto& weight : weights(*module)) result.outcome.weights.push_back(weight.clone());
  result.outcome.metrics = trainer.callback_metrics();
  if (Checkpointer* checkpointer = trainer.checkpoint_callback())
    result.outcome.last_checkpoint = checkpointer->last_model_path();
  result.draws = Draws::take();
  return result;
}

// ---- Checkpoints of other layouts

/// The part of the data that a rank of a case trains on, and how many there are.
struct Layout {
  StrategyCase on;
  int64_t data_ranks;
  /// Stages of a pipeline are groups of neighbours.
  int64_t data_rank(int64_t rank) const { return rank % data_ranks; }
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> layouts = {
      {{"ddp_threads", 4}, 4},
      {{"ddp_threads", 2}, 2},
      {{"sharded_threads", 4, 3}, 4},
      {{"sharded_threads", 4, 2, "shard_group: 2"}, 4},
      {{"pipeline_threads", 4, 0, "micro_batches: 2"}, 1},
      {{"pipeline_threads", 2, 0, "micro_batches: 2"}, 1},
      {{"pipeline_threads", 4, 0, "data_parallel: 2, micro_batches: 2"}, 2},
      {{"pipeline_threads", 4, 0, "data_parallel: 4, shard_optimizer: true, micro_batches: 1"}, 4},
      {{"parameter_server_threads", 4, 0, "servers: 2"}, 4},
      {{"single_device", 1}, 1},
  };
  return layouts;
}

constexpr int64_t kSavedSteps = 7;

/// Saves after kSavedSteps. `older`: as before checkpoints said which part of the data a rank had.
auto stop_and_save(const std::string& root, bool older) {
  return [root, older](TrainerOptions& options) {
    options.max_steps = kSavedSteps;
    options.enable_checkpointing = true;
    options.default_root_dir = root;
    options.callbacks = {make<ModelCheckpoint>({.save_last = true})};
    if (!older) return;
    options.callbacks.push_back(make<LambdaCallback>({.on_save_checkpoint = [](Trainer&, Module&, State& tree) {
      for (State& rank : tree["ranks"].as_list())
        std::erase_if(rank.as_map(), [](const auto& item) { return item.first == "data_parallel"; });
    }}));
  };
}

/// Equal along a pipeline, distinct along the data.
void expect_streams_of(const Layout& layout, const std::map<int64_t, Draws::ByRank>& draws, const std::string& what) {
  ASSERT_FALSE(draws.empty()) << what;
  for (const auto& [batch, by_rank] : draws) {
    std::map<int64_t, std::set<double>> by_part;
    std::set<double> all;
    for (const auto& [rank, value] : by_rank) {
      by_part[layout.data_rank(rank)].insert(value);
      all.insert(value);
    }
    EXPECT_EQ(std::ssize(by_part), layout.data_ranks) << what << ", batch " << batch;
    for (const auto& [part, values] : by_part) EXPECT_EQ(values.size(), 1U) << what << ", batch " << batch;
    EXPECT_EQ(std::ssize(all), layout.data_ranks) << what << ", batch " << batch;
  }
}

/// One of each kind.
std::vector<Layout> some_layouts() { return {layouts()[0], layouts()[4], layouts()[6], layouts()[9]}; }

void expect_resumed_streams_of_the_layout(const std::vector<Layout>& of_checkpoints, bool older) {
  for (const Layout& saved : of_checkpoints) {
    const NoisyRun part = train_noisy(saved.on, stop_and_save(fresh_folder("streams"), older));
    const NoisyRun whole = train_noisy(saved.on, {});
    for (const Layout& now : layouts()) {
      std::ostringstream text;
      text << saved.on << " resumed as " << now.on;
      NoisyRun resumed = train_noisy(now.on, {}, part.outcome.last_checkpoint);
      std::erase_if(resumed.draws, [](const auto& item) { return item.first < kSavedSteps; });  // a pipeline measures
      expect_streams_of(now, resumed.draws, text.str());
      // A pipeline draws in another order.
      if (now.data_ranks != saved.data_ranks || now.on.is_pipeline() != saved.on.is_pipeline()) continue;
      for (const auto& [batch, by_rank] : resumed.draws)
        for (const auto& [rank, value] : by_rank) {
          const int64_t counterpart = now.data_rank(rank);
          EXPECT_EQ(value, whole.draws.at(batch).at(counterpart)) << text.str() << ", batch " << batch;
        }
    }
  }
}

TEST(ResumedStreams, FollowThePartOfTheData) { expect_resumed_streams_of_the_layout(layouts(), /*older=*/false); }

TEST(ResumedStreams, OfOlderCheckpointsFollowThePartOfTheDataToo) {
  expect_resumed_streams_of_the_layout(some_layouts(), /*older=*/true);
}

TEST(ResumedMetrics, OfAnEpochCountEveryBatchUnderAnotherLayout) {
  const auto two_epochs = [](const std::string& ckpt, const StrategyCase& on,
                             const std::function<void(TrainerOptions&)>& configure) {
    return train({.configure = configure, .ckpt = ckpt}, on);
  };
  const double expected = two_epochs("", {"single_device", 1}, {}).metrics.at("train_loss_epoch");
  for (const Layout& saved : some_layouts()) {
    const Outcome part = two_epochs("", saved.on, stop_and_save(fresh_folder("streams"), /*older=*/false));
    for (const Layout& now : layouts()) {
      const Outcome resumed = two_epochs(part.last_checkpoint, now.on, {});
      EXPECT_NEAR(resumed.metrics.at("train_loss_epoch"), expected, 1e-5) << saved.on << " resumed as " << now.on;
    }
  }
}

// ---- Ways to start ranks

void expect_same(const NoisyRun& one, const NoisyRun& other, const std::string& what) {
  EXPECT_EQ(difference(one.outcome.weights, other.outcome.weights, 0), "") << what;
  EXPECT_EQ(one.outcome.metrics, other.outcome.metrics) << what;
}

TEST(StartedRanks, DrawTheSameNumbersAsThreadsAndAsProcesses) {
  for (const auto& [family, further] : std::vector<std::pair<std::string, StrategyCase>>{
           {"ddp", {"", 4}},
           {"sharded", {"", 2, 3}},
           {"sharded", {"", 4, 2, "shard_group: 2"}},
           {"pipeline", {"", 2, 0, "balance_by: parameters, micro_batches: 2"}},
           {"pipeline", {"", 4, 0, "balance_by: parameters, data_parallel: 2, micro_batches: 2"}},
           {"parameter_server", {"", 2, 0, "servers: 2"}}}) {
    const std::string names[] = {family + "_threads", family + "_spawn"};
    StrategyCase threads = further;
    threads.strategy = names[0].c_str();
    StrategyCase processes = further;
    processes.strategy = names[1].c_str();
    const NoisyRun as_threads = train_noisy(threads, {});
    expect_same(train_noisy(threads, {}), as_threads, names[0] + " again");
    expect_same(train_noisy(processes, {}), as_threads, names[1]);
  }
}

/// A later call goes on where rank 0's numbers were.
TEST(StartedRanks, LeaveTheSameRandomState) {
  std::vector<at::Tensor> after;
  for (const char* strategy : {"ddp_threads", "ddp_spawn"}) {
    train_noisy({strategy, 2}, {});
    after.push_back(at::rand({4}));
  }
  EXPECT_TRUE(at::equal(after[0], after[1]));
}

// ---- Trainers in threads

/// Two fits, of different lengths, with what the program draws after each.
std::vector<at::Tensor> fit_twice(const std::shared_ptr<Module>& module, bool draws_after = true) {
  std::vector<at::Tensor> result;
  for (const int64_t epochs : {1, 2}) {
    Trainer trainer(trainer_options({.epochs = epochs}, {"single_device", 1}));
    trainer.fit(module, DataLoader(tiny_dataset(40), {.batch_size = 4, .shuffle = true}));
    for (const auto& weight : weights(*module)) result.push_back(weight.clone());
    if (draws_after) result.push_back(at::rand({2}));
  }
  return result;
}

std::shared_ptr<Module> seeded_net(uint64_t seed) {
  seed_everything(seed);
  return make<NoisyNet>({.dropout = 0.5});
}

TEST(TrainersInThreads, DrawAsIfAlone) {
  const auto expected = fit_twice(seeded_net(7), /*draws_after=*/false);
  // The same state of the generator for all.
  std::vector<std::shared_ptr<Module>> modules;
  for (int i = 0; i < 3; ++i) modules.push_back(seeded_net(7));
  std::vector<std::vector<at::Tensor>> got(3);
  std::barrier start(3);
  const auto work = [&](size_t index) {
    start.arrive_and_wait();
    // Outside of calls this thread draws from the generator that others may be about to begin with.
    got[index] = fit_twice(modules[index], /*draws_after=*/false);
  };
  std::thread second(work, 1);
  std::thread third(work, 2);
  work(0);
  second.join();
  third.join();
  for (const auto& of_thread : got) EXPECT_EQ(difference(of_thread, expected, 0), "");
}

TEST(TrainersInThreads, DrawAsIfAloneOneAfterTheOther) {
  const auto expected = fit_twice(seeded_net(7));
  std::vector<std::shared_ptr<Module>> modules;
  for (int i = 0; i < 3; ++i) modules.push_back(seeded_net(7));
  for (const auto& module : modules) {
    std::vector<at::Tensor> got;
    std::thread([&] { got = fit_twice(module); }).join();
    EXPECT_EQ(difference(got, expected, 0), "");
  }
}

/// Seeds and makes its module while others train.
TEST(TrainersInThreads, HaveSeedsOfTheirOwn) {
  const std::vector<uint64_t> seeds = {7, 8, 9};
  std::vector<std::vector<at::Tensor>> expected;
  for (const uint64_t seed : seeds) expected.push_back(fit_twice(seeded_net(seed)));
  EXPECT_NE(difference(expected[0], expected[1], 0), "");
  std::vector<std::vector<at::Tensor>> got(seeds.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seeds.size(); ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) got[i] = fit_twice(seeded_net(seeds[i]));
    });
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < seeds.size(); ++i) EXPECT_EQ(difference(got[i], expected[i], 0), "") << "seed " << seeds[i];
}

/// With ranks of its own, as threads and as forks.
TEST(TrainersInThreads, GiveRanksTheirNumbers) {
  for (const char* strategy : {"ddp_threads", "ddp_spawn"}) {
    const auto fit = [&](const std::shared_ptr<Module>& module) {
      Trainer trainer(trainer_options({}, {strategy, 2}));
      trainer.fit(module, DataLoader(tiny_dataset(40), {.shuffle = true, .global_batch_size = 8}));
      std::vector<at::Tensor> result;
      for (const auto& weight : weights(*module)) result.push_back(weight.clone());
      return result;
    };
    const auto expected = fit(seeded_net(7));
    seed_everything(1);
    std::vector<at::Tensor> got;
    std::thread([&] { got = fit(seeded_net(7)); }).join();
    EXPECT_EQ(difference(got, expected, 0), "") << strategy;
  }
}

/// A single trainer draws from LibTorch's default generator, which user code may seed at any time.
TEST(TrainersInThreads, FollowManualSeedWhereThereIsOne) {
  std::vector<double> drawn;
  seed_everything(7);
  TrainingRun run{.epochs = 1};
  run.configure = [&](TrainerOptions& options) {
    options.callbacks = {make<LambdaCallback>({.on_train_batch_start = [&](Trainer&, Module&, const Batch&, int64_t) {
      at::manual_seed(3);
      drawn.push_back(at::rand({1}).item<double>());
    }})};
  };
  train_on_one_device(run);
  ASSERT_EQ(drawn.size(), 5U);
  EXPECT_EQ(std::set<double>(drawn.begin(), drawn.end()).size(), 1U);
}

}  // namespace
}  // namespace levin::testing
