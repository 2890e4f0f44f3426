#include <levin/strategies/comm/c10d_store.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/c10d_log.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>

namespace levin {
namespace {

template <typename Call>
auto on_store(const char* operation, const std::string& key, Call&& call) {
  const QuietC10d quiet(QuietC10d::Hides::kWarnings);
  try {
    return call();
  } catch (const RankFailedError&) {
    throw;
  } catch (const std::exception& error) {
    throw CommunicationError("comm",
                             fmt::format("the store of the ranks failed to {} the key '{}': {}; hint: the process that "
                                         "serves it (rank 0, or the launcher) has ended or cannot be reached",
                                         operation, key, c10d_message(error)));
  }
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {
  LEVIN_CHECK(store_, "a store to wrap");
}

C10dStore::~C10dStore() = default;

void C10dStore::set(const std::string& key, const std::string& value) {
  on_store("set", key, [&] { store_->set(key, value); });
}

std::string C10dStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  const QuietC10d quiet(QuietC10d::Hides::kWarnings);
  // c10d takes zero for "wait forever".
  const auto patience = std::max(timeout, std::chrono::milliseconds(1));
  const auto began = std::chrono::steady_clock::now();
  try {
    store_->wait({key}, patience);
  } catch (const RankFailedError&) {
    throw;
  } catch (const std::exception&) {
    // The stores throw their time-outs as several types, some of which are those of other failures too.
    if (std::chrono::steady_clock::now() - began < patience) on_store("read", key, [&] { throw; });
    throw CommunicationError("comm", fmt::format("no rank set the key '{}' within {}", key, format_seconds(timeout)));
  }
  return on_store("read", key, [&] { return store_->get_to_str(key); });
}

int64_t C10dStore::add(const std::string& key, int64_t amount) {
  return on_store("count at", key, [&] { return store_->add(key, amount); });
}

bool C10dStore::contains(const std::string& key) {
  return on_store("look for", key, [&] { return store_->check({key}); });
}

std::unique_ptr<Store> C10dStore::clone() const {
  return on_store("connect again for", "*", [&] { return std::make_unique<C10dStore>(store_->clone()); });
}

}  // namespace levin
