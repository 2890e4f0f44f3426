#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace levin {

/// Marks this thread as recording work of a device to be replayed later, without the host's part of it.
class RecordingScope {
 public:
  RecordingScope();
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
};

bool is_recording();

/// Takes work of the host that a replay must do again in its place between the device's: `writes` are the tensors whose
/// memory it changes.
using HostWorkRecorder = std::function<void(const std::vector<at::Tensor>& writes, std::function<void()> work)>;
/// Sets what takes this thread's host work while it records; nullptr where a recording has none.
void set_host_work_recorder(const HostWorkRecorder* recorder);
/// Does `work` now, and in each replay of what this thread records. Returns false, having done nothing, where this
/// thread records what cannot repeat work of the host; it then has to be done by operators.
bool do_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work);

/// Throws levin::Error "`what` cannot be recorded" while recording. For calls that a replay would leave out.
void refuse_while_recording(const std::string& what, const std::string& hint);

}  // namespace levin
