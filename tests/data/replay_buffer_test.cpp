// A replay buffer draws as often as it says, sums up rewards as a loop over episodes does, and is saved so that a
// resumed run draws what an uninterrupted one does.

#include "../support/tiny.h"
#include "reader_checks.h"

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/replay_buffer.h>
#include <levin/core/data/sum_tree.h>
#include <levin/core/engine/engine.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using data::Generator;
using data::ReplayBuffer;
using data::ReplayBufferOptions;
using data::ReplaySampling;
using ::testing::AllOf;
using testing::fresh_folder;
using ::testing::HasSubstr;
using testing::identical;
using testing::message_of;
using testing::quiet;
using testing::TinyModule;
using testing::TinyOptions;
using testing::weights;

Batch numbered(int64_t from, int64_t count) {
  return {{"number", torch::arange(from, from + count)}, {"reward", torch::arange(from, from + count).to(at::kFloat)}};
}

std::vector<int64_t> whole_numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous().reshape(-1);
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

/// What get_batch draws for the first `count` places of an epoch.
Batch draw(const ReplayBuffer& buffer, int64_t count, uint64_t seed = 11, int64_t epoch = 2) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  Generator generator(seed, epoch);
  return buffer.get_batch(indices, generator);
}

TEST(SumTree, FindsWhatALinearSearchFinds) {
  for (const int64_t size : {1, 2, 3, 7, 8, 100}) {
    Generator random(4, size);
    data::SumTree tree(size);
    std::vector<double> values(static_cast<size_t>(size), 0.0);
    for (int64_t i = 0; i < 3 * size; ++i) {
      const int64_t at = random.below(size);
      values[static_cast<size_t>(at)] =
          random.below(4) == 0 ? 0.0 : static_cast<double>(random.below(16));  // exact sums
      tree.set(at, values[static_cast<size_t>(at)]);
    }
    const double total = std::accumulate(values.begin(), values.end(), 0.0);
    EXPECT_EQ(tree.total(), total);
    for (double target = 0; target < total; target += 0.25) {
      size_t expected = 0;
      for (double sum = values[0]; sum <= target; sum += values[++expected]) {
      }
      EXPECT_EQ(tree.find(target), static_cast<int64_t>(expected)) << size << " at " << target;
    }
  }
}

TEST(SumTree, NeverFindsAZero) {
  data::SumTree tree(6);
  tree.set(1, 0.1);
  tree.set(3, 0.2);
  EXPECT_EQ(tree.find(std::nextafter(tree.total(), 0.0)), 3);
  EXPECT_EQ(tree.find(tree.total()), 3);
  EXPECT_EQ(tree.find(0), 1);
}

