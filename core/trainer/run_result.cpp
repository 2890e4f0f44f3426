#include <levin/core/trainer/run_result.h>

#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/data/batch_state.h>

namespace levin {
namespace {

constexpr const char* kFolder = "/outcome";

/// One item of a list for each item.
template <class Items, class Function>
State list_of(const Items& items, const Function& to_item) {
  State list = State::list();
  for (const auto& item : items) list.push_back(to_item(item));
  return list;
}

State metrics_state(const MetricMap& metrics) {
  State state = State::map();
  for (const auto& [name, value] : metrics) state[name] = value;
  return state;
}

}  // namespace

void RunResult::write(const std::string& directory) const {
  State tree = State::map();
  tree["metrics"] = list_of(metrics, metrics_state);
  tree["predictions"] = list_of(predictions, [](const auto& of_loader) {
    return list_of(of_loader, [](const Batch& batch) { return to_state(batch); });
  });
  tree["reports"] = list_of(reports, [](const std::string& report) { return State(report); });
  tree["run_directory"] = run_directory;
  tree["signal"] = static_cast<int64_t>(signal);
  tree["is_interrupted"] = is_interrupted;
  tree["stop_reason"] = stop_reason;
  tree["fit"] = fit;
  write_checkpoint(directory + kFolder, tree, {});
}

RunResult RunResult::read(const std::string& directory) {
  const State tree = read_checkpoint(directory + kFolder);
  RunResult result;
  for (const State& of_loader : tree.at("metrics").as_list()) {
    MetricMap& metrics = result.metrics.emplace_back();
    for (const auto& [name, value] : of_loader.as_map()) metrics[name] = value.as_double();
  }
  for (const State& of_loader : tree.at("predictions").as_list()) {
    auto& batches = result.predictions.emplace_back();
    for (const State& batch : of_loader.as_list()) batches.push_back(to_batch(batch));
  }
  for (const State& report : tree.at("reports").as_list()) result.reports.push_back(report.as_string());
  result.run_directory = tree.at("run_directory").as_string();
  result.signal = static_cast<int>(tree.at("signal").as_int());
  result.is_interrupted = tree.at("is_interrupted").as_bool();
  result.stop_reason = tree.at("stop_reason").as_string();
  result.fit = tree.at("fit");
  return result;
}

}  // namespace levin
