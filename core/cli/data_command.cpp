#include <levin/core/cli/data_command.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/host_memory.h>
#include <levin/core/base/png.h>
#include <levin/core/connectors/missing_data_hint.h>
#include <levin/core/connectors/set_up_scope.h>
#include <levin/core/data/batch_summary.h>
#include <levin/core/data/class_names.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/fetch_times.h>
#include <levin/core/interfaces/loaders_of.h>
#include <levin/core/interfaces/module.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace levin {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct StageWords {
  Stage stage;
  const char* name;  ///< of the option
  const char* data;
  const char* hook;
};

constexpr StageWords kStages[] = {{Stage::kFit, "train", "training", "train_dataloader"},
                                  {Stage::kValidate, "val", "validation", "val_dataloader"},
                                  {Stage::kTest, "test", "test", "test_dataloader"},
                                  {Stage::kPredict, "predict", "prediction", "predict_dataloader"}};

const StageWords& words_of(Stage stage) {
  return *std::find_if(std::begin(kStages), std::end(kStages), [&](const auto& words) { return words.stage == stage; });
}

/// Lines with their cells below each other; the first `left` columns begin at the left, numbers end at the right.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += i < left ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string number_text(const std::optional<double>& number) { return number ? fmt::format("{:.4g}", *number) : "-"; }

std::string tensors_text(const Batch& batch) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "shape", "type", "min", "max", "mean"}};
  std::string notes;
  for (const auto& tensor : data::summarize(batch)) {
    rows.push_back({tensor.name, fmt::format("[{}]", fmt::join(tensor.shape, ", ")), tensor.type,
                    number_text(tensor.min), number_text(tensor.max), number_text(tensor.mean)});
    if (tensor.not_finite > 0)
      notes += fmt::format("{} of '{}' {} NaN or infinite\n", counted(tensor.not_finite, "value"), tensor.name,
                           tensor.not_finite == 1 ? "is" : "are");
  }
  return table(rows, 3) + notes;
}

std::string classes_text(const std::vector<int64_t>& counts, const std::vector<std::string>& names) {
  constexpr size_t kMost = 100;
  std::string text;
  size_t shown = 0;
  for (size_t i = 0; i < std::max(counts.size(), names.size()); ++i) {
    const int64_t count = i < counts.size() ? counts[i] : 0;
    if (count == 0 && i >= names.size()) continue;
    if (shown++ == kMost) return text + ", ...";
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", i < names.size() ? names[i] : std::to_string(i), count);
  }
  return text;
}

/// Numbers of workers that are tried: 0, 1, 2, 4, ... up to the cores.
std::vector<int64_t> tried_workers() {
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<int64_t> workers = {0};
  for (int64_t count = 1; count <= cores; count *= 2) workers.push_back(count);
  return workers;
}

struct Pace {
  int64_t examples = 0;
  int64_t of_first_epoch = 0;  ///< examples
  int64_t batches = 0;
  double seconds = 0;
};

/// Reads for so many seconds, from the beginning of epoch 0 on; epochs follow each other. Counts the classes of epoch
/// 0.
Pace read(const DataLoader& loader, int64_t workers, double seconds, uint64_t seed, data::ClassCounts* classes) {
  const DataLoader reader = loader.with_num_workers(workers);
  Pace pace;
  const auto begin = Clock::now();
  double aside = 0;  // spent counting
  for (int64_t epoch = 0;; ++epoch) {
    const int64_t before = pace.batches;
    auto pass = reader.pass({.seed = seed, .epoch = epoch});
    while (auto batch = pass.next()) {
      pace.examples += batch->size();
      ++pace.batches;
      if (epoch == 0) pace.of_first_epoch += batch->size();
      if (classes != nullptr && epoch == 0) {
        const auto started = Clock::now();
        classes->add(*batch);
        aside += seconds_since(started);
      }
      pace.seconds = seconds_since(begin) - aside;
      if (pace.seconds >= seconds) return pace;
    }
    if (pace.batches == before) return pace;
  }
}

std::string time_text(const Pace& pace, const data::FetchTimes& times) {
  if (times.parts().empty() || pace.examples == 0) return "";
  const auto per_example = [&](double seconds) { return 1e3 * seconds / static_cast<double>(pace.examples); };
  std::vector<std::vector<std::string>> rows = {{"time of an example in one thread", "ms", "%"}};
  const auto add = [&](const std::string& name, double seconds) {
    rows.push_back(
        {name, fmt::format("{:.3f}", per_example(seconds)), fmt::format("{:.0f}", 100 * seconds / pace.seconds)});
  };
  double rest = pace.seconds;
  for (const auto& [name, time] : times.parts()) {
    const double seconds = std::chrono::duration<double>(time).count();
    add(name, seconds);
    rest -= seconds;
  }
  add("the rest", std::max(rest, 0.0));
  add("together", pace.seconds);
  return "\n" + table(rows, 1);
}

void write_picture(const std::string& path, const at::Tensor& picture) {
  FileSystem::current().replace_file(path, encode_png(picture));
}

}  // namespace

