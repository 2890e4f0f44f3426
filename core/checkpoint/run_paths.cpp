#include <levin/core/checkpoint/run_paths.h>

#include <levin/core/base/file_system.h>

#include <filesystem>
#include <system_error>

namespace levin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFolder = "run_folder";
constexpr const char* kWorkingFolder = "working_folder";

std::string normal(const fs::path& path) {
  std::string text = path.lexically_normal().string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

std::string working_folder() {
  std::error_code ignored;  // it may have been removed
  return fs::current_path(ignored).string();
}

/// The way from a folder to a path.
std::string way(const std::string& folder, const std::string& path) {
  const fs::path here = working_folder();
  return fs::path(normal(here / path)).lexically_proximate(normal(here / folder)).string();
}

std::string joined(const std::string& folder, const std::string& path) { return normal(fs::path(folder) / path); }

std::string text_at(const State& tree, const char* key) {
  const State* const text = tree.is_map() ? tree.find(key) : nullptr;
  return text != nullptr && text->is_string() ? text->as_string() : "";
}

bool exists(const std::string& path) { return FileSystem::current().exists(path); }

}  // namespace

std::string RunPaths::to_saved(const std::string& path) const {
  return path.empty() || run_.empty() ? path : way(run_, path);
}

void RunPaths::save(State& state) const {
  state[kRunFolder] = run_;
  state[kWorkingFolder] = working_folder();
}

void RunPaths::save_run(State& tree, const std::string& checkpoint, const std::string& run) {
  if (!run.empty()) tree[kRunFolder] = way(checkpoint, run);
}

bool RunPaths::is_of_run(const State& tree, const std::string& checkpoint, const std::string& run) {
  const std::string folder = text_at(tree, kRunFolder);
  return !folder.empty() && way(run, joined(checkpoint, folder)) == ".";
}

void RunPaths::note_checkpoint(const std::string& checkpoint, const State& tree) {
  const std::string run = text_at(tree, kRunFolder);
  checkpoint_ = checkpoint;
  moved_run_ = run.empty() ? "" : joined(checkpoint, run);
}

void RunPaths::load(const State& state) {
  const std::string run = text_at(state, kRunFolder);
  const std::string folder = text_at(state, kWorkingFolder);
  is_relative_ = !run.empty();
  // In the same working folder the path keeps the form in which the user gave it.
  run_of_then_ = run.empty() || folder == working_folder() ? run : joined(folder, run);
}

std::string RunPaths::to_path(const std::string& saved) const {
  if (saved.empty()) return "";
  if (!is_relative_) {
    if (exists(saved) || checkpoint_.empty()) return exists(saved) ? saved : "";
    const std::string beside = joined(checkpoint_, "../" + fs::path(saved).filename().string());
    return exists(beside) ? beside : "";
  }
  for (const std::string& run : {moved_run_, run_of_then_})
    if (const std::string path = joined(run, saved); !run.empty() && exists(path)) return path;
  return "";
}

}  // namespace levin
