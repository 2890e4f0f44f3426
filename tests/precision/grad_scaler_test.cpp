#include <levin/core/precision/grad_scaler.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace levin {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor parameter_with_gradient(const std::vector<float>& gradient, at::ScalarType type = at::kFloat) {
  at::Tensor parameter = at::zeros({static_cast<int64_t>(gradient.size())}, type).requires_grad_();
  parameter.mutable_grad() = at::tensor(gradient).to(type);
  return parameter;
}

at::Tensor flag(float value) { return at::full({1}, value); }

TEST(GradScaler, UnscalesWhatBackwardOfAScaledLossGives) {
  GradScaler scaler({.init_scale = 1024});
  at::Tensor weight = at::tensor({0.5F, -2.0F}).requires_grad_();
  scaler.scale((weight * at::tensor({3.0F, 4.0F})).sum()).backward();
  EXPECT_TRUE(weight.grad().equal(at::tensor({3072.0F, 4096.0F})));
  const at::Tensor found_inf = scaler.unscale({weight});
  EXPECT_EQ(found_inf.item<float>(), 0);
  EXPECT_TRUE(weight.grad().equal(at::tensor({3.0F, 4.0F})));
}

TEST(GradScaler, FindsWhatIsNotFiniteInAnyTypeOfGradient) {
  GradScaler scaler({});
  const at::Tensor fine = parameter_with_gradient({1, 2});
  const at::Tensor without = at::zeros({3}).requires_grad_();
  EXPECT_EQ(scaler.unscale({fine, without}).item<float>(), 0);
  EXPECT_EQ(scaler.unscale({fine, parameter_with_gradient({1, kInfinity}, at::kDouble)}).item<float>(), 1);
  EXPECT_EQ(scaler.unscale({parameter_with_gradient({std::numeric_limits<float>::quiet_NaN()})}).item<float>(), 1);
}

TEST(GradScaler, GrowsAfterAnIntervalAndBacksOffAtOnce) {
  GradScaler scaler({.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2});
  std::vector<double> scales;
  for (const float found : {0.0F, 0.0F, 0.0F, 1.0F, 0.0F, 0.0F}) {
    scaler.update({flag(found)});
    scales.push_back(scaler.current_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 32, 32, 8, 8, 32}));
}

TEST(GradScaler, OneOptimizersInfinityIsTheWindows) {
  GradScaler scaler({.init_scale = 8});
  scaler.update({flag(0), flag(1), flag(0)});
  EXPECT_EQ(scaler.current_scale(), 4);
  EXPECT_EQ(scaler.skipped().all, 1);
  scaler.update({});  // nothing was stepped
  EXPECT_EQ(scaler.current_scale(), 4);
}

TEST(GradScaler, CountsSkippedWindows) {
  GradScaler scaler({});
  for (const float found : {1.0F, 1.0F, 0.0F, 1.0F, 1.0F, 1.0F}) scaler.update({flag(found)});
  EXPECT_EQ(scaler.skipped().all, 5);
  EXPECT_EQ(scaler.skipped().in_a_row, 3);
}

TEST(GradScaler, ItsStateGoesOnWhereItWasSaved) {
  GradScaler first({.init_scale = 8, .growth_interval = 2});
  for (const float found : {1.0F, 0.0F}) first.update({flag(found)});
  GradScaler second({.init_scale = 1000, .growth_interval = 2});
  second.load_state_dict(first.state_dict());
  for (GradScaler* scaler : {&first, &second}) scaler->update({flag(0)});
  EXPECT_EQ(second.current_scale(), 8);  // two steps without an infinity, one of them before the save
  EXPECT_EQ(second.current_scale(), first.current_scale());
  EXPECT_EQ(second.skipped().all, 1);
}

}  // namespace
}  // namespace levin
