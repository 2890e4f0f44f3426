#pragma once

#include <levin/core/interfaces/ranks.h>

#include <memory>

namespace levin {

/// The one rank of a strategy that starts none: this process. Every collective is the identity.
class SingleRank final : public Ranks {
 public:
  SingleRank();
  ~SingleRank() override;

  Launcher& launcher() override { return *launcher_; }
  ClusterEnvironment& environment() override { return *environment_; }
  const c10::Device& device() const override { return device_; }
  void set_device(const c10::Device& device) { device_ = device; }
  Collective& collective() override { return *collective_; }

 private:
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<ClusterEnvironment> environment_;
  std::shared_ptr<Collective> collective_;
  c10::Device device_{c10::DeviceType::CPU};
};

}  // namespace levin
