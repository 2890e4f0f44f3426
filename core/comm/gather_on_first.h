#pragma once

#include <levin/core/comm/collective.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Of so many ranks each may tell all others what it has to say. Of more, the bytes that all ranks are given together
/// would grow with the square of their number: they tell rank 0.
constexpr int64_t kFewRanks = 16;

/// Returns the bytes of every rank, in rank order, on rank 0, and nothing on the others; blocks. Every rank of the
/// group calls it. Of more than kFewRanks ranks the bytes go along a binomial tree: rank 0 gets log2(ranks) messages,
/// and no rank but those above it in the tree gets what another one says.
std::vector<std::string> gather_bytes_on_first(Collective& ranks, const std::string& bytes);

}  // namespace levin
