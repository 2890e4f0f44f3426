#pragma once

#include <levin/core/base/error_stack.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// What is known of where an error happened. Each place that it passes on its way out fills in what is still empty, so
/// that the innermost one counts.
struct ErrorNotes {
  std::string place;               ///< "training_step of Classifier"
  std::string moment;              ///< "batch 3 of epoch 0"
  std::string examples;            ///< of a data set: "example 17"
  std::string batch;               ///< "{image: [32, 1, 28, 28] float, label: [32] int64}"
  const void* unit = nullptr;      ///< the innermost levin::Unit
  std::string unit_type;           ///< "Linear 784→128"
  std::string unit_path;           ///< "net.2"
  std::vector<const void*> stack;  ///< see stack_at_throw
};

namespace detail {
void add_notes(const std::function<void(ErrorNotes&)>& note) noexcept;
}  // namespace detail

/// Calls `run`. When it throws, `note` writes down what this place knows, and the exception goes on as it is: the same
/// object, which std::exception_ptr carries to other threads with its notes. Without an error it costs nothing.
template <class Run, class Note>
auto noting_errors(Run&& run, Note&& note) -> decltype(run()) {
  try {
    return run();
  } catch (const detail::AnyError&) {
    detail::add_notes(note);
    throw;
  }
}

/// The notes of an error, which are then forgotten; empty ones where there are none.
ErrorNotes take_error_notes(const std::exception_ptr& error);
void set_error_notes(const std::exception_ptr& error, ErrorNotes notes);

/// In a handler: throws `error` in the place of the one that is handled, with its notes.
template <class E>
[[noreturn]] void throw_instead(E error) {
  const auto replacement = std::make_exception_ptr(std::move(error));
  set_error_notes(replacement, take_error_notes(std::current_exception()));
  std::rethrow_exception(replacement);
}

}  // namespace levin
