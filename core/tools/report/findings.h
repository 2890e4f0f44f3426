#pragma once

#include <levin/core/tools/report/run_folder.h>

#include <string>
#include <vector>

namespace levin::report {

/// What the numbers of a run say about it.
struct Finding {
  enum class Kind { kProblem, kHint };
  Kind kind = Kind::kHint;
  std::string text;
  std::string remedy;  ///< what to do, with the page of the documentation
};

struct Findings {
  std::vector<Finding> found;
  /// Rules that nothing could be said about, as what was missing: "throughput/data_wait_percent (callback ...)".
  std::vector<std::string> without_data;
};

/// The rules of docs/monitoring.md, "Findings". A rule speaks only where its metrics were logged.
Findings find_findings(const RunFolder& run);

}  // namespace levin::report
