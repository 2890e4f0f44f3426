#include <levin/core/trainer/cli_results.h>

#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/checkpointer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace levin {
namespace {

/// The sign of a NaN means nothing.
std::string metric_text(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.4g}", value); }

/// "image [100, 1, 28, 28], label [100]"
std::string shapes_text(const Batch& batch) {
  std::string text;
  for (const auto& [name, tensor] : batch.items()) {
    text += (text.empty() ? "" : ", ") + name + " [";
    for (int64_t i = 0; i < tensor.dim(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
    text += "]";
  }
  return text;
}

void write_tensors(const Batch& batch, const std::string& path) {
  auto& files = FileSystem::current();
  const std::string unfinished = path + ".unfinished";
  const auto file = files.create(unfinished);
  write_safetensors(*file, batch.items());
  file->close();
  files.rename(unfinished, path);
}

}  // namespace

std::string fit_ending(const Trainer& trainer) {
  const auto& metrics = trainer.callback_metrics();
  size_t width = 16;
  for (const auto& [name, value] : metrics) width = std::max(width, name.size());
  const auto line = [width](const std::string& name, const std::string& text) {
    return fmt::format("{:<{}}  {}\n", name, width, text);
  };
  std::string ending;
  for (const auto& [name, value] : metrics) ending += line(name, metric_text(value));
  if (const Checkpointer* checkpointer = trainer.checkpoint_callback()) {
    if (const std::string best = checkpointer->best_model_path(); !best.empty())
      ending += line("best checkpoint", best);
    if (const std::string last = checkpointer->last_model_path(); !last.empty())
      ending += line("last checkpoint", last);
  }
  if (const std::string logs = trainer.run_directory(); !logs.empty()) ending += line("logs", logs);
  return ending;
}

std::string metrics_table(const std::vector<MetricMap>& results) {
  std::set<std::string> names;
  for (const auto& loader : results)
    for (const auto& [name, value] : loader) names.insert(name);
  size_t name_width = 6;
  for (const auto& name : names) name_width = std::max(name_width, name.size());
  constexpr size_t kValueWidth = 12;

  std::string table = fmt::format("{:<{}}", "metric", name_width);
  for (size_t i = 0; i < results.size(); ++i)
    table += fmt::format("  {:>{}}", results.size() == 1 ? "value" : fmt::format("loader {}", i), kValueWidth);
  table += "\n" + std::string(name_width + results.size() * (kValueWidth + 2), '-') + "\n";
  for (const auto& name : names) {
    table += fmt::format("{:<{}}", name, name_width);
    for (const auto& loader : results) {
      const auto found = loader.find(name);
      table += fmt::format("  {:>{}}", found == loader.end() ? "" : metric_text(found->second), kValueWidth);
    }
    table += "\n";
  }
  return table;
}

std::string save_predictions(const std::vector<std::vector<Batch>>& predictions, const std::string& run_directory) {
  std::string report;
  for (size_t i = 0; i < predictions.size(); ++i) {
    if (predictions[i].empty()) continue;
    const Batch whole = Batch::concatenate(predictions[i]);
    if (run_directory.empty()) {
      report += fmt::format("predictions (not saved)  {}\n", shapes_text(whole));
      continue;
    }
    const std::string name = predictions.size() == 1 ? "predictions" : fmt::format("predictions_{}", i);
    const std::string path = fmt::format("{}/{}.safetensors", run_directory, name);
    write_tensors(whole, path);
    report += fmt::format("predictions  {}  {}\n", path, shapes_text(whole));
  }
  return report.empty() ? "no predictions\n" : report;
}

}  // namespace levin
