#pragma once

#include <levin/core/tools/report/run_folder.h>
#include <levin/core/tools/report/sweep_folder.h>
#include <levin/core/tools/report/time_to_target.h>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace levin::report {

struct PageOptions {
  /// Curves are down-sampled to at most this many points each...
  size_t most_points_of_curve = 2000;
  /// ... and to fewer where there are so many curves that the page would hold more than this, though not below 64.
  size_t most_points = 200'000;
  /// The folder that the page will lie in, from which links to files lead.
  std::string folder = ".";
  /// What the page says about when it was made, in seconds since 1970.
  double now = 0;
  /// When the runs reached these is a part of the page.
  std::vector<Target> targets = {};
};

/// An HTML page that needs nothing but itself: styles, scripts and data are in it. `sweep`: whose runs they are;
/// nullptr for runs of no sweep.
std::string make_page(const std::vector<RunFolder>& runs, const PageOptions& options,
                      const SweepFolder* sweep = nullptr);

/// Text as it stands between an HTML page's tags and in quoted attributes.
std::string html_escaped(std::string_view text);

/// JSON as it stands in a script element: nothing in it ends the element or begins a comment. Bytes that are not UTF-8
/// become U+FFFD.
std::string script_json(const nlohmann::json& value);

}  // namespace levin::report
