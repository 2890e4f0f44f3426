/// What an update of metrics costs: a MetricCollection of ten that share their state, and the ten one by one, against
/// one of them alone. They take turns in one process on one core (processor time).
///
///   build/bin/metrics_benchmark [rounds]

#include "measure.h"
#include "run_in_turns.h"

#include <levin/levin.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;

/// Ten metrics of counts by class.
void add_ten(levin::metrics::MetricCollection& metrics, int64_t num_classes) {
  using namespace levin::metrics;
  metrics.add<Precision>("precision", {.num_classes = num_classes});
  metrics.add<Precision>("macro_precision", {.num_classes = num_classes, .average = "macro"});
  metrics.add<Recall>("recall", {.num_classes = num_classes});
  metrics.add<Recall>("macro_recall", {.num_classes = num_classes, .average = "macro"});
  metrics.add<F1Score>("f1", {.num_classes = num_classes});
  metrics.add<FBetaScore>("f2", {.num_classes = num_classes, .beta = 2});
  metrics.add<Specificity>("specificity", {.num_classes = num_classes});
  metrics.add<JaccardIndex>("jaccard", {.num_classes = num_classes});
  metrics.add<HammingDistance>("hamming", {.num_classes = num_classes});
  metrics.add<Accuracy>("accuracy", {.num_classes = num_classes, .average = "macro"});
}

void compare(int64_t batch_size, int64_t num_classes, int64_t rounds) {
  const auto logits = torch::randn({batch_size, num_classes});
  const auto labels = torch::randint(num_classes, {batch_size});
  levin::metrics::Precision one({.num_classes = num_classes});
  levin::metrics::MetricCollection ten;
  add_ten(ten, num_classes);
  std::vector<levin::metrics::MetricCollection> apart(10);
  for (auto& metric : apart) metric.add<levin::metrics::Precision>("precision", {.num_classes = num_classes});
  const std::array<std::function<void()>, 3> updates = {
      [&] { one.update(logits, labels); },
      [&] { ten.update(logits, labels); },
      [&] {
        for (auto& metric : apart) metric.update(logits, labels);
      },
  };
  constexpr int64_t kCalls = 1000;
  std::array<std::vector<double>, 3> seconds;
  for (int64_t round = 0; round < rounds + 1; ++round) {
    for (size_t i = 0; i < updates.size(); ++i) {
      const double started = processor_seconds();
      for (int64_t call = 0; call < kCalls; ++call) updates.at(i)();
      if (round > 0) seconds.at(i).push_back(processor_seconds() - started);
    }
  }
  const auto ratio = [&](size_t i) {
    std::vector<double> ratios;
    for (size_t round = 0; round < seconds[0].size(); ++round)
      ratios.push_back(seconds.at(i)[round] / seconds[0][round]);
    return median(ratios);
  };
  std::printf(
      "%.2f  a collection of ten / one of them; %.2f  ten one by one / one: batch %ld, %ld classes, one %.1f us\n",
      ratio(1), ratio(2), batch_size, num_classes, 1e6 * median(seconds[0]) / kCalls);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 7;
  for (const auto& [batch_size, num_classes] : {std::pair{32, 10}, {256, 10}, {4096, 10}, {256, 1000}})
    compare(batch_size, num_classes, rounds);
  return 0;
}
