#include <levin/core/checkpoint/finder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/run_paths.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>

namespace levin {
namespace {

std::string checkpoints_folder(const std::string& run) { return run + "/checkpoints"; }

/// N of "version_N".
std::optional<int64_t> version_of(std::string_view name) {
  constexpr std::string_view kPrefix = "version_";
  if (!name.starts_with(kPrefix)) return {};
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t version = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), version);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return {};
  return version;
}

/// Paths of the checkpoints below a folder, in the order of their names; temporary folders begin with a dot.
std::vector<std::string> list_checkpoints(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& name : FileSystem::current().list(folder))
    if (!name.starts_with('.') && looks_like_checkpoint(folder + "/" + name)) paths.push_back(folder + "/" + name);
  return paths;
}

/// What the run's checkpoints say their module is; empty where none that can be read says it.
std::string module_type_of(const std::string& run) {
  for (const auto& path : checkpoints_of(run)) {
    try {
      const State tree = read_outline(path);
      const State* hyper_parameters = tree.find("hyper_parameters");
      const State* type = hyper_parameters != nullptr ? hyper_parameters->find("type") : nullptr;
      if (type != nullptr && type->is_string()) return type->as_string();
    } catch (const Error&) {
      continue;  // whoever loads it says what is wrong with it
    }
  }
  return "";
}

/// The folders version_N that hold a checkpoint, the highest N first.
std::vector<std::string> runs_below(const std::string& default_root_dir) {
  std::map<int64_t, std::string, std::greater<>> by_version;
  for (const auto& name : FileSystem::current().list(default_root_dir)) {
    const auto version = version_of(name);
    const std::string run = default_root_dir + "/" + name;
    if (version && !list_checkpoints(checkpoints_folder(run)).empty()) by_version[*version] = run;
  }
  std::vector<std::string> runs;
  for (const auto& [version, run] : by_version) runs.push_back(run);
  return runs;
}

/// The newest run of the module, and those that were passed over.
struct RunSearch {
  std::optional<std::string> found;
  std::vector<std::string> others;  ///< "version_3 (Gan)"
};

RunSearch search_runs(const std::string& default_root_dir, const std::string& module_type) {
  RunSearch search;
  for (const std::string& run : runs_below(default_root_dir)) {
    const std::string type = module_type.empty() ? "" : module_type_of(run);
    if (type.empty() || type == module_type) {
      search.found = run;
      break;
    }
    search.others.push_back(fmt::format("{} ({})", std::filesystem::path(run).filename().string(), type));
  }
  if (search.found && !search.others.empty())
    log::rank_zero_info_once(
        fmt::format("passed over runs of other modules than {}: {}", module_type, join(search.others)));
  return search;
}

std::string require_newest_run(const std::string& default_root_dir, const std::string& module_type,
                               std::string_view wanted) {
  const RunSearch search = search_runs(default_root_dir, module_type);
  if (search.found) return *search.found;
  if (!search.others.empty())
    throw Error("checkpoint",
                fmt::format("cannot find the {} checkpoint of {}; got only runs of other modules below {}: {}; hint: "
                            "set trainer.default_root_dir, or give a checkpoint's path",
                            wanted, module_type, default_root_dir, join(search.others)));
  throw Error("checkpoint",
              fmt::format("cannot find the {} checkpoint; got no folder version_N/checkpoints with a checkpoint "
                          "below {}; hint: set trainer.default_root_dir, or give a checkpoint's path",
                          wanted, default_root_dir));
}

bool holds_weights_alone(const std::string& path) { return read_outline(path).find("loops") == nullptr; }

std::string newest_good(const std::string& run, std::string_view wanted, CheckpointUse use) {
  std::vector<std::string> problems;
  std::string of_weights;
  for (const auto& path : checkpoints_of(run)) {
    try {
      verify_checkpoint(path);
    } catch (const Error& error) {
      problems.emplace_back(error.what());
      continue;
    }
    if (use == CheckpointUse::kResume && holds_weights_alone(path)) {
      if (of_weights.empty()) of_weights = path;
      continue;
    }
    for (const auto& problem : problems) log::rank_zero_warning(fmt::format("falling back to {}: {}", path, problem));
    return path;
  }
  if (!of_weights.empty()) return of_weights;
  throw Error("checkpoint",
              fmt::format("cannot find the {} checkpoint: none in {} is whole; got {}", wanted, checkpoints_folder(run),
                          problems.empty() ? "no checkpoint" : join(problems, "; ")));
}

