#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace levin {

class ClusterEnvironment;
class Collective;
class ControlPlane;
class Launcher;

/// How the ranks of a strategy start, find each other and part. A strategy owns one: a RankGroup, or a SingleRank.
class Ranks {
 public:
  virtual ~Ranks() = default;
  /// What starts the local ranks of a call.
  virtual Launcher& launcher() = 0;
  /// Who this process is in the job.
  virtual ClusterEnvironment& environment() = 0;
  /// The first call in every local rank: from here on this object is that rank's.
  virtual void enter(int64_t /*local_rank*/) {}
  /// Whether the local ranks are threads of one process.
  virtual bool are_threads() const { return false; }
  /// The device of this rank; of several, where replicas share a rank, the first.
  virtual const c10::Device& device() const = 0;
  /// The group of all ranks.
  virtual Collective& collective() = 0;
  /// nullptr while there is one rank.
  virtual ControlPlane* control_plane() const { return nullptr; }
};

}  // namespace levin
