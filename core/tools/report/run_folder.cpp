#include <levin/core/tools/report/run_folder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/json_integer.h>
#include <levin/core/tools/report/event_file_reader.h>
#include <levin/core/tools/report/metrics_csv.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace levin::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventFile = "events.out.tfevents.";
constexpr const char* kLookedFor = "metrics.csv, events.out.tfevents.*, config.yaml, hparams.yaml";

bool is_event_file(const std::string& name) { return name.starts_with(kEventFile); }

bool is_of_run(const std::string& name) {
  return is_event_file(name) || name == "metrics.csv" || name == "config.yaml" || name == "hparams.yaml";
}

/// Folders below `path` that are runs', for a hint. What cannot be read is passed over.
std::vector<std::string> runs_below(const std::string& path) {
  std::vector<std::string> runs;
  for (const auto& name : FileSystem::current().list(path))
    if (const std::string below = fmt::format("{}/{}", path, name); is_run_folder(below)) runs.push_back(below);
  return runs;
}

void check_is_run(const std::string& path, const std::vector<std::string>& names) {
  if (std::any_of(names.begin(), names.end(), is_of_run)) return;
  const auto below = runs_below(path);
  std::string hint;
  if (!below.empty())
    hint = fmt::format("; hint: {} below it {}, such as {}", below.size(), below.size() == 1 ? "is one" : "are some",
                       below.back());
  throw Error("report",
              fmt::format("{} is not a run's folder: none of these files is there: {}{}", path, kLookedFor, hint));
}

void read_events(const std::string& path, RunFolder& run, SeriesTable& table) {
  EventFileReader reader(path);
  Event event;
  while (reader.next(event)) {
    // NaN, which fmin and fmax leave out, at first.
    if (event.wall_time > 0) {
      run.first_time = std::fmin(run.first_time, event.wall_time);
      run.last_time = std::fmax(run.last_time, event.wall_time);
    }
    if (event.session_started) run.status = RunStatus::kUnfinished;
    if (event.session_succeeded) run.status = *event.session_succeeded ? RunStatus::kFinished : RunStatus::kFailed;

    // TensorBoardLogger puts the epoch beside the metrics that it belongs to.
    double epoch = kUnknown;
    for (const auto& [name, value] : event.scalars)
      if (name == "epoch") epoch = value;
    for (const auto& [name, value] : event.scalars)
      if (name != "epoch")
        table.append(name, {.step = event.step, .value = value, .epoch = epoch, .wall_time = event.wall_time});
  }
  const std::string name = fs::path(path).filename().string();
  if (reader.is_torn())
    run.notes.push_back(name +
                        " ends within a record: the run still trains, was killed, or the file is damaged there.");
  if (reader.damaged_records() > 0)
    run.notes.push_back(fmt::format("{} records of {} were damaged and left out.", reader.damaged_records(), name));
}

void read_csv(const std::string& path, RunFolder& run, SeriesTable& table) {
  const auto faults = read_metrics_csv(path, table);
  if (faults.is_torn) run.notes.push_back("metrics.csv ends within a row: the run still trains, or was killed.");
  if (faults.damaged_rows > 0)
    run.notes.push_back(fmt::format("{} rows of metrics.csv were damaged and left out.", faults.damaged_rows));
}

/// The options of a callback in the short or the long form of the list.
const Config* callback_options(const Config& config, const std::string& name) {
  const Config* trainer = config.find("trainer");
  const Config* callbacks = trainer == nullptr ? nullptr : trainer->find("callbacks");
  if (callbacks == nullptr) return nullptr;
  for (const auto& item : callbacks->items()) {
    if (!item.is_mapping()) continue;
    if (const Config* options = item.find(name)) return options;
    const Config* item_name = item.find("name");
    if (item_name != nullptr && item_name->is_scalar() && item_name->text() == name) return &item;
  }
  return nullptr;
}

void read_configuration(const std::string& file, RunFolder& run) {
  Config config;
  try {
    config = Config::load(run.path + "/" + file);
  } catch (const ConfigError& error) {
    run.notes.push_back("The configuration is left out: " + std::string(error.what()));
    return;
  }
  run.configuration = flatten(config);
  for (const char* callback : {"model_checkpoint", "early_stopping"}) {
    const Config* options = callback_options(config, callback);
    const Config* monitor = options == nullptr ? nullptr : options->find("monitor");
    if (monitor == nullptr || !monitor->is_scalar()) continue;
    const Config* mode = options->find("mode");
    run.monitor = monitor->text();
    run.monitor_is_maximized = mode != nullptr && mode->is_scalar() && mode->text() == "max";
    return;
  }
}

