#include <levin/strategies/launchers/subprocess_launcher.h>

#include <levin/core/base/error.h>
#include <levin/strategies/launchers/core_share.h>
#include <levin/strategies/launchers/local_ranks.h>
#include <levin/strategies/launchers/rank_report.h>

#include <fmt/format.h>

#include <chrono>
#include <string>
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
  const auto on_end = [this](int64_t rank, const ProcessEnd& how) {
    const bool goes_on = options_.on_end && options_.on_end(rank, how);
    if (goes_on) lacks_ranks_ = true;
    return goes_on;
  };
  LocalRanks::Call call(ranks, on_end, lacks_ranks_);
  const CoreShare share(options_.place.local_world_size);
  try {
    program.run(0);
  } catch (...) {
    const auto killed = call.fail(kDeathNotice);
    if (!killed) throw;
    const std::string message = RankReport::of_current_exception().message;
    const std::string cause = fmt::format("rank {} {}", killed->rank, killed->how.describe());
    throw Error("ranks", message.starts_with(cause) ? message + killed->how.hint()
                                                    : fmt::format("{}; rank {} then failed: {}{}", cause,
                                                                  options_.place.rank, message, killed->how.hint()));
  }
}

}  // namespace levin
