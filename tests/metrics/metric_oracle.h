#pragma once

#include <levin/core/base/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin::metrics {

/// An input that tests/oracles/metrics.py wrote, as float32 of a shape.
at::Tensor oracle_input(const std::string& name, at::IntArrayRef shape);
/// The same for labels and targets: int64.
at::Tensor oracle_classes(const std::string& name, at::IntArrayRef shape);
/// What a metric must give, float64.
at::Tensor oracle_value(const std::string& name);

/// Equal up to the float32 in which torchmetrics computes; shapes may differ.
inline void expect_oracle(const at::Tensor& actual, const std::string& name) {
  const at::Tensor expected = oracle_value(name);
  ASSERT_EQ(actual.numel(), expected.numel()) << name;
  EXPECT_TRUE(at::allclose(actual.to(at::kDouble).reshape(-1), expected, 1e-6, 1e-6, /*equal_nan=*/true))
      << name << "\ngot " << actual << "\nexpected " << expected;
}

inline bool all_nan(const at::Tensor& value) { return value.isnan().all().item<bool>(); }

/// Expects `[metrics] NAME: …` with every part of `parts` in it.
template <class Call>
void expect_error(Call&& call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one with: " << parts.front();
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const auto& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

}  // namespace levin::metrics