DataSeen parse_data(const nlohmann::json& json) {
  DataSeen data;
  const auto number = [](const nlohmann::json& value) { return value.is_null() ? kUnknown : value.get<double>(); };
  for (const auto& tensor : json.at("tensors"))
    data.tensors.push_back({.name = tensor.at("name"),
                            .shape = fmt::format("[{}]", fmt::join(integers_of(tensor.at("shape")), ", ")),
                            .type = tensor.at("type"),
                            .min = number(tensor.at("min")),
                            .max = number(tensor.at("max")),
                            .mean = number(tensor.at("mean"))});
  for (const auto& label : json.at("classes"))
    data.classes.emplace_back(label.at("name").get<std::string>(), integer_of(label.at("count")));
  data.examples = json.at("examples");
  return data;
}

void read_data(RunFolder& run) {
  constexpr std::uintmax_t kMostPictureBytes = 16 << 20;
  try {
    run.data = parse_data(nlohmann::json::parse(FileSystem::current().read_file(run.path + "/data.json")));
  } catch (const nlohmann::json::exception&) {
    run.notes.push_back("data.json is damaged and left out.");
    return;
  } catch (const Error& error) {
    run.notes.push_back("data.json is left out: " + std::string(error.what()));
    return;
  }
  const std::string picture = run.path + "/data.png";
  std::error_code error;
  if (!fs::is_regular_file(picture, error)) return;
  if (fs::file_size(picture, error) > kMostPictureBytes)
    run.notes.push_back("data.png is left out: it has more than 16 MiB.");
  else
    try {
      run.data->picture = FileSystem::current().read_file(picture);
    } catch (const Error& unreadable) {
      run.notes.push_back("data.png is left out: " + std::string(unreadable.what()));
    }
}

void list_files(RunFolder& run) {
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(run.path, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::string below = entry->path().lexically_relative(run.path).string();
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      if (!fs::exists(entry->path() / "manifest.json", ignored)) continue;
      run.checkpoints.push_back(below);
      entry.disable_recursion_pending();
    } else if (!entry->is_regular_file(ignored)) {
      continue;  // a pipe would never end, a link may lead nowhere
    } else if ((name.starts_with("profile_") && name.ends_with(".txt")) || name.ends_with(".operators.txt")) {
      run.profiles.push_back({below, entry->file_size(ignored)});
    } else if (name.ends_with(".pt.trace.json") || name.ends_with(".pt.trace.json.gz")) {
      run.traces.push_back({below, entry->file_size(ignored)});
    }
  }
  std::sort(run.checkpoints.begin(), run.checkpoints.end());
  for (auto* files : {&run.profiles, &run.traces})
    std::sort(files->begin(), files->end(), [](const RunFile& a, const RunFile& b) { return a.path < b.path; });
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator file(path, error), end; !error && file != end; file.increment(error))
    if (is_of_run(file->path().filename().string())) return true;
  return false;
}

RunFolder read_run_folder(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) throw Error("report", "there is no folder " + path);
  if (!fs::is_directory(status)) throw Error("report", path + " is not a folder; give the one that a run writes to");
  if (fs::directory_iterator(path, error); error) throw Error("report", "cannot read " + path + ": " + error.message());
  const auto names = FileSystem::current().list(path);
  check_is_run(path, names);

  RunFolder run;
  run.path = path;
  // Names sort by the time at which the files were begun.
  for (const auto& name : names)
    if (is_event_file(name)) read_events(fmt::format("{}/{}", path, name), run, run.metrics);
  const auto has = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  run.seconds = run.last_time - run.first_time;
  if (has("metrics.csv")) {
    // Its values are doubles, those of event files floats.
    SeriesTable table;
    read_csv(path + "/metrics.csv", run, table);
    run.metrics.merge(table);
  }
  if (has("config.yaml"))
    read_configuration("config.yaml", run);
  else if (has("hparams.yaml"))
    read_configuration("hparams.yaml", run);
  if (has("data.json")) read_data(run);
  list_files(run);
  if (run.metrics.empty()) run.notes.push_back("No value has been logged yet.");
  return run;
}

}  // namespace levin::report
