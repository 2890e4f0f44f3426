#pragma once

#include <levin/strategies/comm/watched_store.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace levin {

class Store;

/// Gives all ranks that meet in a store the same name, which no attempt had before, where earlier attempts of the same
/// job have left their keys in it. Every rank calls it, once an attempt, after those of the attempt before have ended.
/// Throws CommunicationError after `timeout`, that of rank 0 names the ranks that did not come; and RankFailedError
/// once waiting is in vain, where `store` is a watched one too.
std::string agree_on_attempt(Store& store, int64_t rank, int64_t world_size, std::chrono::milliseconds timeout,
                             const WaitingInVain& in_vain = {});

}  // namespace levin
