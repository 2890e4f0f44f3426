#include <levin/core/connectors/error_context.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/source_lines.h>
#include <levin/core/base/type_name.h>
#include <levin/core/comm/communication_error.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/nn/unit_notes.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <any>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <typeinfo>
#include <variant>
#include <vector>

namespace levin {
namespace {

constexpr std::string_view kContextBegins = "\n  in ";

std::string tensor_type_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float";
    case at::kDouble:
      return "double";
    case at::kHalf:
      return "half";
    case at::kBFloat16:
      return "bfloat16";
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("[{}] {}{}", fmt::join(tensor.sizes(), ", "), tensor_type_name(tensor.scalar_type()),
                     tensor.is_cpu() ? "" : " on " + tensor.device().str());
}

std::string described(const Batch& batch) {
  constexpr size_t kMostTensors = 16;
  std::vector<std::string> items;
  for (const auto& [name, tensor] : batch.items()) {
    if (items.size() == kMostTensors) {
      items.push_back(fmt::format("{} more", batch.items().size() - kMostTensors));
      break;
    }
    items.push_back(fmt::format("{}: {}", name, described(tensor)));
  }
  for (const auto& [name, texts] : batch.text_items())
    items.push_back(fmt::format("{}: {}", name, counted(std::ssize(texts), "text")));
  return fmt::format("{{{}}}", fmt::join(items, ", "));
}

std::string context_text(const ErrorNotes& notes, const TrainerState& state, Strategy& strategy) {
  std::vector<std::string> parts;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) parts.push_back(part);
  };
  add(notes.place);
  add(notes.examples);
  if (!notes.moment.empty())
    add(notes.moment);
  else if (state.in_fit_loop)
    parts.push_back(fmt::format("epoch {}", state.progress.epoch));
  if (strategy.world_size() > 1) parts.push_back(fmt::format("rank {}", strategy.rank()));
  if (notes.unit != nullptr && notes.unit_path.empty())
    parts.push_back("unit " + notes.unit_type);
  else if (notes.unit != nullptr)
    parts.push_back(fmt::format("unit {} ({})", notes.unit_path, notes.unit_type));
  if (!notes.batch.empty()) parts.push_back("batch " + notes.batch);
  std::string text = fmt::format("{}{}", kContextBegins, fmt::join(parts, ", "));
  for (const std::string& line : user_source_lines(notes.stack)) text += "\n  at " + line;
  return text;
}

