#include <levin/core/base/thread_generator.h>

#include <levin/core/base/seed.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/feature_dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/poisson.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/rrelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace levin {
namespace {

using Tensors = std::vector<at::Tensor>;

void expect_equal(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << "draw " << i;
}

/// Two dropouts, forward and backward: the output and the gradient.
Tensors train_with_dropout() {
  const at::Tensor weight = at::full({16, 16}, 0.1).requires_grad_();
  const at::Tensor hidden = at::dropout(at::matmul(at::ones({8, 16}), weight), 0.5, /*train=*/true);
  const at::Tensor output = at::dropout(at::matmul(hidden, weight), 0.3, /*train=*/true);
  output.sum().backward();
  return {output.detach(), weight.grad()};
}

/// One draw from each kind of operator that is random.
Tensors draw_everything() {
  const auto ones = [](at::IntArrayRef shape) { return at::ones(shape); };
  const at::Tensor queries = at::randn({1, 2, 8, 4});
  Tensors draws = {
      queries,
      at::rand({5}),
      at::randperm(20),
      at::randint(100, {7}, at::kLong),
      at::bernoulli(at::full({9}, 0.4)),
      at::normal(0.0, 2.0, {5}),
      at::poisson(at::full({6}, 3.0)),
      at::multinomial(at::rand({2, 10}), 4),
      at::multinomial(at::ones({10}), 30, /*replacement=*/true),
      at::rand_like(queries),
      at::randn_like(queries),
      at::empty({33}).normal_(),
      at::empty({5}).uniform_(-1, 1),
      at::empty({5}).exponential_(),
      at::empty({5}).geometric_(0.3),
      at::empty({5}).cauchy_(),
      at::empty({5}).log_normal_(),
      at::empty({5}, at::kLong).random_(0, 1000),
      at::empty({5}).bernoulli_(0.5),
      at::dropout(ones({50}), 0.5, /*train=*/true),
      at::feature_dropout(ones({3, 7, 2}), 0.5, /*train=*/true),
      at::rrelu(-ones({9}), 0.1, 0.3, /*training=*/true),
      at::scaled_dot_product_attention(queries, queries, queries, {}, /*dropout_p=*/0.3),
  };
  for (const at::Tensor& tensor : train_with_dropout()) draws.push_back(tensor);
  return draws;
}

Tensors draw_in_scope(uint64_t seed) {
  const ThreadGeneratorScope scope(seed);
  return draw_everything();
}

/// What the process's default generator gives, which is left as it was.
template <class Draw>
auto draw_from_default(uint64_t seed, Draw&& draw) {
  const RngStateGuard guard;
  seed_everything(seed);
  return draw();
}

at::Tensor state_of_default() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

class ThreadGenerator : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(at::equal(state_of_default(), before_)) << "the default generator was used"; }

 private:
  at::Tensor before_ = state_of_default();
};

TEST_F(ThreadGenerator, GivesTheStreamOfTheDefaultGenerator) {
  expect_equal(draw_in_scope(7), draw_from_default(7, draw_everything));
  EXPECT_FALSE(at::equal(draw_in_scope(7)[0], draw_in_scope(8)[0]));
}

