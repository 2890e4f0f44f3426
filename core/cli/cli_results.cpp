#include <levin/core/cli/cli_results.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/data/batch.h>
#include <levin/core/data/joined_predictions.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/trainer/metrics_table.h>

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace levin {
namespace {

/// "image [100, 1, 28, 28], label [100], caption (100 texts)"
std::string shapes_text(const std::vector<Batch::Item>& tensors, const std::vector<Batch::TextItem>& texts = {}) {
  constexpr size_t kMostNames = 20;
  std::vector<std::string> shapes;
  for (const auto& [name, tensor] : tensors) shapes.push_back(fmt::format("{} {}", name, c10::str(tensor.sizes())));
  for (const auto& [name, of_rows] : texts)
    shapes.push_back(fmt::format("{} ({})", name, counted(std::ssize(of_rows), "text")));
  const size_t more = shapes.size() - std::min(shapes.size(), kMostNames);
  shapes.resize(shapes.size() - more);
  return join(shapes) + (more == 0 ? "" : fmt::format(" and {} more", more));
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

std::string save_predictions(const std::vector<std::vector<Batch>>& predictions, const std::string& run_directory) {
  std::string report;
  std::vector<std::string> problems;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const std::string name = predictions.size() == 1 ? "predictions" : fmt::format("predictions_{}", i);
    JoinedPredictions joined = join_predictions(predictions[i]);
    if (joined.tensors.empty() && joined.texts.empty()) {
      report += fmt::format("no {}: {}\n", name,
                            predictions[i].empty() ? "the loader gave no batch" : "predict_step returned nothing");
      continue;
    }
    for (const std::string& note : joined.notes) log::warning(fmt::format("{}: {}", name, note));
    if (run_directory.empty()) {
      report += fmt::format("{} (not saved)  {}\n", name, shapes_text(joined.tensors, joined.texts));
      continue;
    }
    const auto save = [&](const std::string& path, const std::string& shapes, const auto& write) {
      try {
        write(path);
        report += fmt::format("predictions  {}  {}\n", path, shapes);
      } catch (const Error& error) {
        problems.emplace_back(error.what());
      }
    };
    const std::string path = fmt::format("{}/{}", run_directory, name);
    if (const auto tensors = writable(std::move(joined.tensors), problems); !tensors.empty())
      save(path + ".safetensors", shapes_text(tensors), [&](const auto& file) { write_tensors(tensors, file); });
    if (!joined.texts.empty())
      save(path + ".csv", shapes_text({}, joined.texts),
           [&](const auto& file) { FileSystem::current().replace_file(file, csv_of_texts(joined.texts)); });
  }
  if (!problems.empty()) throw Error("predict", fmt::format("{}; saved is:\n{}", join(problems, "; "), report));
  return report;
}

}  // namespace levin