/// An error of the standard library that has no text of its own.
template <class Base>
class WithContext final : public Base {
 public:
  WithContext(const Base& error, const std::string& context) : Base(error), text_(error.what() + context) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/// nullptr where it is of another class.
template <class Base>
std::exception_ptr derived_with_context(const std::exception& error, const std::string& context) {
  if (typeid(error) != typeid(Base)) return nullptr;
  return std::make_exception_ptr(WithContext<Base>(dynamic_cast<const Base&>(error), context));
}

template <class... Bases>
std::exception_ptr of_standard_library(const std::exception& error, const std::string& context) {
  std::exception_ptr made;
  static_cast<void>(((made = derived_with_context<Bases>(error, context)) || ...));
  return made;
}

/// Gives an error of LibTorch another text and no list of C++ calls; its class stays.
void set_text(c10::Error& error, const std::string& text) { error = c10::Error(text, nullptr, error.caller()); }

/// Whether an error may be the consequence of another rank's.
bool is_communication_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommunicationError&) {
    return true;
  } catch (const c10::DistError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void note_batch(ErrorNotes& notes, const TrainerState& state, int64_t batch_idx, int64_t dataloader_idx) {
  if (!notes.moment.empty() || batch_idx < 0) return;
  switch (state.running) {
    case RunningStage::kSanityCheck:
      notes.moment = fmt::format("batch {} of the sanity check", batch_idx);
      break;
    case RunningStage::kTest:
      notes.moment = fmt::format("test batch {}", batch_idx);
      break;
    case RunningStage::kPredict:
      notes.moment = fmt::format("prediction batch {}", batch_idx);
      break;
    case RunningStage::kValidate:
      notes.moment = fmt::format("validation batch {}", batch_idx);
      if (state.in_fit_loop) notes.moment += fmt::format(" of epoch {}", state.progress.epoch);
      break;
    default:
      notes.moment = fmt::format("batch {} of epoch {}", batch_idx, state.progress.epoch);
  }
  if (dataloader_idx >= 0 && state.evaluation_batches.size() > 1 && state.running != RunningStage::kTrain)
    notes.moment += fmt::format(" of loader {}", dataloader_idx);
}

void note_call(ErrorNotes& notes, const TrainerState& state, const UserCall& call) {
  if (notes.place.empty()) {
    notes.place = fmt::format("{} of {}", call.name, short_class_name(call.type));
    if (call.batch != nullptr) notes.batch = described(*call.batch);
  }
  note_batch(notes, state, call.batch_idx, call.dataloader_idx);
  if (call.module != nullptr) note_unit_path(notes, *call.module);
}

std::exception_ptr with_context(const std::exception_ptr& error, ErrorNotes notes, const TrainerState& state,
                                Strategy& strategy) {
  if (notes.place.empty() && notes.moment.empty() && notes.unit == nullptr) return without_libtorch_stack(error);
  if (state.module != nullptr) note_unit_path(notes, *state.module);
  const std::string context = context_text(notes, state, strategy);
  try {
    std::rethrow_exception(error);
  } catch (std::exception& own) {
    if (auto made =
            of_standard_library<std::filesystem::filesystem_error, std::bad_optional_access, std::bad_variant_access,
                                std::bad_function_call, std::bad_weak_ptr, std::bad_cast, std::bad_any_cast,
                                std::bad_typeid, std::bad_alloc>(own, context))
      return made;
    // Assigning to the base changes the text of the object, whatever its class.
    if (auto* runtime = dynamic_cast<std::runtime_error*>(&own))
      *runtime = std::runtime_error(own.what() + context);
    else if (auto* logic = dynamic_cast<std::logic_error*>(&own))
      *logic = std::logic_error(own.what() + context);
    else if (auto* of_libtorch = dynamic_cast<c10::Error*>(&own))
      set_text(*of_libtorch, of_libtorch->what_without_backtrace() + context);
    if (std::string_view(own.what()).find(context) != std::string_view::npos) return error;
  } catch (...) {
    // What is no std::exception has no text.
  }
  log::warning(fmt::format("{}{}", error_message(error), context));
  return error;
}

bool is_of_communication(const std::exception_ptr& error) {
  if (is_communication_error(error)) return true;
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    return own.component() == "comm";
  } catch (...) {
    return false;
  }
}

void log_further_error(const char* what, const std::function<void()>& run) {
  try {
    run();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const std::string place = take_error_notes(error).place;
    log::warning(fmt::format("{} failed as well: {}", place.empty() ? what : place, error_message(error)));
  }
}

std::exception_ptr without_libtorch_stack(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& of_libtorch) {
    set_text(of_libtorch, of_libtorch.what_without_backtrace());
  } catch (...) {
    // Others have no such list.
  }
  return error;
}

std::string error_message(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& of_libtorch) {
    return of_libtorch.what_without_backtrace();
  } catch (const std::exception& standard) {
    return standard.what();
  } catch (...) {
    return "something was thrown that is no std::exception";
  }
}

std::string_view without_context(std::string_view text) { return text.substr(0, text.find(kContextBegins)); }

std::exception_ptr root_cause(const std::exception_ptr& error, Strategy& strategy) {
  ControlPlane* control = strategy.world_size() > 1 ? strategy.control_plane() : nullptr;
  if (control == nullptr) return error;
  // A broken collective is most often a consequence; it takes a while until an end without a word is noticed.
  constexpr auto kPatience = std::chrono::seconds(4);
  const bool may_be_consequence = is_communication_error(error);
  const auto failure = control->failure_of_other(may_be_consequence ? kPatience : std::chrono::seconds(0));
  if (!failure || !may_be_consequence) return error;
  return std::make_exception_ptr(RankFailedError(*failure));
}

}  // namespace levin
