#include <levin/core/optim/swa_scheduler.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/group_options.h>
#include <levin/core/optim/sgd.h>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace levin::optim {
namespace {

using Rows = std::vector<std::vector<double>>;

std::shared_ptr<SGD> two_groups() {
  return std::make_shared<SGD>(SGD::Groups{{{at::zeros({1})}, {.lr = 0.8}}, {{at::zeros({1})}, {.lr = 0.1}}});
}

Rows rates(const SwaSchedulerOptions& options, size_t steps) {
  const auto optimizer = two_groups();
  SwaScheduler scheduler(options);
  scheduler.attach(*optimizer);
  Rows rows;
  for (size_t step = 0; step < steps; ++step) {
    rows.push_back(learning_rates(*optimizer));
    scheduler.step();
  }
  return rows;
}

void expect_near(const Rows& rows, const Rows& expected) {
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t step = 0; step < rows.size(); ++step)
    for (size_t group = 0; group < 2; ++group)
      EXPECT_NEAR(rows[step][group], expected[step][group], 1e-11) << "step " << step << ", group " << group;
}

// The expected values were printed by torch.optim.swa_utils.SWALR of PyTorch 2.11.

TEST(SwaScheduler, AnnealsAsPyTorchWithACosine) {
  expect_near(rates({.swa_lrs = {0.05, 0.2}, .annealing_epochs = 4}, 6), {{0.8, 0.1},
                                                                          {0.690165042945, 0.114644660941},
                                                                          {0.425, 0.15},
                                                                          {0.159834957055, 0.185355339059},
                                                                          {0.05, 0.2},
                                                                          {0.05, 0.2}});
}

TEST(SwaScheduler, AnnealsAsPyTorchLinearly) {
  expect_near(rates({.swa_lrs = {0.05, 0.2}, .annealing_epochs = 4, .annealing_strategy = "linear"}, 6),
              {{0.8, 0.1}, {0.6125, 0.125}, {0.425, 0.15}, {0.2375, 0.175}, {0.05, 0.2}, {0.05, 0.2}});
}

TEST(SwaScheduler, IsThereAtOnceWithoutAnnealing) {
  expect_near(rates({.swa_lrs = 0.05, .annealing_epochs = 0}, 2), {{0.05, 0.05}, {0.05, 0.05}});
}

TEST(SwaScheduler, GoesOnFromItsState) {
  const SwaSchedulerOptions options{.swa_lrs = 0.05, .annealing_epochs = 4};
  const Rows whole = rates(options, 5);
  const auto first = two_groups();
  SwaScheduler saved(options);
  saved.attach(*first);
  saved.step();
  saved.step();
  // The optimizer of the resumed run has other learning rates until its own state is restored.
  const auto second = two_groups();
  second->param_groups()[0].options().set_lr(3);
  SwaScheduler restored(options);
  restored.attach(*second);
  restored.load_state_dict(saved.state_dict());
  restored.step();
  EXPECT_EQ(learning_rates(*second), whole[3]);
}

TEST(SwaScheduler, RefusesRatesThatDoNotFit) {
  EXPECT_THROW(SwaScheduler({}), ConfigError);
  EXPECT_THROW(SwaScheduler({.swa_lrs = {0.1, 0.0}}), ConfigError);
  EXPECT_THROW(SwaScheduler({.swa_lrs = 0.1, .annealing_strategy = "steps"}), ConfigError);
  const auto optimizer = two_groups();
  SwaScheduler three({.swa_lrs = {0.1, 0.2, 0.3}});
  try {
    three.attach(*optimizer);
    FAIL() << "three learning rates for two groups were accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("3 learning rates, but the optimizer 2 parameter groups"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace levin::optim