TEST(ReplayBuffer, KeepsTheNewestSteps) {
  ReplayBuffer buffer({.capacity = 10});
  EXPECT_EQ(buffer.num_steps(), 0);
  for (int64_t from = 0; from < 24; from += 4) buffer.add(numbered(from, 4));
  EXPECT_EQ(buffer.num_steps(), 10);
  EXPECT_EQ(buffer.num_added(), 24);
  std::set<int64_t> seen;
  for (int i = 0; i < 50; ++i) {
    const Batch batch = buffer.sample(10);
    EXPECT_TRUE(batch["index"].equal(batch["number"]));
    for (const int64_t number : whole_numbers(batch["number"])) seen.insert(number);
  }
  EXPECT_EQ(seen, (std::set<int64_t>{14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
}

TEST(ReplayBuffer, DrawsEachStepAsOftenAsAnyOther) {
  ReplayBuffer buffer({.capacity = 8});
  buffer.add(numbered(0, 8));
  std::vector<int64_t> counts(8, 0);
  constexpr int64_t kDraws = 4000;
  for (int64_t i = 0; i < kDraws; ++i)
    for (const int64_t number : whole_numbers(buffer.sample(4)["number"])) ++counts[static_cast<size_t>(number)];
  double chi_square = 0;
  for (const int64_t count : counts)
    chi_square += std::pow(static_cast<double>(count) - kDraws / 2.0, 2) / (kDraws / 2.0);
  EXPECT_LT(chi_square, 24.3);  // of 7 degrees of freedom: 1 in 1000 is above
}

struct PrioritizedCase {
  int64_t capacity, added, count;
  double alpha, beta;
  std::vector<int64_t> numbers;
  std::vector<double> weights;
};

TEST(ReplayBuffer, DrawsByPriorityAsNumPyDoes) {
  const std::vector<PrioritizedCase> cases = {
#include "../oracles/prioritized_replay.inc"
  };
  for (const PrioritizedCase& item : cases) {
    ReplayBuffer buffer({.capacity = item.capacity,
                         .sampling = ReplaySampling::kPrioritized,
                         .alpha = item.alpha,
                         .beta = 0.9,
                         .epsilon = 0.01});
    buffer.set_beta(item.beta);
    for (int64_t number = 0; number < item.added; ++number) {
      buffer.add(numbered(number, 1));
      if (number % 7 != 0)
        buffer.update_priorities(torch::tensor({number}),
                                 torch::tensor({3 * std::sin(1.7 * static_cast<double>(number))}, at::kDouble));
    }
    const Batch batch = draw(buffer, item.count);
    EXPECT_EQ(whole_numbers(batch["index"]), item.numbers) << item.capacity;
    EXPECT_EQ(whole_numbers(batch["number"]), item.numbers) << item.capacity;
    ASSERT_EQ(batch["weight"].scalar_type(), at::kFloat);
    EXPECT_TRUE(batch["weight"].allclose(torch::tensor(item.weights).to(at::kFloat), 1e-6, 0)) << batch["weight"];
  }
}

TEST(ReplayBuffer, LeavesOutPrioritiesOfStepsThatAreGone) {
  ReplayBuffer buffer({.capacity = 4, .sampling = ReplaySampling::kPrioritized, .alpha = 1});
  buffer.add(numbered(0, 4));
  const Batch batch = buffer.sample(4);
  buffer.add(numbered(4, 4));
  buffer.update_priorities(batch["index"], torch::full({4}, 1e-9));
  EXPECT_EQ(draw(buffer, 4)["weight"].min().item<float>(), 1.0F);  // all as before
  buffer.update_priorities(torch::tensor({5}), torch::tensor({-97.0}));
  int64_t of_five = 0;
  for (int i = 0; i < 100; ++i) of_five += (buffer.sample(1)["index"] == 5).sum().item<int64_t>();
  EXPECT_GT(of_five, 85);
}

// ---- Several steps

/// Episodes of known rewards, their steps interleaved over several writers.
struct Story {
  struct Step {
    int64_t writer, number;
    double reward;
    bool terminated, truncated;
    int64_t observation, next_observation;
  };
  std::vector<Step> steps;

  static Story make(int64_t writers, int64_t rounds) {
    Generator random(9, writers);
    Story story;
    std::vector<int64_t> observation(static_cast<size_t>(writers), 0);
    for (int64_t round = 0; round < rounds; ++round)
      for (int64_t writer = 0; writer < writers; ++writer) {
        auto& now = observation[static_cast<size_t>(writer)];
        const int64_t end = random.below(8);
        const int64_t unit = 10'000 * writer;
        story.steps.push_back(
            {writer, std::ssize(story.steps), random.uniform(), end == 0, end == 1, unit + now, unit + now + 1});
        now += end <= 1 ? 100 : 1;
      }
    return story;
  }
  Batch batch(int64_t from, int64_t count) const {
    Batch batch{{"observation", torch::empty({count, 1}, at::kLong)},
                {"next_observation", torch::empty({count, 1}, at::kLong)},
                {"reward", torch::empty({count})},
                {"terminated", torch::empty({count}, at::kBool)},
                {"truncated", torch::empty({count}, at::kBool)}};
    for (int64_t i = 0; i < count; ++i) {
      const Step& step = steps[static_cast<size_t>(from + i)];
      batch["observation"][i] = step.observation;
      batch["next_observation"][i] = step.next_observation;
      batch["reward"][i] = step.reward;
      batch["terminated"][i] = step.terminated;
      batch["truncated"][i] = step.truncated;
    }
    return batch;
  }
};

TEST(ReplayBuffer, SumsUpRewardsAsALoopOverEpisodesDoes) {
  for (const int64_t writers : {1, 3})
    for (const int64_t n_step : {1, 2, 5}) {
      const Story story = Story::make(writers, 40);
      ReplayBuffer buffer({.capacity = 50, .n_step = n_step, .discount = 0.9});
      for (int64_t from = 0; from < std::ssize(story.steps); from += writers) buffer.add(story.batch(from, writers));
      int64_t ended = 0, cut_off = 0, whole = 0;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const Batch batch = draw(buffer, 30, seed);
        for (int64_t i = 0; i < 30; ++i) {
          const auto start = batch["index"][i].item<int64_t>();
          const auto& first = story.steps[static_cast<size_t>(start)];
          double reward = 0, discount = 1;
          const Story::Step* last = nullptr;
          int64_t summed = 0;
          for (int64_t at = start; at < std::ssize(story.steps) && summed < n_step; ++at) {
            const auto& step = story.steps[static_cast<size_t>(at)];
            if (step.writer != first.writer) continue;
            reward += discount * static_cast<double>(static_cast<float>(step.reward));
            discount *= 0.9;
            last = &step;
            ++summed;
            if (step.terminated) discount = 0;
            if (step.terminated || step.truncated) break;
          }
          ended += last->terminated;
          cut_off += last->truncated;
          whole += summed == n_step;
          EXPECT_EQ(batch["observation"][i].item<int64_t>(), first.observation);
          EXPECT_EQ(batch["next_observation"][i].item<int64_t>(), last->next_observation);
          EXPECT_EQ(batch["terminated"][i].item<bool>(), last->terminated);
          EXPECT_EQ(batch["truncated"][i].item<bool>(), last->truncated);
          EXPECT_FLOAT_EQ(batch["reward"][i].item<float>(), static_cast<float>(reward));
          EXPECT_FLOAT_EQ(batch["discount"][i].item<float>(), static_cast<float>(discount));
        }
      }
      EXPECT_GT(ended, 0);
      EXPECT_GT(cut_off, 0);
      EXPECT_GT(whole, 0);
    }
}

TEST(ReplayBuffer, DrawsWholeEpisodes) {
  for (const int64_t writers : {1, 3}) {
    const Story story = Story::make(writers, 60);
    std::vector<std::vector<Story::Step>> episodes;  // that have ended
    std::vector<std::vector<Story::Step>> open(static_cast<size_t>(writers));
    for (const auto& step : story.steps) {
      auto& episode = open[static_cast<size_t>(step.writer)];
      episode.push_back(step);
      if (step.terminated || step.truncated) episodes.push_back(std::exchange(episode, {}));
    }
    constexpr int64_t kCapacity = 90;
    const int64_t first = std::max<int64_t>(0, std::ssize(story.steps) - kCapacity);
    std::erase_if(episodes, [&](const auto& episode) { return episode.front().number < first; });
    ReplayBuffer buffer({.capacity = kCapacity, .sampling = ReplaySampling::kEpisodes});
    for (int64_t from = 0; from < std::ssize(story.steps); from += writers) buffer.add(story.batch(from, writers));
    ASSERT_EQ(buffer.num_episodes(), std::ssize(episodes));
    std::set<int64_t> seen;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const Batch batch = draw(buffer, 4, seed);
      int64_t longest = 0;
      for (int64_t i = 0; i < 4; ++i) {
        const auto begin = batch["index"][i].item<int64_t>();
        seen.insert(begin);
        const auto found =
            std::ranges::find_if(episodes, [&](const auto& episode) { return episode.front().number == begin; });
        ASSERT_NE(found, episodes.end());
        const int64_t length = std::ssize(*found);
        longest = std::max(longest, length);
        EXPECT_EQ(batch["mask"][i].sum().item<int64_t>(), length);
        for (int64_t step = 0; step < batch["mask"].size(1); ++step) {
          const bool is_in = step < length;
          EXPECT_EQ(batch["mask"][i][step].item<bool>(), is_in);
          EXPECT_EQ(batch["observation"][i][step].item<int64_t>(),
                    is_in ? (*found)[static_cast<size_t>(step)].observation : 0);
          EXPECT_EQ(batch["reward"][i][step].item<float>(),
                    is_in ? static_cast<float>((*found)[static_cast<size_t>(step)].reward) : 0);
        }
      }
      EXPECT_EQ(batch["mask"].size(1), longest);
    }
    EXPECT_EQ(seen.size(), episodes.size());
  }
}

// ---- Bad input

TEST(ReplayBuffer, SaysWhatIsWrong) {
  ReplayBuffer buffer({.capacity = 10});
  EXPECT_THAT(message_of([&] { buffer.sample(4); }),
              AllOf(HasSubstr("[data] a replay buffer was asked for more than it has; got 4 of 0 steps"),
                    HasSubstr("valid: at most"), HasSubstr("hint: let its writers fill it")));
  buffer.add(numbered(0, 3));
  EXPECT_THAT(message_of([&] { draw(buffer, 4); }), HasSubstr("got 4 of 3 steps"));
  EXPECT_THAT(message_of([&] { buffer.sample(0); }), HasSubstr("valid: at least 1"));
  EXPECT_THAT(message_of([&] { buffer.add({{"number", torch::arange(2)}}); }), HasSubstr("got one without 'reward'"));
  EXPECT_THAT(message_of([&] {
                buffer.add({{"number", torch::arange(2)}, {"reward", torch::zeros(2, at::kDouble)}});
              }),
              AllOf(HasSubstr("got 'reward' as Double[]"), HasSubstr("valid: Float[]")));
  EXPECT_THAT(message_of([&] {
                buffer.add({{"number", torch::zeros({2, 3}, at::kLong)}, {"reward", torch::zeros(2)}});
              }),
              HasSubstr("got 'number' as Long[3]; valid: Long[]"));
  EXPECT_THAT(message_of([&] {
                buffer.add({{"number", torch::arange(2)}, {"reward", torch::zeros(3)}});
              }),
              HasSubstr("got [3]; valid: [2, ...]"));
  Batch more = numbered(0, 1);
  more.set("info", torch::zeros(1));
  EXPECT_THAT(message_of([&] { buffer.add(more); }), HasSubstr("got one with 'info'"));
  EXPECT_THAT(message_of([&] { buffer.add({{"index", torch::zeros(1)}}); }), HasSubstr("valid: another name"));
  EXPECT_THAT(message_of([&] { buffer.add({}); }), HasSubstr("without tensors"));
  EXPECT_THAT(message_of([&] { buffer.add(numbered(0, 1), -1); }), HasSubstr("writer -1"));
  EXPECT_EQ(buffer.num_added(), 3);  // nothing of these
  EXPECT_THAT(message_of([&] { buffer.update_priorities(torch::tensor({0}), torch::ones(1)); }),
              HasSubstr("sampling: prioritized"));
  EXPECT_THAT(message_of([&] { buffer.set_beta(2); }), HasSubstr("valid: 0 to 1"));
  EXPECT_THROW(ReplayBuffer({.capacity = 0}), ConfigError);
  EXPECT_THROW(ReplayBuffer({.discount = 1.5}), ConfigError);
  EXPECT_THAT(message_of([] { ReplayBuffer({.capacity = std::numeric_limits<int64_t>::max()}); }),
              HasSubstr("replay buffer.capacity: there is no memory for the places of"));
  EXPECT_THAT(message_of([&] { buffer.sample(std::numeric_limits<int64_t>::max()); }), HasSubstr("of 3 steps"));
  EXPECT_THAT(message_of([&] { buffer.add(numbered(0, 1), int64_t{1} << 40); }), HasSubstr("at most 65536 writers"));
  EXPECT_THAT(message_of([&] { buffer.load_state_dict(State::map()); }), HasSubstr("is no state of a replay buffer"));
  ReplayBuffer late({.capacity = 10});
  late.add({{"x", torch::zeros({0, 2})}});
  late.add({{"x", torch::zeros({1, 3})}});  // the first steps say what steps are like
  EXPECT_EQ(late.num_steps(), 1);

  ReplayBuffer prioritized({.capacity = 10, .sampling = ReplaySampling::kPrioritized});
  prioritized.add(numbered(0, 3));
  EXPECT_THAT(message_of([&] {
                prioritized.update_priorities(torch::tensor({0, 1}), torch::ones(3));
              }),
              HasSubstr("got 2 steps and 3 errors"));
  EXPECT_THAT(message_of([&] { prioritized.update_priorities(torch::tensor({0}), torch::full({1}, NAN)); }),
              AllOf(HasSubstr("got nan"), HasSubstr("has training diverged?")));
  EXPECT_THAT(message_of([&] { prioritized.update_priorities(torch::tensor({3}), torch::ones(1)); }),
              HasSubstr("step 3 was never added"));
  EXPECT_THAT(message_of([&] { prioritized.update_priorities(torch::zeros(1), torch::ones(1)); }),
              HasSubstr("the index of update_priorities is Float; valid: int64"));
  EXPECT_THAT(message_of([&] { prioritized.update_priorities(at::Tensor(), torch::ones(1)); }),
              HasSubstr("an undefined tensor"));
  ReplayBuffer sums({.n_step = 3});
  EXPECT_THAT(message_of([&] {
                sums.add({{"observation", torch::zeros({1, 2})}});
              }),
              HasSubstr("n_step 3 of a replay buffer sums up rewards"));
  ReplayBuffer shapes;
  EXPECT_THAT(message_of([&] {
                shapes.add({{"reward", torch::zeros({2, 2})}});
              }),
              HasSubstr("'reward' of a step of a replay buffer is one number; got 4 of 2 steps"));
}

TEST(ReplayBuffer, SumsUpWholeRewardsAsNumbersWithDigits) {
  ReplayBuffer buffer({.capacity = 8, .n_step = 3, .discount = 0.5, .seed = 1});
  for (int i = 0; i < 4; ++i) buffer.add({{"reward", torch::ones(1, at::kLong)}});
  const Batch batch = buffer.sample(4);
  EXPECT_EQ(batch["reward"].scalar_type(), at::kFloat);
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t number = batch["index"][i].item<int64_t>();
    EXPECT_EQ(batch["reward"][i].item<double>(), number < 2 ? 1.75 : number == 2 ? 1.5 : 1.0);
  }
}

