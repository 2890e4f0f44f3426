#pragma once

#include <levin/core/optim/parameter_names.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace levin::optim {

/// The problem of oracles/optim_oracles.py: two parameters, and gradients by formula.
struct Problem {
  std::vector<at::Tensor> params = make_parameters();

  static std::vector<at::Tensor> make_parameters() {
    at::Tensor a = at::empty({37}, at::kDouble);
    at::Tensor b = at::empty({3, 4}, at::kDouble);
    for (int i = 0; i < 37; ++i) a.data_ptr<double>()[i] = std::sin(0.7 * i + 0.1);
    for (int i = 0; i < 12; ++i) b.data_ptr<double>()[i] = std::cos(0.3 * i);
    return {a.set_requires_grad(true), b.set_requires_grad(true)};
  }

  /// New gradient tensors, as backward makes after zero_grad.
  void set_gradients(int step) {
    at::NoGradGuard no_grad;
    for (size_t k = 0; k < params.size(); ++k) {
      at::Tensor grad = at::empty(params[k].sizes(), at::kDouble);
      for (int64_t i = 0; i < grad.numel(); ++i)
        grad.data_ptr<double>()[i] =
            0.5 * params[k].data_ptr<double>()[i] +
            std::sin(static_cast<double>((i + 1) * (step + 1)) * 0.37 + static_cast<double>(k));
      params[k].mutable_grad() = grad;
    }
  }

  ParameterNames names() const {
    ParameterNames names;
    names.add("net.weight", params[0]);
    names.add("net.bias", params[1]);
    return names;
  }

  std::vector<double> values() const {
    std::vector<double> all;
    for (const auto& param : params)
      all.insert(all.end(), param.data_ptr<double>(), param.data_ptr<double>() + param.numel());
    return all;
  }

  template <class Optimizer>
  void train(Optimizer& optimizer, int first_step, int steps) {
    for (int step = first_step; step < first_step + steps; ++step) {
      set_gradients(step);
      optimizer.step();
    }
  }

  /// The same with an optimizer that evaluates the gradients itself.
  void train_by_closure(torch::optim::Optimizer& optimizer, int first_step, int steps) {
    for (int step = first_step; step < first_step + steps; ++step)
      optimizer.step([&] {
        set_gradients(step);
        return at::zeros({});
      });
  }
};

inline const std::map<std::string, std::vector<double>>& optimizer_oracles() {
  static const std::map<std::string, std::vector<double>> oracles = {
#include "../oracles/optimizer_oracles.inc"
  };
  return oracles;
}

inline void expect_values(const Problem& problem, const std::string& name, double tolerance = 1e-11) {
  const auto& expected = optimizer_oracles().at(name);
  const auto values = problem.values();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], tolerance) << name << ", element " << i;
}

/// Seven steps with one group of options, against PyTorch's.
template <class Optimizer>
void expect_trajectory(const std::string& name, const typename Optimizer::Options& options) {
  SCOPED_TRACE(name);
  Problem problem;
  Optimizer optimizer(problem.params, options);
  problem.train(optimizer, 0, 7);
  expect_values(problem, name);
}

/// The same with a group for each parameter.
template <class Optimizer>
void expect_trajectory(const std::string& name, const typename Optimizer::Options& first,
                       const typename Optimizer::Options& second) {
  SCOPED_TRACE(name);
  Problem problem;
  Optimizer optimizer({{{problem.params[0]}, first}, {{problem.params[1]}, second}});
  problem.train(optimizer, 0, 7);
  expect_values(problem, name);
}

/// The message of the levin::Error that `action` throws.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace levin::optim