TEST_F(ThreadGenerator, IsReproducibleWhateverTheInterleaving) {
  constexpr int kRounds = 10;
  const auto draw_rounds = [](uint64_t seed, const std::function<void(int)>& before_round) {
    const ThreadGeneratorScope scope(seed);
    Tensors all;
    for (int round = 0; round < kRounds; ++round) {
      before_round(round);
      for (const at::Tensor& draw : draw_everything()) all.push_back(draw);
    }
    return all;
  };
  const auto at_once = [](int) {};
  const std::vector<Tensors> serial = {draw_rounds(1, at_once), draw_rounds(2, at_once)};

  // Freely, in step, and with one of them a round ahead.
  for (const int lead : {-1, 0, 1}) {
    std::barrier<> in_step(2);
    std::vector<Tensors> parallel(2);
    const auto work = [&](size_t index) {
      parallel[index] = draw_rounds(index + 1, [&](int round) {
        const int meeting = index == 0 ? round - lead : round;
        if (lead >= 0 && meeting >= 0 && meeting < kRounds - lead) in_step.arrive_and_wait();
      });
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    for (size_t index = 0; index < 2; ++index) expect_equal(parallel[index], serial[index]);
  }
}

TEST_F(ThreadGenerator, ScopesNest) {
  const Tensors expected = draw_from_default(3, [] { return Tensors{at::randn({4}), at::randn({4})}; });
  const ThreadGeneratorScope outer(3);
  const at::Tensor first = at::randn({4});
  {
    const ThreadGeneratorScope inner(3);
    EXPECT_TRUE(at::equal(at::randn({4}), expected[0]));
    EXPECT_NE(default_cpu_generator(), at::detail::getDefaultCPUGenerator());
  }
  expect_equal({first, at::randn({4})}, expected);
}

TEST_F(ThreadGenerator, EndsWithItsScope) {
  const auto keys_before = c10::impl::tls_local_dispatch_key_set();
  {
    const ThreadGeneratorScope scope(3);
    EXPECT_NE(default_cpu_generator(), at::detail::getDefaultCPUGenerator());
  }
  const auto keys_after = c10::impl::tls_local_dispatch_key_set();
  EXPECT_EQ(keys_after.included_, keys_before.included_);
  EXPECT_EQ(keys_after.excluded_, keys_before.excluded_);
  EXPECT_EQ(default_cpu_generator(), at::detail::getDefaultCPUGenerator());
  const auto draw = [] { return at::randn({4}); };
  EXPECT_TRUE(at::equal(draw_from_default(3, draw), draw_from_default(3, draw)));
}

TEST_F(ThreadGenerator, RespectsAGivenGenerator) {
  const at::Tensor expected = draw_from_default(5, [] { return at::randn({4}); });
  const ThreadGeneratorScope scope(6);
  const at::Tensor state = default_cpu_generator().get_state();
  EXPECT_TRUE(at::equal(at::randn({4}, at::detail::createCPUGenerator(5)), expected));
  EXPECT_TRUE(at::equal(at::empty({4}).normal_(0, 1, at::detail::createCPUGenerator(5)), expected));
  EXPECT_TRUE(at::equal(default_cpu_generator().get_state(), state));
  EXPECT_FALSE(at::equal(at::randn({4}, at::Generator()), expected));  // an undefined one is none
  EXPECT_FALSE(at::equal(default_cpu_generator().get_state(), state));
}

TEST_F(ThreadGenerator, WorksUnderInferenceModeAndAutocast) {
  const auto infer = [] {
    const c10::InferenceMode inference;
    const at::Tensor weight = at::randn({8, 8});
    EXPECT_TRUE(weight.is_inference());
    return at::dropout(at::matmul(weight, weight), 0.5, /*train=*/true).clone();
  };
  const auto autocast = [] {
    const bool was_enabled = at::autocast::is_autocast_enabled(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor weight = at::randn({8, 8});
    const at::Tensor output = at::dropout(at::matmul(weight, weight), 0.5, /*train=*/true);
    at::autocast::set_autocast_enabled(at::kCPU, was_enabled);
    at::autocast::clear_cache();
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    return output;
  };
  const at::Tensor inferred = draw_from_default(4, infer);
  const at::Tensor cast = draw_from_default(4, autocast);
  {
    const ThreadGeneratorScope scope(4);
    EXPECT_TRUE(at::equal(infer(), inferred));
    EXPECT_FALSE(at::randn({2}).is_inference());
  }
  const ThreadGeneratorScope scope(4);
  EXPECT_TRUE(at::equal(autocast(), cast));
}

TEST_F(ThreadGenerator, LeavesOtherDevicesAlone) {
  const ThreadGeneratorScope scope(4);
  const at::Tensor state = default_cpu_generator().get_state();
  const auto meta = at::TensorOptions().device(at::kMeta);
  EXPECT_TRUE(at::randn({3}, meta).is_meta());
  EXPECT_TRUE(at::empty({3}, meta).normal_().is_meta());
  EXPECT_TRUE(at::rand_like(at::ones({3}), meta).is_meta());
  EXPECT_TRUE(at::dropout(at::empty({3}, meta), 0.5, /*train=*/true).is_meta());
  EXPECT_TRUE(at::equal(default_cpu_generator().get_state(), state));
}

TEST_F(ThreadGenerator, StateIsCapturedAndRestoredPerThread) {
  const ThreadGeneratorScope scope(9);
  draw_everything();
  const State saved = capture_rng_state();
  EXPECT_TRUE(at::equal(saved.at("cpu").as_tensor(), default_cpu_generator().get_state()));
  const Tensors next = draw_everything();
  restore_rng_state(saved);
  expect_equal(draw_everything(), next);
  restore_rng_state(saved);
  {
    const RngStateGuard guard;
    draw_everything();
  }
  expect_equal(draw_everything(), next);

  // Another rank thread that resumes from this one's checkpoint goes on with this one's stream.
  Tensors resumed;
  std::thread([&] {
    const ThreadGeneratorScope other(1);
    restore_rng_state(saved);
    resumed = draw_everything();
  }).join();
  expect_equal(resumed, next);
}

TEST_F(ThreadGenerator, IsSeededBySeedEverything) {
  const at::Tensor expected = draw_from_default(21, [] { return at::randn({4}); });
  const ThreadGeneratorScope scope(1);
  seed_everything(21);
  EXPECT_TRUE(at::equal(at::randn({4}), expected));
}

/// LibTorch carries dispatch keys to the threads that work for one; the generator stays behind.
TEST(ThreadGeneratorOfHelpers, IsThatOfTheProcess) {
  const RngStateGuard guard;
  const at::Tensor expected = draw_from_default(2, [] { return at::randn({4}); });
  const ThreadGeneratorScope scope(3);
  const at::ThreadLocalState locals;
  at::Tensor drawn;
  std::thread([&] {
    const at::ThreadLocalStateGuard as_the_other_thread(locals);
    seed_everything(2);
    drawn = at::randn({4});
  }).join();
  EXPECT_TRUE(at::equal(drawn, expected));
}

}  // namespace
}  // namespace levin