TEST(ReplayBuffer, AStateThatContradictsItselfIsRefusedAndChangesNothing) {
  ReplayBuffer saved({.capacity = 10, .sampling = ReplaySampling::kPrioritized});
  saved.add(numbered(0, 3));
  const State good = saved.state_dict();
  ReplayBuffer buffer({.capacity = 10, .sampling = ReplaySampling::kPrioritized, .seed = 1});
  buffer.add(numbered(10, 2));
  const auto refused = [&](const std::string& key, const State& value) {
    State bad = good;
    bad[key] = value;
    EXPECT_THAT(message_of([&] { buffer.load_state_dict(bad); }), HasSubstr("[checkpoint]")) << key;
    EXPECT_EQ(buffer.num_added(), 2) << key;
  };
  refused("added", State(int64_t{-1}));
  refused("added", State(int64_t{1} << 62));
  refused("ends", State(torch::zeros({0}, at::kByte)));
  refused("priorities", State(torch::full({3}, NAN, at::kDouble)));
  refused("successors", State(torch::full({3}, 100, at::kLong)));
  refused("episodes", State(torch::zeros({2}, at::kLong)));
  refused("writers", State(torch::zeros({2}, at::kLong)));
  State lacking = good;
  lacking.as_map().erase("beta");
  EXPECT_ANY_THROW(buffer.load_state_dict(lacking));
  EXPECT_EQ(buffer.sample(2)["number"].min().item<int64_t>(), 10);
  buffer.load_state_dict(good);
  EXPECT_EQ(buffer.num_added(), 3);
}