void DataCommandOptions::describe(Schema<DataCommandOptions>& schema) {
  using O = DataCommandOptions;
  schema.field(
      "stage", &O::stage, "stage of the data: train, val, test or predict",
      {{"train", Stage::kFit}, {"val", Stage::kValidate}, {"test", Stage::kTest}, {"predict", Stage::kPredict}});
  schema.field("output", &O::output, "the picture, a PNG file, which is replaced; also -o FILE; empty: none");
  schema.field("images", &O::images, "most images in the picture").at_least(1).at_most(10'000);
  schema
      .field("num_workers", &O::num_workers,
             "numbers of workers to measure; null: 0, 1, 2, 4, ... up to the cores; []: none")
      .require("a list of numbers from 0 to 1024", [](const std::optional<std::vector<int64_t>>& workers) {
        return !workers || std::all_of(workers->begin(), workers->end(), [](int64_t count) {
          return count >= 0 && count <= DataLoaderOptions::kMaxWorkers;
        });
      });
  schema.field("seconds", &O::seconds, "time of each measurement (s)").above(0).at_most(3600);
}

std::string inspect_data(Module& module, DataModule* data, const DataCommandOptions& options, uint64_t seed) {
  keep_freed_memory();  // as training does
  const StageWords& words = words_of(options.stage);
  const auto begin = Clock::now();
  if (data != nullptr) data->prepare_data();
  module.prepare_data();
  SetUpScope set_up(module, data, options.stage);
  DataLoaders loaders;
  if (data != nullptr) loaders = loaders_of(*data, options.stage);
  if (loaders.empty()) loaders = loaders_of(module, options.stage);
  if (loaders.empty())
    throw Error("data", fmt::format("there are no {} data; valid: {}() of the data module or of the module, or another "
                                    "--stage: train, val, test, predict{}",
                                    words.data, words.hook, missing_data_hint(data, options.stage)));
  const double prepared = seconds_since(begin);

  const DataLoader& loader = loaders.front();
  auto first = loader.pass({.seed = seed}).next();
  if (!first || first->empty())
    throw Error("data", fmt::format("the {} loader gives no batch; hint: a smaller batch_size, or drop_last: false",
                                    words.data));
  const auto num_examples = loader.num_examples();
  const auto num_batches = loader.num_batches();
  std::string text =
      fmt::format("{} data: {}, {} of {}; prepared in {:.2f} s{}\n\n", words.data,
                  num_examples ? counted(*num_examples, "example") : "a stream of unknown length",
                  num_batches ? fmt::format("{} {}", *num_batches, *num_batches == 1 ? "batch" : "batches") : "batches",
                  loader.has_batch_sampler() ? "different sizes" : std::to_string(first->size()), prepared,
                  loaders.size() > 1 ? "; the first of several loaders" : "");

  Batch batch = std::move(*first);
  if (data != nullptr) batch = data->on_before_batch_transfer(std::move(batch), 0);
  batch = module.on_before_batch_transfer(std::move(batch), 0).to(at::kCPU);
  if (data != nullptr) batch = data->on_after_batch_transfer(std::move(batch), 0);
  batch = module.on_after_batch_transfer(std::move(batch), 0);
  text += tensors_text(batch);

  if (!options.output.empty()) {
    if (const auto picture = data::batch_picture(batch, options.images)) {
      write_picture(options.output, *picture);
      text += fmt::format("\npicture: {} of {}\n", options.output,
                          counted(std::min(options.images, batch.size()), "image"));
    } else {
      text += "\nno picture: no tensor is [N, 1 or 3, height, width]\n";
    }
  }

  const auto workers = options.num_workers.value_or(tried_workers());
  if (!workers.empty()) {
    data::ClassCounts classes;
    // As in a worker, in one thread: where its time goes, and which classes come by.
    const auto measure_alone = [&] {
      const int threads = at::get_num_threads();
      at::set_num_threads(1);
      const data::FetchTimes times;
      const Pace pace = read(loader, 0, options.seconds, seed, &classes);
      at::set_num_threads(threads);
      return std::pair(pace, time_text(pace, times));
    };
    const auto [alone, times] = measure_alone();
    const auto* named = dynamic_cast<const data::ClassNames*>(data);
    if (!classes.counts().empty())
      text +=
          fmt::format("\nclasses of {}: {}\n", counted(alone.of_first_epoch, "example"),
                      classes_text(classes.counts(), named != nullptr ? named->classes() : std::vector<std::string>{}));
    std::vector<std::vector<std::string>> rows = {{"workers", "examples/s"}};
    for (const int64_t count : workers) {
      const Pace pace = read(loader, count, options.seconds, seed, nullptr);
      rows.push_back({std::to_string(count), fmt::format("{:.0f}", static_cast<double>(pace.examples) / pace.seconds)});
    }
    text += "\n" + table(rows, 0) + times;
  }
  set_up.tear_down();
  return text;
}

}  // namespace levin
