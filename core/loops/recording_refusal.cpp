#include <levin/core/loops/recording_refusal.h>

#include <levin/core/base/log.h>
#include <levin/core/comm/gather_on_first.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace levin {

void RecordingRefusal::note(const std::string& reason) {
  is_refused_ = true;
  untold_ = reason;
  log::rank_zero_warning(fmt::format("[graph] steps are not recorded: {}", reason));
}

void RecordingRefusal::tell(Collective& ranks) {
  const std::vector<std::string> reasons = gather_bytes_on_first(ranks, std::exchange(untold_, {}));
  if (is_refused_) return;  // on rank 0, which has given a reason; the others have none here
  const auto has_one = [](const std::string& reason) { return !reason.empty(); };
  const auto first = std::find_if(reasons.begin(), reasons.end(), has_one);
  if (first == reasons.end()) return;
  const auto others = std::count_if(first, reasons.end(), has_one) - 1;
  log::rank_zero_warning(fmt::format("[graph] steps are not recorded on rank {}{}: {}", first - reasons.begin(),
                                     others == 0 ? "" : fmt::format(" and {} more", others), *first));
}

}  // namespace levin