TEST(ReplayBuffer, RefusesAnEpisodeLongerThanItself) {
  ReplayBuffer buffer({.capacity = 6, .sampling = ReplaySampling::kEpisodes});
  EXPECT_THAT(message_of([&] { buffer.add(numbered(0, 1)); }), HasSubstr("steps without 'terminated' and 'truncated'"));
  const auto step = [](bool ends) {
    return Batch{{"reward", torch::ones(1)}, {"terminated", torch::full({1}, ends, at::kBool)}};
  };
  EXPECT_THAT(message_of([&] { buffer.sample(1); }), HasSubstr("got 1 of 0 whole episodes"));
  for (int i = 0; i < 6; ++i) buffer.add(step(false));
  EXPECT_THAT(message_of([&] { buffer.add(step(false)); }),
              AllOf(HasSubstr("[data] an episode is longer than the replay buffer; got 7 steps of writer 0"),
                    HasSubstr("valid: at most 6, the capacity"), HasSubstr("hint: a larger capacity")));
  EXPECT_EQ(buffer.num_added(), 6);
  buffer.add(step(true));  // it is over, and left out
  EXPECT_EQ(buffer.num_episodes(), 0);
  buffer.add(step(false));
  buffer.add(step(true));
  EXPECT_EQ(buffer.num_episodes(), 1);
  EXPECT_EQ(buffer.sample(1)["mask"].sum().item<int64_t>(), 2);
}

