#pragma once

namespace levin::metrics::detail {

/// Which ranks have outputs, and with them values to log. Where that is not every rank, the one that shows a value may
/// be another than the one that has it: every name is combined over ranks, whatever its options say, and what is
/// rank_zero_only is that of the first rank with outputs.
struct OutputRanks {
  bool everywhere = true;
  bool is_first = true;  ///< this rank has the first part of the data
};

}  // namespace levin::metrics::detail
