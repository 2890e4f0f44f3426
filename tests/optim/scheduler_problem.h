#pragma once

#include <levin/core/optim/group_options.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/optim/sgd.h>

#include "optimizer_problem.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace levin::optim {

inline const std::map<std::string, std::vector<double>>& scheduler_oracles() {
  static const std::map<std::string, std::vector<double>> oracles = {
#include "../oracles/scheduler_oracles.inc"
  };
  return oracles;
}

/// Two groups with learning rates 0.1 and 0.04 and a momentum of 0.9, as in oracles/optim_oracles.py.
inline std::shared_ptr<SGD> make_two_groups() {
  const auto params = Problem::make_parameters();
  return std::make_shared<SGD>(
      SGD::Groups{{{params[0]}, {.lr = 0.1, .momentum = 0.9}}, {{params[1]}, {.lr = 0.04, .momentum = 0.9}}});
}

inline std::vector<double> row(const SGD& optimizer) {
  auto values = learning_rates(optimizer);
  values.push_back(optimizer.group_options(0).momentum);
  return values;
}

using MakeScheduler = std::function<std::shared_ptr<Scheduler>()>;

template <class T>
MakeScheduler scheduler_with(const typename T::Options& options) {
  return [options] { return std::make_shared<T>(options); };
}

inline void step(Scheduler& scheduler, const std::vector<double>& metrics, size_t index) {
  if (metrics.empty())
    scheduler.step();
  else
    scheduler.step(metrics[index % metrics.size()]);
}

/// The learning rates of every step against PyTorch's; then, from a save in the middle of the run on, bit by bit the
/// same again in a new scheduler.
inline void expect_sequence(const std::string& name, const MakeScheduler& make,
                            const std::vector<double>& metrics = {}) {
  SCOPED_TRACE(name);
  const auto& expected = scheduler_oracles().at(name);
  const size_t rows = expected.size() / 3;
  auto optimizer = make_two_groups();
  auto scheduler = make();
  scheduler->attach(*optimizer);
  std::vector<std::vector<double>> seen;
  State saved;
  for (size_t i = 0; i < rows; ++i) {
    seen.push_back(row(*optimizer));
    for (size_t column = 0; column < 3; ++column)
      EXPECT_NEAR(seen[i][column], expected[i * 3 + column], 1e-12 + 1e-11 * std::abs(expected[i * 3 + column]))
          << "step " << i << ", column " << column;
    EXPECT_EQ(scheduler->last_lr(), learning_rates(*optimizer));
    if (i == rows / 2) saved = scheduler->state_dict();
    if (i + 1 < rows) step(*scheduler, metrics, i);
  }

  auto resumed_optimizer = make_two_groups();
  auto resumed = make();
  resumed->attach(*resumed_optimizer);
  resumed->load_state_dict(saved);
  EXPECT_EQ(resumed->last_lr(), std::vector<double>(seen[rows / 2].begin(), seen[rows / 2].begin() + 2));
  for (size_t group = 0; group < 2; ++group) {  // as the optimizer's own state restores them
    auto& options = resumed_optimizer->param_groups()[group].options();
    options.set_lr(seen[rows / 2][group]);
    set_momentum(options, seen[rows / 2][2]);
  }
  for (size_t i = rows / 2; i + 1 < rows; ++i) {
    step(*resumed, metrics, i);
    EXPECT_EQ(row(*resumed_optimizer), seen[i + 1]) << "resumed, step " << i + 1;
  }
}

}  // namespace levin::optim
