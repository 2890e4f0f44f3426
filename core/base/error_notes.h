#pragma once

#include <levin/core/base/error_stack.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Circumstances of an error. Each function that it passes on its way out fills in the fields that are still empty, so
/// that the innermost one counts.
struct ErrorNotes {
  std::string place;               ///< "training_step of Classifier"
  std::string moment;              ///< "batch 3 of epoch 0"
  std::string examples;            ///< the examples a data set was asked for: "example 17"
  std::string batch;               ///< "{image: [32, 1, 28, 28] float, label: [32] int64}"
  const void* unit = nullptr;      ///< the innermost levin::Unit
  std::string unit_type;           ///< "Linear 784→128"
  std::string unit_path;           ///< "net.2"
  std::vector<const void*> stack;  ///< see stack_at_throw
};

namespace detail {
void add_notes(const std::function<void(ErrorNotes&)>& note) noexcept;
}  // namespace detail

/// Calls `run`. When it throws, `note` fills in what this place knows and the same exception object goes on;
/// std::exception_ptr carries it to other threads with its notes. Costs nothing without an error.
template <class Run, class Note>
auto noting_errors(Run&& run, Note&& note) -> decltype(run()) {
  try {
    return run();
  } catch (const detail::AnyError&) {
    detail::add_notes(note);
    throw;
  }
}

/// Returns the notes of an error and forgets them; empty notes where there are none.
ErrorNotes take_error_notes(const std::exception_ptr& error);
void set_error_notes(const std::exception_ptr& error, ErrorNotes notes);

/// Throws `error`, with the notes of the exception under way, in its place. For use in a handler.
template <class E>
[[noreturn]] void throw_instead(E error) {
  const auto replacement = std::make_exception_ptr(std::move(error));
  set_error_notes(replacement, take_error_notes(std::current_exception()));
  std::rethrow_exception(replacement);
}

}  // namespace levin