TEST(ReplayBuffer, RefusesAFolderWithoutRoom) {
  ReplayBuffer buffer({.capacity = int64_t{1} << 22, .folder = fresh_folder("replay")});
  EXPECT_THAT(message_of([&] {
                buffer.add({{"x", torch::zeros({1, 1 << 20})}});
              }),
              AllOf(HasSubstr("[data] cannot keep"), HasSubstr("valid: a folder with room")));
}

TEST(ReplayBuffer, TakesStepsOfManyThreads) {
  ReplayBuffer buffer({.capacity = 4000, .n_step = 3, .discount = 1});
  std::vector<std::thread> threads;
  for (int64_t writer = 0; writer < 4; ++writer)
    threads.emplace_back([&, writer] {
      for (int64_t i = 0; i < 300; ++i)
        buffer.add({{"observation", torch::tensor({1000 * writer + i})},
                    {"next_observation", torch::tensor({1000 * writer + i + 1})},
                    {"reward", torch::ones(1)}},
                   writer);
    });
  for (int i = 0; i < 50; ++i)
    if (buffer.num_steps() >= 8) buffer.sample(8);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(buffer.num_added(), 1200);
  for (int i = 0; i < 20; ++i) {
    const Batch batch = buffer.sample(64);
    EXPECT_TRUE((batch["next_observation"] - batch["observation"]).equal(batch["reward"].to(at::kLong)));
  }
}

