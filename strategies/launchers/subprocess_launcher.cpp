#include <levin/strategies/launchers/subprocess_launcher.h>

#include <levin/core/base/error.h>
#include <levin/strategies/launchers/core_share.h>
#include <levin/strategies/launchers/local_ranks.h>
#include <levin/strategies/launchers/rank_report.h>

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace levin {
namespace {

/// For the end of a rank to be noticed whose connections have broken already.
constexpr std::chrono::milliseconds kDeathNotice{500};

}  // namespace

SubprocessLauncher::SubprocessLauncher(SubprocessLauncherOptions options) : options_(std::move(options)) {}

void SubprocessLauncher::launch(RankProgram& program) {
  LocalRanks& ranks = LocalRanks::instance();
  ranks.start(options_.place);
  LocalRanks::Call call(ranks, options_.on_death);
  const CoreShare share(options_.place.local_world_size);
  try {
    program.run(0);
  } catch (...) {
    const auto killed = call.fail(kDeathNotice);
    if (!killed) throw;
    throw Error("ranks",
                fmt::format("rank {} {}; rank {} then failed: {}{}", killed->rank, killed->how.describe(),
                            options_.place.rank, RankReport::of_current_exception().message, killed->how.hint()));
  }
}

}  // namespace levin
