#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/checkpoint/object_store.h>
#include <levin/core/checkpoint/pending_directory.h>

#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace levin {

/// Uploads checkpoints of a run to one folder of a store, on a thread of its own, in the order in which they were
/// saved. What goes wrong is a warning, never an error: what was not uploaded is tried again at the next save and at
/// the end.
///
/// What waits is kept by hard links beside the checkpoint, where the file system has them, or else in a copy, so that
/// the checkpoint may be replaced or removed meanwhile. When it is removed before its turn, it is not uploaded.
class CheckpointUploader {
 public:
  /// Throws levin::Error for an address that is none, and where keys are not set.
  explicit CheckpointUploader(const std::string& url, ObjectStoreOptions options = {});
  /// Finishes.
  ~CheckpointUploader();
  CheckpointUploader(const CheckpointUploader&) = delete;
  CheckpointUploader& operator=(const CheckpointUploader&) = delete;

  /// Takes over a whole checkpoint, to be uploaded under the name of its folder; once that is done, what was uploaded
  /// of `superseded`, a path or empty, is removed. Never throws. For any thread.
  void add(const std::string& path, const std::string& superseded) noexcept;
  /// Takes over a checkpoint of an earlier process, which may have ended before it was uploaded: it is, unless the
  /// store has one of that name that is as new. Never throws. For any thread.
  void add_missing(const std::string& path) noexcept;
  /// Waits until everything is uploaded or has failed once more, which ends the thread. Never throws.
  void finish() noexcept;

 private:
  struct Job {
    std::string name;
    std::unique_ptr<PendingDirectory> files;  ///< a folder that nobody changes
    std::vector<std::string> superseded;      ///< names
    bool only_newer = false;                  ///< than what the store has of that name
    bool is_uploaded = false;                 ///< what it supersedes is still to be removed
  };

  void add(const std::string& path, const std::string& superseded, bool only_newer) noexcept;
  void run();
  /// Returns what went wrong, or nothing; in `is_away` whether it would with any other job.
  std::string perform(Job& job, bool& is_away);
  void remove_superseded(const std::string& name);

  const RemoteUrl folder_;
  ObjectStore store_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::list<Job> jobs_ LEVIN_GUARDED_BY(mutex_);
  const Job* working_ LEVIN_GUARDED_BY(mutex_) = nullptr;  ///< the one that is being uploaded
  bool is_due_ LEVIN_GUARDED_BY(mutex_) = false;           ///< something was added
  bool is_over_ LEVIN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// Throws levin::Error where a store refuses to list a folder: a bucket that is not there, wrong keys. A store that
/// gives no answer is a warning.
void check_remote_folder(const std::string& url);

}  // namespace levin
