#pragma once

#include <levin/core/base/error_notes.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace torch::nn {
class Module;
}

namespace levin {

class Batch;
class Strategy;
struct TrainerState;

/// Description of a call of user code, for the message of an error that leaves it.
struct UserCall {
  const char* name;                     ///< name of the hook or step
  const std::type_info& type;           ///< type of the object
  torch::nn::Module* module = nullptr;  ///< the object, where it is a module
  const Batch* batch = nullptr;
  int64_t batch_idx = -1;
  int64_t dataloader_idx = -1;

  /// Arguments of the hooks: the last batch is what they got, the first numbers are those of the batch and the loader.
  void take(const Batch& given) { batch = &given; }
  void take(int64_t index) { (batch_idx < 0 ? batch_idx : dataloader_idx) = index; }
  template <class Other>
  requires(!std::is_integral_v<Other>) void take(const Other& /*unused*/) {}
};

void note_call(ErrorNotes& notes, const TrainerState& state, const UserCall& call);
/// Notes the batch of the loop under way that an error belongs to.
void note_batch(ErrorNotes& notes, const TrainerState& state, int64_t batch_idx, int64_t dataloader_idx = -1);

/// Calls `run`, which calls a hook or step of `object` with these arguments. An error that leaves it is noted.
template <class Object, class Run, class... Arguments>
auto call_user(const TrainerState& state, const char* name, Object& object, Run&& run, const Arguments&... arguments)
    -> decltype(run()) {
  return noting_errors(std::forward<Run>(run), [&](ErrorNotes& notes) {
    UserCall call{.name = name, .type = typeid(object)};
    if constexpr (std::is_convertible_v<Object*, torch::nn::Module*>) call.module = &object;
    (call.take(arguments), ...);
    note_call(notes, state, call);
  });
}

/// Returns `error`, whose text now also says where it happened, below what it said before: "in training_step of
/// Classifier, batch 3 of epoch 0, unit net.2 (Linear 784→128), batch {...}", and the lines of the user's code. It
/// stays the same object where its class keeps its text in std::runtime_error, std::logic_error or c10::Error; a class
/// of the standard library that has none comes back as one derived from it; with others the log says it. `notes`: as
/// noted about it, or about the error that it stands for.
std::exception_ptr with_context(const std::exception_ptr& error, ErrorNotes notes, const TrainerState& state,
                                Strategy& strategy);

/// Returns the failure of another rank as a RankFailedError, where `error` is of this rank's communication and came of
/// that failure; else `error`. Waits a few seconds for the news of it.
std::exception_ptr root_cause(const std::exception_ptr& error, Strategy& strategy);

/// Whether an error came of the exchange with other ranks: it failed, or their calls do not fit together.
bool is_of_communication(const std::exception_ptr& error);

/// Calls `run`, which follows an error that matters more: what it throws is logged, as a failure of `what` where no
/// hook is noted.
void log_further_error(const char* what, const std::function<void()>& run);

/// Returns the same error, without LibTorch's list of C++ calls in its text, which is the caller's then as if another
/// process had sent it.
std::exception_ptr without_libtorch_stack(const std::exception_ptr& error);

/// Returns the message of an exception, without LibTorch's list of C++ calls.
std::string error_message(const std::exception_ptr& error);

/// Returns the part of an error's text from before with_context.
std::string_view without_context(std::string_view text);

}  // namespace levin
