#include <levin/strategies/ranks/single_rank.h>

#include <levin/core/comm/hang_watch.h>
#include <levin/core/comm/single_process.h>
#include <levin/strategies/environments/local_environment.h>
#include <levin/strategies/launchers/in_process_launcher.h>

namespace levin {

SingleRank::SingleRank()
    : launcher_(std::make_unique<InProcessLauncher>()),
      environment_(std::make_unique<LocalEnvironment>()),
      collective_(make_single_process_collective()) {}

SingleRank::~SingleRank() = default;

void SingleRank::begin(const c10::Device& device, const RankStatus* rank_status, double hang_timeout) {
  device_ = device;
  hang_watch_ = make_hang_watch(rank_status, hang_timeout);
}

void SingleRank::end() { hang_watch_.reset(); }

}  // namespace levin
