#include <levin/core/cli/cli_results.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/data/batch.h>
#include <levin/core/data/joined_predictions.h>
#include <levin/core/interfaces/checkpointer.h>

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace levin {
namespace {

/// The sign of a NaN means nothing.
std::string metric_text(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.4g}", value); }

/// "image [100, 1, 28, 28], label [100]"
std::string shapes_text(const std::vector<Batch::Item>& tensors) {
  constexpr size_t kMostNames = 20;
  std::string text;
  for (size_t i = 0; i < std::min(tensors.size(), kMostNames); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", tensors[i].first, c10::str(tensors[i].second.sizes()));
  if (tensors.size() > kMostNames) text += fmt::format(" and {} more", tensors.size() - kMostNames);
  return text;
}

/// Those that a file can hold; says in `problems` why it cannot hold the others.
std::vector<Batch::Item> writable(std::vector<Batch::Item> tensors, std::vector<std::string>& problems) {
  std::erase_if(tensors, [&](const Batch::Item& item) {
    try {
      check_fits_safetensors(item.first, item.second);
      return false;
    } catch (const Error& error) {
      problems.emplace_back(error.what());
      return true;
    }
  });
  return tensors;
}

void write_tensors(const std::vector<Batch::Item>& tensors, const std::string& path) {
  FileSystem::current().replace_file(path, [&](WritableFile& file) { write_safetensors(file, tensors); });
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
    // Without a monitor no checkpoint is better than another.
    if (checkpointer->best_model_score()) ending += line("best checkpoint", checkpointer->best_model_path());
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
  std::vector<std::string> problems;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const std::string name = predictions.size() == 1 ? "predictions" : fmt::format("predictions_{}", i);
    JoinedPredictions joined = join_predictions(predictions[i]);
    if (joined.tensors.empty()) {
      report += fmt::format("no {}: {}\n", name,
                            predictions[i].empty() ? "the loader gave no batch" : "predict_step returned nothing");
      continue;
    }
    for (const std::string& note : joined.notes) log::warning(fmt::format("{}: {}", name, note));
    if (run_directory.empty()) {
      report += fmt::format("{} (not saved)  {}\n", name, shapes_text(joined.tensors));
      continue;
    }
    const auto tensors = writable(std::move(joined.tensors), problems);
    if (tensors.empty()) continue;
    const std::string path = fmt::format("{}/{}.safetensors", run_directory, name);
    try {
      write_tensors(tensors, path);
      report += fmt::format("predictions  {}  {}\n", path, shapes_text(tensors));
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
  if (!problems.empty()) throw Error("predict", fmt::format("{}; saved is:\n{}", join(problems, "; "), report));
  return report;
}

}  // namespace levin
