#pragma once

#include <levin/core/metrics/metric.h>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::metrics {

/// A metric that takes a batch as two tensors.
template <class T>
concept TakesTensorPairs = std::derived_from<T, Metric> && requires(T& metric, const at::Tensor& tensor) {
  metric.update(tensor, tensor);
};

/// Several metrics of the same predictions and labels, by name. Those that count the same (`Metric::update_key`), such
/// as precision, recall and F1, do so once a batch.
///
///     levin::metrics::MetricCollection metrics_;
///     metrics_.add<levin::metrics::Precision>("val_precision", {.num_classes = 10});
///     metrics_.add<levin::metrics::Recall>("val_recall", {.num_classes = 10});
///
/// and in a step `log_dict(metrics_.update(logits, labels));`
class MetricCollection : public Stateful {
 public:
  /// Adds a metric made of its options, and returns it. Throws levin::Error for a name that there is.
  template <TakesTensorPairs T, class Options>
  T& add(std::string name, const Options& options) {
    return add_metric(std::move(name), std::make_unique<T>(options),
                      [options] { return std::make_unique<T>(options); });
  }
  template <TakesTensorPairs T>
  requires requires { typename T::Options; }
  T& add(std::string name, const typename T::Options& options = {}) {
    return add<T, typename T::Options>(std::move(name), options);
  }
  template <TakesTensorPairs T>
  requires(!requires { typename T::Options; }) T& add(std::string name) {
    return add_metric(std::move(name), std::make_unique<T>(), [] { return std::make_unique<T>(); });
  }

  /// Adds a batch to each metric. Throws what they throw.
  MetricCollection& update(const at::Tensor& predictions, const at::Tensor& labels);
  /// Resets each to before any update.
  void reset();

  size_t size() const { return items_.size(); }
  /// Returns the metric of a name. Throws levin::Error naming those there are.
  Metric& at(const std::string& name) const;
  /// Calls a function with the name of each metric and the metric, in the order in which they were added.
  void visit(const std::function<void(const std::string&, Metric&)>& visitor) const;

  /// Returns the state of each metric by name.
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  using Update = std::function<void(Metric&, const at::Tensor&, const at::Tensor&)>;

  struct Item {
    std::string name;
    std::unique_ptr<Metric> metric;
    Update update;
  };
  /// Metrics that count the same. `counter` has what a batch adds, where there are several.
  struct Group {
    std::string key;
    std::unique_ptr<Metric> counter;
    std::vector<size_t> items;
  };

  template <class T, class Make>
  T& add_metric(std::string name, std::unique_ptr<T> metric, const Make& make) {
    T& added = *metric;
    add_item({.name = std::move(name),
              .metric = std::move(metric),
              .update = [](Metric& updated, const at::Tensor& predictions,
                           const at::Tensor& labels) { static_cast<T&>(updated).update(predictions, labels); }},
             [&make]() -> std::unique_ptr<Metric> { return make(); });
    return added;
  }
  void add_item(Item item, const std::function<std::unique_ptr<Metric>()>& make);

  std::vector<Item> items_;
  std::vector<Group> groups_;
};

}  // namespace levin::metrics
