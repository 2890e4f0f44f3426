#include <levin/core/connectors/checkpoint_finder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/remote_checkpoint.h>

#include <fmt/format.h>

#include <filesystem>
#include <tuple>
#include <typeinfo>
#include <vector>

namespace levin {

std::string CheckpointFinder::module_type() const {
  const Module& module = *state_.module;
  return detail::demangled(typeid(module).name());
}

std::string CheckpointFinder::downloads() const { return options_.given.default_root_dir + "/remote"; }

std::string CheckpointFinder::find(const std::string& ckpt, CheckpointUse use) const {
  if (is_remote(ckpt)) return fetch_checkpoint(ckpt, downloads());
  if (ckpt == "auto" || ckpt == "last")
    for (const Checkpointer* checkpointer : callbacks_.checkpointers())
      if (const std::string folder = checkpointer->remote_folder(); !folder.empty())
        return find_newest(ckpt, folder, use);
  return find_here(ckpt, use);
}

std::string CheckpointFinder::find_newest(const std::string& ckpt, const std::string& remote_folder,
                                          CheckpointUse use) const {
  const std::string here = find_here("auto", use);
  const RemoteUrl folder = parse_remote_url(remote_folder, "upload_to");
  std::vector<std::string> problems;
  try {
    ObjectStore store(folder);
    for (const RemoteCheckpoint& remote : remote_checkpoints(store, folder, &problems)) {
      if (!here.empty() && std::filesystem::is_directory(here)) {
        const CheckpointInfo info = read_info(here);
        const CheckpointInfo& there = remote.manifest.info;
        if (std::tie(info.global_step, info.epoch) >= std::tie(there.global_step, there.epoch)) return here;
      }
      try {
        return download_checkpoint(store, remote, downloads());
      } catch (const StoreUnavailable&) {
        throw;
      } catch (const Error& error) {
        problems.emplace_back(error.what());
        log::warning(fmt::format("falling back to the checkpoint before it: {}", error.what()));
      }
    }
  } catch (const StoreUnavailable& error) {
    // Without one here, the run would begin anew and its checkpoints take the place of better ones.
    if (here.empty()) throw;
    log::warning(fmt::format("going on from {}, than which the store may have a newer one: {}", here, error.what()));
  }
  if (here.empty() && !problems.empty())
    throw Error("checkpoint", fmt::format("cannot find the newest checkpoint: none at {} is whole; got {}",
                                          folder.text(), join(problems, "; ")));
  return here.empty() ? find_here(ckpt, use) : here;
}

std::string CheckpointFinder::find_here(const std::string& ckpt, CheckpointUse use) const {
  if (ckpt.empty()) return {};
  const auto& [root, run] = options_.run_folder;
  const auto checkpointers = callbacks_.checkpointers();
  if (ckpt == "best") {
    if (!checkpointers.empty() && !checkpointers.front()->best_model_path().empty())
      return checkpointers.front()->best_model_path();
    return run.empty() ? find_best(root, module_type()) : best_checkpoint(run);
  }
  if (!run.empty() && (ckpt == "auto" || ckpt == "last")) {
    if (ckpt == "auto" && checkpoints_of(run).empty()) return {};
    return newest_checkpoint(run, use);
  }
  if (ckpt == "auto" && !newest_run(root, module_type())) return {};
  if (ckpt == "auto" || ckpt == "last") return find_last(root, module_type(), use);
  if (!FileSystem::current().exists(ckpt))
    throw Error("checkpoint",
                fmt::format("there is no checkpoint '{}'; valid: last, auto, best, the path of a checkpoint's "
                            "folder, or s3://BUCKET/FOLDER",
                            ckpt));
  return ckpt;
}

}  // namespace levin
