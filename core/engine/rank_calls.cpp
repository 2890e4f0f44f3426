#include <levin/core/engine/rank_calls.h>

#include <levin/core/base/error.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/connectors/error_context.h>

#include <fmt/format.h>

namespace levin {

RankCalls::Use::Use(RankCalls& calls, const char* name) : calls_(calls) {
  std::thread::id holder;
  if (!calls.user_.compare_exchange_strong(holder, std::this_thread::get_id())) {
    const char* const other = calls.under_way_.load();
    if (holder == std::this_thread::get_id())
      throw Error("engine",
                  fmt::format("{} inside of a step; got a call from a hook or a step of {}; valid: between "
                              "steps{}",
                              name, other,
                              std::string_view(name) == "save"
                                  ? "; hint: trainer().save_checkpoint() in a hook saves at the end of the batch"
                                  : ""));
    throw Error("engine", fmt::format("{} while another thread uses the engine; got {} under way there; valid: one "
                                      "thread at a time; hint: an engine for each thread, or a lock around its calls",
                                      name, other));
  }
  try {
    calls.require_open(name);
    claim_generator();
    calls.parts_.stop.continue_here();
  } catch (...) {
    calls.user_.store(std::thread::id());
    throw;
  }
  calls.under_way_.store(name);
}

void RankCalls::require_open(const char* name) const {
  constexpr const char* kHint = "hint: make a new engine, and load() what was saved";
  if (failure_ != nullptr)
    throw Error("engine", fmt::format("{} after a call that failed; got '{}' there; {}", name,
                                      without_context(error_message(failure_)), kHint));
  if (has_ended())
    throw Error("engine",
                fmt::format("{} after {}; got an engine that has ended; valid: before; {}", name, ended_by_, kHint));
}

void RankCalls::fail(const std::exception_ptr& error) {
  failure_ = on_failure(error);
  std::rethrow_exception(failure_);
}

}  // namespace levin
