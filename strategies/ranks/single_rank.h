#pragma once

#include <levin/core/comm/device_mesh.h>
#include <levin/core/interfaces/ranks.h>

#include <memory>

namespace levin {

class HangWatch;
struct RankStatus;

/// The one rank of a strategy that starts none: this process. Every collective is the identity.
class SingleRank final : public Ranks {
 public:
  SingleRank();
  ~SingleRank() override;

  Launcher& launcher() override { return *launcher_; }
  ClusterEnvironment& environment() override { return *environment_; }
  const c10::Device& device() const override { return device_; }
  /// Begins a call on the device. It is watched while it lasts: see HangWatch. `hang_timeout`: in seconds, 0 for no
  /// watch; `rank_status` may be nullptr, which is not watched either.
  void begin(const c10::Device& device, const RankStatus* rank_status, double hang_timeout);
  /// Ends it.
  void end();
  Collective& collective() override { return *collective_; }
  const DeviceMesh& mesh() const override { return mesh_; }
  Collective& group(std::string_view /*dimension*/) override { return *collective_; }

 private:
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<ClusterEnvironment> environment_;
  std::shared_ptr<Collective> collective_;
  std::unique_ptr<HangWatch> hang_watch_;
  const DeviceMesh mesh_{{}, 1};
  c10::Device device_{c10::DeviceType::CPU};
};

}  // namespace levin
