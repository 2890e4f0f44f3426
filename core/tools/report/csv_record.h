#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace levin::report {

/// Takes a record of comma-separated values off the front of `text`; none when the record has no end. A cell may be
/// quoted, with two quotation marks for one, and then hold commas and line breaks.
std::vector<std::string> take_csv_record(std::string_view& text);

}  // namespace levin::report
