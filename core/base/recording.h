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

/// Says that the step which this thread takes is one of a recording, watched or replayed: its gradients lie in memory
/// that the recording refers to as well.
void set_step_is_recorded(bool is_recorded);
bool step_is_recorded();

/// Says in which unit this thread's forward is, for messages about what is recorded; nullptr: in none. The name
/// outlives the recording. Returns what was said before.
const std::string* set_recording_unit(const std::string* name);
const std::string* recording_unit();

/// Observes work that is really done while it is recorded: what cannot be recorded is no error then.
class RecordingObserver {
 public:
  virtual ~RecordingObserver() = default;
  /// Does work of the host that a replay must do again in its place between the device's: `writes` are the tensors
  /// whose memory it changes.
  virtual void do_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work) = 0;
  /// Takes note that what is being recorded cannot be replayed.
  virtual void refuse(const std::string& why) = 0;
};
/// Marks this thread as recording what `observer` observes; nullptr ends that.
void set_recording_observer(RecordingObserver* observer);
/// Does `work` now, and in each replay of what this thread records. Returns false, having done nothing, where this
/// thread records what cannot repeat work of the host; it then has to be done by operators.
bool do_host_work(const std::vector<at::Tensor>& writes, std::function<void()> work);

/// While recording, says that `what` cannot be recorded: to the observer, else by throwing levin::Error. For calls that
/// a replay would leave out.
void refuse_while_recording(const std::string& what, const std::string& hint);

}  // namespace levin
