#include <levin/core/metrics/accuracy.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>

namespace levin::metrics {
namespace {

TEST(Accuracy, EqualsTorchmetrics) {
  const at::Tensor logits = oracle_input("class_logits", {60, 6});
  const at::Tensor labels = oracle_classes("class_labels", {60});
  for (const std::string average : {"micro", "macro", "none"}) {
    for (int64_t top_k = 1; top_k <= 3; ++top_k) {
      Accuracy accuracy({.num_classes = 6, .top_k = top_k, .average = average});
      expect_oracle(accuracy.update(logits, labels).compute(), "accuracy/" + average + "/" + std::to_string(top_k));
    }
  }
}

TEST(Accuracy, IsAMemberAsUsersWriteIt) {
  struct Model {
    Accuracy accuracy_{{.num_classes = 10}};
  } model;
  Accuracy& same = model.accuracy_.update(at::randn({4, 10}), at::randint(10, {4}, at::kLong));
  EXPECT_EQ(&same, &model.accuracy_);
}

TEST(Accuracy, TakesClassIndicesAndMoreDimensions) {
  const at::Tensor logits = at::randn({6, 4, 5, 3});
  const at::Tensor labels = at::randint(4, {6, 5, 3}, at::kLong);
  for (const std::string average : {"micro", "macro"}) {
    const Accuracy::Options options{.num_classes = 4, .average = average};
    const at::Tensor from_logits = Accuracy(options).update(logits, labels).compute();
    const at::Tensor from_classes = Accuracy(options).update(logits.argmax(1), labels.to(at::kInt)).compute();
    const at::Tensor from_rows =
        Accuracy(options).update(logits.permute({0, 2, 3, 1}).reshape({-1, 4}), labels.reshape(-1)).compute();
    EXPECT_TRUE(at::equal(from_logits, from_classes));
    EXPECT_TRUE(at::equal(from_logits, from_rows));
  }
}

TEST(Accuracy, WithAllClassesInTopKEverythingIsRight) {
  Accuracy accuracy({.num_classes = 3, .top_k = 3});
  EXPECT_EQ(accuracy.update(at::randn({20, 3}), at::randint(3, {20}, at::kLong)).compute().item<double>(), 1);
}

TEST(Accuracy, CountsExactlyBeyondFloat32) {
  Accuracy accuracy({.num_classes = 2});
  accuracy.states()[0].value.fill_(int64_t{1} << 24);
  accuracy.states()[1].value.fill_(int64_t{1} << 24);
  accuracy.update(at::zeros({1}, at::kLong), at::zeros({1}, at::kLong));
  EXPECT_EQ(accuracy.states()[0].value.item<int64_t>(), (int64_t{1} << 24) + 1);
}

TEST(Accuracy, NamesWhatIsWrongWithABatch) {
  Accuracy accuracy({.num_classes = 10});
  const at::Tensor labels = at::zeros({4}, at::kLong);
  const auto update = [&](const at::Tensor& predictions, const at::Tensor& labels) {
    return [&accuracy, predictions, labels] { accuracy.update(predictions, labels); };
  };
  expect_error(update(at::randn({5, 10}), labels), {"[metrics] Accuracy", "[5, 10]", "[4]", "valid: logits [N, 10"});
  expect_error(update(at::randn({4, 9}), labels), {"another number of classes", "[4, 9]", "num_classes"});
  expect_error(update(at::randn({4, 10}), labels.unsqueeze(1)), {"do not fit", "[4, 1]", "squeeze(1)"});
  expect_error(update(at::randn({4, 10}), at::randn({4})), {"labels must be integers", "Float"});
  expect_error(update(at::randn({4}), labels), {"class indices must be integers"});
  expect_error(update(at::zeros({4, 10}, at::kLong), labels), {"logits must be floating-point"});
  expect_error(update(at::randn({10}), at::zeros({}, at::kLong)), {"no batch dimension"});
  expect_error(update(at::randn({4, 10}), labels + 10), {"out of range", "got 10", "0 to 9"});
  expect_error(update(at::randn({4, 10}), labels - 1), {"out of range", "got -1"});
  expect_error(update(labels + 11, labels), {"out of range", "got 11"});
  expect_error(
      [] { Accuracy({.num_classes = 3, .top_k = 2}).update(at::zeros({2}, at::kLong), at::zeros({2}, at::kLong)); },
      {"top_k above 1 needs logits"});
  EXPECT_TRUE(all_nan(accuracy.compute())) << "a refused batch counts nothing";
}

TEST(Accuracy, ChecksItsOptions) {
  expect_error([] { Accuracy accuracy({}); }, {"[config]", "num_classes", "at least 2", "got 0"});
  expect_error([] { Accuracy accuracy({.num_classes = 3, .top_k = 4}); }, {"top_k", "got 4", "1 to 3"});
  expect_error([] { Accuracy accuracy({.num_classes = 3, .average = "mean"}); },
               {"average", "micro, macro, none", "mean"});
}

}  // namespace
}  // namespace levin::metrics
