#include <levin/core/base/weight_cast_scope.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace levin {
namespace {

class Autocast {
 public:
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() { at::autocast::set_autocast_enabled(at::kCPU, false); }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

at::Tensor weight_of(double first) {
  return at::arange(64, at::kFloat).reshape({8, 8}).add(first).sin().requires_grad_();  // a view is not kept
}

/// The gradient of a weight that is used three times. It is summed in 16 bits if one conversion serves all of them.
at::Tensor gradient_of_three_uses() {
  at::Tensor weight = weight_of(1);
  const at::Tensor x = at::arange(64, at::kFloat).cos().reshape({8, 8});
  const Autocast autocast;
  x.mm(weight).mm(weight).mm(weight).sum().backward();
  return weight.grad();
}

TEST(WeightCastScope, ConvertsAWeightOnceLikeAutocastsCache) {
  const at::Tensor of_libtorch = gradient_of_three_uses();
  at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(false);
  const at::Tensor uncached = gradient_of_three_uses();
  at::autocast::set_autocast_cache_enabled(true);
  ASSERT_FALSE(of_libtorch.equal(uncached)) << "the case tells nothing";

  const WeightCastScope casts;
  EXPECT_TRUE(gradient_of_three_uses().equal(of_libtorch));
}

TEST(WeightCastScope, IsNotTouchedByOtherThreads) {
  const at::Tensor alone = [] {
    const WeightCastScope casts;
    return gradient_of_three_uses();
  }();
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
      at::autocast::clear_cache();
      const WeightCastScope casts;
      gradient_of_three_uses();
      WeightCastScope::forget();
    }
  });
  for (int i = 0; i < 200; ++i) {
    const WeightCastScope casts;
    EXPECT_TRUE(gradient_of_three_uses().equal(alone));
  }
  done = true;
  other.join();
}

TEST(WeightCastScope, ConvertsAChangedWeightAnew) {
  at::Tensor weight = weight_of(1);
  const at::Tensor identity = at::eye(8);
  const Autocast autocast;
  const WeightCastScope casts;
  EXPECT_TRUE(identity.mm(weight).equal(weight.to(at::kBFloat16)));
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_TRUE(identity.mm(weight).equal(weight.to(at::kBFloat16)));
  static_cast<float*>(weight.storage().mutable_data())[0] = 100;  // which no version counter sees
  WeightCastScope::forget();
  EXPECT_EQ(identity.mm(weight)[0][0].item<float>(), 100);
}

TEST(WeightCastScope, WhatWasConvertedWithoutGradientIsNotKept) {
  at::Tensor weight = weight_of(1);
  const at::Tensor identity = at::eye(8);
  const Autocast autocast;
  const WeightCastScope casts;
  {
    const at::NoGradGuard no_grad;
    identity.mm(weight);
  }
  identity.mm(weight).sum().backward();
  EXPECT_TRUE(weight.grad().equal(at::ones({8, 8})));
}

TEST(WeightCastScope, LeavesConversionsByHandAlone) {
  at::Tensor weight = weight_of(1);
  const Autocast autocast;
  const WeightCastScope casts;
  at::eye(8).mm(weight);
  const at::Tensor by_hand = weight.to(at::kBFloat16);
  EXPECT_FALSE(by_hand.is_same(weight.to(at::kBFloat16)));
  at::autocast::set_autocast_enabled(at::kCPU, false);  // as in a FullPrecision scope
  EXPECT_EQ(weight.to(at::device(at::kMeta).dtype(at::kBFloat16)).device(), at::kMeta);
}

TEST(WeightCastScope, NestsAndPutsAutocastsCacheBack) {
  EXPECT_FALSE(WeightCastScope::is_active());
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  {
    const WeightCastScope disabled(false);
    EXPECT_FALSE(WeightCastScope::is_active());
    const WeightCastScope outer;
    {
      const WeightCastScope inner;
      EXPECT_TRUE(WeightCastScope::is_active());
    }
    EXPECT_TRUE(WeightCastScope::is_active());
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_FALSE(WeightCastScope::is_active());
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

}  // namespace
}  // namespace levin
