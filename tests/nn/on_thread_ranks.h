#pragma once

#include "tests/support/thread_collective.h"

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace levin::testing {

/// Runs a body on threads that are ranks of a group; the first error of a rank ends the others, and is thrown.
inline void on_thread_ranks(int64_t ranks, const std::function<void(const std::shared_ptr<Collective>& group)>& body) {
  const auto groups = ThreadCollective::make_group(ranks);
  std::vector<std::thread> threads;
  std::exception_ptr first;
  std::mutex mutex;
  for (const auto& group : groups)
    threads.emplace_back([&, group] {
      try {
        body(group);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (first == nullptr) first = std::current_exception();
        }
        group->abort("another rank failed");
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace levin::testing