/// The states of the callbacks, which are a mapping by name or a list.
std::vector<const State*> callback_states(const State& tree) {
  std::vector<const State*> states;
  const State* callbacks = tree.find("callbacks");
  if (callbacks != nullptr && callbacks->is_map())
    for (const auto& [name, state] : callbacks->as_map()) states.push_back(&state);
  if (callbacks != nullptr && callbacks->is_list())
    for (const State& state : callbacks->as_list()) states.push_back(&state);
  std::erase_if(states, [](const State* state) { return !state->is_map(); });
  return states;
}

/// The state of the callback that knows the best checkpoint, of one that knows a score where there is one: without a
/// monitor the newest counts as the best. nullptr: there is none.
const State* state_with_best_path(const State& tree) {
  const State* found = nullptr;
  for (const State* callback : callback_states(tree)) {
    const State* path = callback->find("best_model_path");
    if (path == nullptr || !path->is_string() || path->as_string().empty()) continue;
    const State* score = callback->find("best_model_score");
    if (score != nullptr && !score->is_null()) return callback;
    if (found == nullptr) found = callback;
  }
  return found;
}

}  // namespace

std::optional<std::string> newest_run(const std::string& default_root_dir, const std::string& module_type) {
  const RunSearch search = search_runs(default_root_dir, module_type);
  if (!search.found && !search.others.empty())
    log::rank_zero_info_once(fmt::format("there is no run of {} below {}, only of other modules: {}", module_type,
                                         default_root_dir, join(search.others)));
  return search.found;
}

std::vector<std::string> checkpoints_of(const std::string& run) {
  struct Item {
    std::tuple<int64_t, int64_t, std::string> age;
    std::string path;
  };
  std::vector<Item> items;
  for (const auto& path : list_checkpoints(checkpoints_folder(run))) {
    constexpr int64_t kNewest = std::numeric_limits<int64_t>::max();
    try {
      const CheckpointInfo info = read_info(path);
      items.push_back({{info.global_step, info.epoch, info.created}, path});
    } catch (const Error&) {
      items.push_back({{kNewest, kNewest, ""}, path});
    }
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.age > b.age; });
  std::vector<std::string> paths;
  for (auto& item : items) paths.push_back(std::move(item.path));
  return paths;
}

std::string newest_checkpoint(const std::string& run, CheckpointUse use) { return newest_good(run, "last", use); }

std::string find_last(const std::string& default_root_dir, const std::string& module_type, CheckpointUse use) {
  return newest_good(require_newest_run(default_root_dir, module_type, "last"), "last", use);
}

std::string best_checkpoint(const std::string& run) {
  const std::string newest = newest_good(run, "best", CheckpointUse::kResume);
  const State tree = read_outline(newest);
  const State* const callback = state_with_best_path(tree);
  if (callback == nullptr)
    throw Error("checkpoint",
                fmt::format("cannot find the best checkpoint; got no best_model_path among the callbacks of {}; "
                            "hint: train with the callback model_checkpoint, its option monitor and without "
                            "save_weights_only, or give a checkpoint's path",
                            newest));
  const std::string& recorded = callback->at("best_model_path").as_string();
  RunPaths paths;
  paths.note_checkpoint(newest, tree);
  paths.load(*callback);
  const std::string moved = checkpoints_folder(run) + "/" + std::filesystem::path(recorded).filename().string();
  for (const auto& path : {paths.to_path(recorded), moved}) {
    if (!looks_like_checkpoint(path)) continue;
    verify_checkpoint(path);
    return path;
  }
  throw Error("checkpoint", fmt::format("cannot find the best checkpoint: {} names it; got none at {} nor at {}",
                                        newest, recorded, moved));
}

std::string find_best(const std::string& default_root_dir, const std::string& module_type) {
  return best_checkpoint(require_newest_run(default_root_dir, module_type, "best"));
}

}  // namespace levin
