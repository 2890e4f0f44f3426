#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

namespace levin {

class ClusterEnvironment;
class Collective;
class ControlPlane;
class DeviceMesh;
class Launcher;

/// Start, meeting and end of the ranks of a strategy, which owns one object of this: a RankGroup, or a SingleRank.
class Ranks {
 public:
  virtual ~Ranks() = default;
  /// Starts the local ranks of a call.
  virtual Launcher& launcher() = 0;
  /// Tells this process its place in the job.
  virtual ClusterEnvironment& environment() = 0;
  /// Makes this object that of a local rank; the first call in each.
  virtual void enter(int64_t /*local_rank*/) {}
  /// Whether the local ranks are threads of one process.
  virtual bool are_threads() const { return false; }
  /// The device of this rank; where replicas share the rank, the first of theirs.
  virtual const c10::Device& device() const = 0;
  /// The group of all ranks.
  virtual Collective& collective() = 0;
  /// How the ranks of the call under way are laid out.
  virtual const DeviceMesh& mesh() const = 0;
  /// The ranks that differ from this one along a dimension of the mesh alone; the identity where there are no others.
  virtual Collective& group(std::string_view dimension) = 0;
  /// The control plane; nullptr while there is one rank.
  virtual ControlPlane* control_plane() const { return nullptr; }
};

}  // namespace levin
