#include <levin/core/metrics/metric_collection.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

namespace levin::metrics {

void MetricCollection::add_item(Item item, const std::function<std::unique_ptr<Metric>()>& make) {
  for (const Item& other : items_)
    if (other.name == item.name)
      throw Error("metrics",
                  fmt::format("MetricCollection: there is a metric '{}' already; valid: another name", item.name));
  const std::string key = item.metric->update_key();
  items_.push_back(std::move(item));
  const size_t added = items_.size() - 1;
  for (Group& group : groups_) {
    if (key.empty() || group.key != key) continue;
    // A counter is of the class of the group's first metric, which is the one that is at hand when it is made.
    const bool is_counted = group.counter != nullptr;
    group.items.insert(is_counted ? group.items.end() : group.items.begin(), added);
    if (!is_counted) group.counter = make();
    return;
  }
  groups_.push_back({.key = key, .counter = nullptr, .items = {added}});
}

MetricCollection& MetricCollection::update(const at::Tensor& predictions, const at::Tensor& labels) {
  for (const Group& group : groups_) {
    const Item& first = items_[group.items.front()];
    if (group.counter == nullptr) {
      first.update(*first.metric, predictions, labels);
      continue;
    }
    group.counter->reset();
    first.update(*group.counter, predictions, labels);
    for (const size_t item : group.items) items_[item].metric->add_counted(*group.counter);
  }
  return *this;
}

void MetricCollection::reset() {
  for (const Item& item : items_) item.metric->reset();
}

Metric& MetricCollection::at(const std::string& name) const {
  std::vector<std::string> names;
  for (const Item& item : items_) {
    if (item.name == name) return *item.metric;
    names.push_back(item.name);
  }
  throw Error("metrics",
              fmt::format("MetricCollection: there is no metric '{}'{}", name, valid_names_hint(name, names)));
}

void MetricCollection::visit(const std::function<void(const std::string&, Metric&)>& visitor) const {
  for (const Item& item : items_) visitor(item.name, *item.metric);
}

State MetricCollection::state_dict() const {
  State state = State::map();
  for (const Item& item : items_) state[item.name] = item.metric->state_dict();
  return state;
}

void MetricCollection::load_state_dict(const State& state) {
  for (const Item& item : items_) item.metric->load_state_dict(state.at(item.name));
}

}  // namespace levin::metrics