// ---- Checkpoints

/// Prioritized and with several steps, or whole episodes; in memory or in files.
struct Kind {
  const char* name;
  ReplaySampling sampling;
  int64_t n_step;
  bool on_disk;
};

std::string name_of_kind(const ::testing::TestParamInfo<Kind>& info) { return info.param.name; }

class ReplayKinds : public ::testing::TestWithParam<Kind> {
 protected:
  ReplayBufferOptions options() const {
    return {.capacity = 60,
            .sampling = GetParam().sampling,
            .n_step = GetParam().n_step,
            .discount = 0.9,
            .seed = 5,
            .folder = GetParam().on_disk ? fresh_folder("replay") : "",
            .epoch_size = 40};
  }
};

void expect_same_batch(const Batch& a, const Batch& b) {
  ASSERT_EQ(a.items().size(), b.items().size());
  for (const auto& [name, tensor] : a.items()) EXPECT_TRUE(tensor.equal(b[name])) << name;
}

TEST_P(ReplayKinds, GoOnFromTheirStateToTheBit) {
  for (const int64_t before : {0, 21, 66, 90}) {  // batches have 3 steps
    const Story story = Story::make(3, 60);
    ReplayBuffer buffer(options());
    const auto use = [&](ReplayBuffer& used, int64_t from, int64_t to) {
      Batch last;
      for (int64_t at = from; at < to; at += 3) {
        used.add(story.batch(at, 3));
        if (used.num_steps() < 30) continue;
        last = used.sample(2);
        if (GetParam().sampling == ReplaySampling::kPrioritized) used.update_priorities(last["index"], last["reward"]);
      }
      return last;
    };
    use(buffer, 0, before);
    const State state = buffer.state_dict();
    ReplayBuffer resumed(options());
    resumed.load_state_dict(state_from_bytes(state_to_bytes(state)));
    EXPECT_EQ(resumed.num_steps(), buffer.num_steps());
    expect_same_batch(use(resumed, before, 180), use(buffer, before, 180));
    EXPECT_EQ(state_to_bytes(resumed.state_dict()), state_to_bytes(buffer.state_dict()));
  }
}

/// Adds to its buffer in each step, and trains on what is drawn from it.
class ReplayModule : public TinyModule {
 public:
  explicit ReplayModule(const ReplayBufferOptions& options)
      : TinyModule(TinyOptions{.dropout = 0.1}), options_(options), buffer(std::make_shared<ReplayBuffer>(options)) {
    for (int i = 0; i < 30; ++i) play();
  }
  DataLoader train_dataloader() override { return DataLoader(buffer, {.batch_size = 4}); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    play();
    at::Tensor error = forward(batch["observation"]).squeeze(-1) - batch["reward"];
    if (const at::Tensor* mask = batch.find("mask")) error = error * mask->to(at::kFloat);
    if (options_.sampling == ReplaySampling::kPrioritized) {
      buffer->update_priorities(batch["index"], error);
      error = error * batch["weight"].sqrt();
    }
    return error.square().mean();
  }
  void on_save_checkpoint(State& state) override {
    state["buffer"] = buffer->state_dict();
    state["time"] = time_;
  }
  void on_load_checkpoint(const State& state) override {
    buffer->load_state_dict(state.at("buffer"));
    time_ = state.at("time").as_int();
  }

  /// What is added depends on the weights, as with a policy.
  void play() {
    const at::NoGradGuard no_grad;
    at::Tensor x = torch::arange(8, at::kFloat).reshape({2, 4}).add(static_cast<double>(time_)).sin();
    const at::Tensor value = first_(x).sum(1);
    buffer->add({{"observation", x},
                 {"reward", value.sin()},
                 {"terminated", torch::full({2}, time_ % 5 == 0, at::kBool)},
                 {"truncated", torch::full({2}, time_ % 7 == 0, at::kBool)}});
    ++time_;
  }

 private:
  ReplayBufferOptions options_;
  int64_t time_ = 0;

 public:
  const std::shared_ptr<ReplayBuffer> buffer;
};

