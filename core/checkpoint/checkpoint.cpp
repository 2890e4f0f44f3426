#include <levin/core/checkpoint/checkpoint.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checkpoint_files.h>
#include <levin/core/checkpoint/checkpoint_writer.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/pending_directory.h>
#include <levin/core/checkpoint/save_channel.h>

namespace levin {

void write_checkpoint(const std::string& path, const State& tree, const CheckpointInfo& info) {
  LoneChannel alone;
  write_through(alone, path, tree, info);
}

void write_sharded_checkpoint(const std::string& path, const State& tree_of_this_rank, const CheckpointInfo& info,
                              Collective& ranks) {
  CollectiveChannel channel(ranks);
  write_through(channel, path, tree_of_this_rank, info);
}

void remove_checkpoint(const std::string& path) {
  // What is left when this is interrupted has the name of an unfinished save, which the next save removes.
  const PendingDirectory aside(path);
  FileSystem::current().rename(path, aside.path() + "/removed");
}

State open_checkpoint(const std::string& path, const std::vector<std::string>& sections) {
  return CheckpointFiles::of(path)->open(sections);
}

State read_checkpoint(const std::string& path, const std::vector<std::string>& sections) {
  const auto files = CheckpointFiles::of(path);
  if (sections.empty()) files->check_all();
  return files->read(sections);
}

State read_outline(const std::string& path) { return CheckpointFiles::of(path)->outline(); }

CheckpointInfo read_info(const std::string& path) { return read_manifest(path).info; }

std::vector<FileCheck> check_files(const std::string& path) {
  const Manifest manifest = read_manifest(path);
  std::vector<FileCheck> checks;
  for (const auto& [name, summary] : manifest.files)
    checks.push_back({name, summary.size, problem_of_file(path, manifest, name)});
  return checks;
}

void verify_checkpoint(const std::string& path) { CheckpointFiles::of(path)->check_all(); }

}  // namespace levin
