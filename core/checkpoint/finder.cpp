#include <levin/core/checkpoint/finder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/manifest.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <limits>
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

std::string require_newest_run(const std::string& default_root_dir, std::string_view wanted) {
  if (auto run = newest_run(default_root_dir)) return *run;
  throw Error("checkpoint",
              fmt::format("cannot find the {} checkpoint; got no folder version_N/checkpoints with a checkpoint "
                          "below {}; hint: set trainer.default_root_dir, or give a checkpoint's path",
                          wanted, default_root_dir));
}

std::string newest_good(const std::string& run, std::string_view wanted) {
  std::vector<std::string> problems;
  for (const auto& path : checkpoints_of(run)) {
    try {
      verify_checkpoint(path);
    } catch (const Error& error) {
      problems.emplace_back(error.what());
      continue;
    }
    for (const auto& problem : problems) log::rank_zero_warning(fmt::format("falling back to {}: {}", path, problem));
    return path;
  }
  throw Error("checkpoint", fmt::format("cannot find the {} checkpoint: none in {} is whole; got {}", wanted,
                                        checkpoints_folder(run), join(problems, "; ")));
}

std::optional<std::string> best_path_in(const State& entry) {
  if (!entry.is_map()) return {};
  const State* path = entry.find("best_model_path");
  if (path == nullptr || !path->is_string() || path->as_string().empty()) return {};
  return path->as_string();
}

/// The callbacks' states are a mapping by name or a list.
std::optional<std::string> best_model_path(const State& tree) {
  const State* callbacks = tree.find("callbacks");
  if (callbacks == nullptr) return {};
  if (callbacks->is_map()) {
    for (const auto& [name, entry] : callbacks->as_map())
      if (auto path = best_path_in(entry)) return path;
  } else if (callbacks->is_list()) {
    for (const auto& entry : callbacks->as_list())
      if (auto path = best_path_in(entry)) return path;
  }
  return {};
}

}  // namespace

std::optional<std::string> newest_run(const std::string& default_root_dir) {
  std::optional<std::string> newest;
  int64_t newest_version = -1;
  for (const auto& name : FileSystem::current().list(default_root_dir)) {
    const auto version = version_of(name);
    const std::string run = default_root_dir + "/" + name;
    if (!version || *version <= newest_version || list_checkpoints(checkpoints_folder(run)).empty()) continue;
    newest = run;
    newest_version = *version;
  }
  return newest;
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

std::string find_last(const std::string& default_root_dir) {
  return newest_good(require_newest_run(default_root_dir, "last"), "last");
}

std::string find_best(const std::string& default_root_dir) {
  const std::string run = require_newest_run(default_root_dir, "best");
  const std::string newest = newest_good(run, "best");
  const auto recorded = best_model_path(read_outline(newest));
  if (!recorded)
    throw Error("checkpoint",
                fmt::format("cannot find the best checkpoint; got no best_model_path among the callbacks of {}; "
                            "hint: train with the callback model_checkpoint and its option monitor",
                            newest));
  const std::string moved = checkpoints_folder(run) + "/" + std::filesystem::path(*recorded).filename().string();
  for (const auto& path : {*recorded, moved}) {
    if (!looks_like_checkpoint(path)) continue;
    verify_checkpoint(path);
    return path;
  }
  throw Error("checkpoint", fmt::format("cannot find the best checkpoint: {} names it; got none at {} nor at {}",
                                        newest, *recorded, moved));
}

}  // namespace levin