TEST_P(ReplayKinds, TrainOnToTheBitAsDataOfFit) {
  const std::string root = fresh_folder("replay");
  const auto run = [&](int64_t steps, const std::string& from, const std::string& to) {
    seed_everything(8);
    const auto module = std::make_shared<ReplayModule>(options());
    TrainerOptions trainer_options = quiet(3);
    trainer_options.max_steps = steps;
    Trainer trainer(trainer_options);
    trainer.fit(module, DataLoader(), DataLoaders(), from);
    if (!to.empty()) trainer.save_checkpoint(to);
    EXPECT_EQ(trainer.global_step(), steps);
    return std::pair(weights(*module), state_to_bytes(module->buffer->state_dict()));
  };
  const auto expected = run(25, "", "");
  for (const int64_t stop : {1, 7, 10, 20}) {
    const std::string path = fmt::format("{}/step{}", root, stop);
    run(stop, "", path);
    const auto got = run(25, path, "");
    EXPECT_TRUE(identical(got.first, expected.first)) << stop;
    EXPECT_EQ(got.second, expected.second) << stop;
  }
}

TEST_P(ReplayKinds, TrainOnToTheBitWithAnEngine) {
  const std::string root = fresh_folder("replay");
  const auto run = [&](int64_t steps, const std::string& from, const std::string& to) {
    seed_everything(8);
    const auto module = std::make_shared<ReplayModule>(options());
    TrainerOptions engine_options = quiet(1);
    engine_options.max_epochs = {};
    engine_options.max_steps = steps;
    Engine engine(module, engine_options);
    if (!from.empty()) engine.load(from);
    while (!engine.stop_requested()) engine.train_step(module->buffer->sample(4));
    if (!to.empty()) engine.save(to);
    engine.close();
    return std::pair(weights(*module), state_to_bytes(module->buffer->state_dict()));
  };
  const auto expected = run(20, "", "");
  run(9, "", root + "/stopped");
  const auto got = run(20, root + "/stopped", "");
  EXPECT_TRUE(identical(got.first, expected.first));
  EXPECT_EQ(got.second, expected.second);
}

INSTANTIATE_TEST_SUITE_P(All, ReplayKinds,
                         ::testing::Values(Kind{"Uniform", ReplaySampling::kUniform, 1, false},
                                           Kind{"UniformOnDisk", ReplaySampling::kUniform, 1, true},
                                           Kind{"NStep", ReplaySampling::kUniform, 3, false},
                                           Kind{"Prioritized", ReplaySampling::kPrioritized, 1, false},
                                           Kind{"PrioritizedNStepOnDisk", ReplaySampling::kPrioritized, 3, true},
                                           Kind{"Episodes", ReplaySampling::kEpisodes, 1, false},
                                           Kind{"EpisodesOnDisk", ReplaySampling::kEpisodes, 1, true}),
                         name_of_kind);

TEST(ReplayBuffer, LeavesNoFiles) {
  const std::string folder = fresh_folder("replay");
  ReplayBuffer buffer({.capacity = 100, .folder = folder + "/new"});
  buffer.add(numbered(0, 7));
  EXPECT_EQ(whole_numbers(buffer.sample(7)["number"]).size(), 7u);
  EXPECT_TRUE(std::filesystem::is_empty(folder + "/new"));  // not even when the program is killed
}

// ---- Larger than memory

/// Steps of 64 KiB, whose values follow from their numbers.
Batch large_steps(int64_t from, int64_t count) {
  return {{"observation", torch::arange(from, from + count, at::kFloat).unsqueeze(1).mul(torch::ones({1, 16384}))},
          {"reward", torch::arange(from, from + count, at::kFloat)}};
}

/// Trains on the means of steps of 64 KiB that are on the disk, and adds two in each step.
class LargeReplayModule : public TinyModule {
 public:
  explicit LargeReplayModule(const std::string& folder)
      : TinyModule(TinyOptions{}),
        buffer(std::make_shared<ReplayBuffer>(
            ReplayBufferOptions{.capacity = kCapacity, .seed = 5, .folder = folder, .epoch_size = 400})) {
    for (int64_t i = 0; i < kCapacity + 100; i += 10) buffer->add(large_steps(i, 10));
  }
  DataLoader train_dataloader() override { return DataLoader(buffer, {.batch_size = 4}); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    buffer->add(large_steps(buffer->num_added(), 2));
    return (forward(batch["observation"].narrow(1, 0, 4).sin()).squeeze(-1) - batch["reward"].sin()).square().mean();
  }
  void on_save_checkpoint(State& state) override { state["buffer"] = buffer->state_dict(); }
  void on_load_checkpoint(const State& state) override { buffer->load_state_dict(state.at("buffer")); }

