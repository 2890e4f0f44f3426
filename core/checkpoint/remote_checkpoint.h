#pragma once

#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/object_store.h>

#include <optional>
#include <string>
#include <vector>

namespace levin {

// A checkpoint in a store has the files of one in a folder as objects. There is no renaming in a store, so that its
// manifest, which vouches for all other files, is written last and removed first: without it there is no checkpoint.
// Where a server keeps what it was asked to remove, the manifest is written over with one that says so.

/// A checkpoint in a store whose manifest is there.
struct RemoteCheckpoint {
  RemoteUrl url;
  Manifest manifest;
  std::string manifest_text;
};

/// Uploads a checkpoint's folder as `name` below `folder`. What was there under that name, in an earlier upload, stays
/// until the new one is whole, which is then called NAME~1 and so on; where it cannot be removed then, a warning says
/// so. Throws levin::Error.
void upload_checkpoint(ObjectStore& store, const RemoteUrl& folder, const std::string& name, const std::string& path);

/// Uploads it likewise, where what is there under that name is older or damaged. Throws levin::Error.
void upload_newer_checkpoint(ObjectStore& store, const RemoteUrl& folder, const std::string& name,
                             const std::string& path);

/// Removes what upload_checkpoint uploaded under that name, the objects that manifests list alone. Throws levin::Error.
void remove_remote_checkpoint(ObjectStore& store, const RemoteUrl& folder, const std::string& name);

/// Returns the checkpoint at an address; nothing where there is none. Throws levin::Error.
std::optional<RemoteCheckpoint> find_remote_checkpoint(ObjectStore& store, const RemoteUrl& url);

/// Returns the checkpoints directly below an address, the newest first: by global step, then epoch, then time. Of
/// several uploads of one name all but the newest come last: they are superseded, and were not removed. Those whose
/// manifest is damaged are left out with a warning, which is added to `damaged`. Throws levin::Error.
std::vector<RemoteCheckpoint> remote_checkpoints(ObjectStore& store, const RemoteUrl& folder,
                                                 std::vector<std::string>* damaged = nullptr);

/// Downloads a checkpoint into a folder of its own below `into` and returns its path. It appears there at once, after
/// every file was compared with the manifest; one that is there already is not fetched again. Throws levin::Error
/// where a file is missing or damaged.
std::string download_checkpoint(ObjectStore& store, const RemoteCheckpoint& checkpoint, const std::string& into);

/// Returns the path below `into` of the downloaded checkpoint at an address (of the newest upload of that name) or,
/// where there is none, of the newest whole one below it; warns of each newer one that is not whole. Throws
/// levin::Error when there is none.
std::string fetch_checkpoint(const std::string& url, const std::string& into);

}  // namespace levin