  static constexpr int64_t kCapacity = 1600;  // 100 MiB
  const std::shared_ptr<ReplayBuffer> buffer;
};

TrainerOptions large_options(int64_t steps) {
  TrainerOptions options = quiet(1);
  options.max_steps = steps;
  return options;
}

/// Memory of this process that no file stands behind.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t kibibytes = 0; word == "VmData:" && status >> kibibytes) return 1024 * kibibytes;
  return 0;
}

/// Saves and resumes with less memory to be had than half of the buffer.
void save_and_resume(const std::string& root) {
  at::set_num_threads(1);
  seed_everything(8);
  const auto module = std::make_shared<LargeReplayModule>(root + "/first");
  Trainer(large_options(2)).fit(module);  // all that a first fit makes
  const rlim_t limit = static_cast<rlim_t>(anonymous_bytes()) + (rlim_t{48} << 20);
  const rlimit limits{.rlim_cur = limit, .rlim_max = limit};
  if (setrlimit(RLIMIT_DATA, &limits) != 0) std::exit(3);
  try {
    Trainer trainer(large_options(6));
    trainer.fit(module);
    trainer.save_checkpoint(root + "/saved");
    const auto resumed = std::make_shared<LargeReplayModule>(root + "/second");
    Trainer(large_options(6)).fit(resumed, DataLoader(), DataLoaders(), root + "/saved");
    const bool is_same = resumed->buffer->num_added() == module->buffer->num_added() &&
                         resumed->buffer->sample(64)["observation"].equal(module->buffer->sample(64)["observation"]);
    std::exit(is_same ? 0 : 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(1);
  }
}

TEST(ReplayBufferDeathTest, IsSavedAndResumedWithLessMemoryThanItHas) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(save_and_resume(fresh_folder("replay")), ::testing::ExitedWithCode(0), "");
}

/// Is killed between a checkpoint and what was written behind it.
struct KilledAt : Callback {
  explicit KilledAt(std::string path) : path(std::move(path)) {}
  void on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) override {
    if (trainer.global_step() == 9) trainer.save_checkpoint(path);
    if (trainer.global_step() == 17) std::raise(SIGKILL);
  }
  std::string path;
};

TEST(ReplayBufferDeathTest, GoesOnAsIfItHadNotBeenKilled) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The same in the process that is killed.
  if (std::getenv("LEVIN_REPLAY_KILLED") == nullptr) setenv("LEVIN_REPLAY_KILLED", fresh_folder("replay").c_str(), 1);
  const std::string root = std::getenv("LEVIN_REPLAY_KILLED");
  const auto fit = [&](int64_t steps, const std::string& from,
                       const std::vector<std::shared_ptr<Callback>>& callbacks) {
    seed_everything(8);
    const auto module = std::make_shared<LargeReplayModule>(root + "/files");
    TrainerOptions options = large_options(steps);
    options.callbacks.assign(callbacks.begin(), callbacks.end());
    Trainer(options).fit(module, DataLoader(), DataLoaders(), from);
    return module;
  };
  EXPECT_EXIT(fit(30, "", {std::make_shared<KilledAt>(root + "/saved")}), ::testing::KilledBySignal(SIGKILL), "");
  const auto expected = fit(30, "", {});
  const auto got = fit(30, root + "/saved", {});
  EXPECT_TRUE(identical(weights(*got), weights(*expected)));
  EXPECT_EQ(got->buffer->num_added(), expected->buffer->num_added());
  expect_same_batch(got->buffer->sample(200), expected->buffer->sample(200));
  EXPECT_TRUE(std::filesystem::is_empty(root + "/files"));
}

TEST(ReplayBuffer, RefusesTheStateOfAnotherOne) {
  const ReplayBuffer buffer({.capacity = 10});
  ReplayBuffer larger({.capacity = 11});
  EXPECT_THAT(message_of([&] { larger.load_state_dict(buffer.state_dict()); }),
              HasSubstr("saved with a capacity of 10; got 11; valid: the same"));
  ReplayBuffer other({.capacity = 10, .sampling = ReplaySampling::kEpisodes});
  EXPECT_THAT(message_of([&] { other.load_state_dict(buffer.state_dict()); }),
              HasSubstr("was saved with sampling uniform; got episodes"));
}

}  // namespace
}  // namespace levin
