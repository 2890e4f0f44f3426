#include <levin/core/connectors/callback_connector.h>

#include <levin/core/base/log.h>
#include <levin/core/connectors/error_context.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace levin {

void CallbackConnector::set(std::vector<std::shared_ptr<Callback>> callbacks) {
  const auto is_checkpointer = [](const std::shared_ptr<Callback>& callback) {
    return dynamic_cast<Checkpointer*>(callback.get()) != nullptr;
  };
  const auto acts_on_metrics = [&](const auto& callback) {
    return is_checkpointer(callback) || callback->runs_after_metrics();
  };
  callbacks_ = std::move(callbacks);
  const auto after_metrics = std::stable_partition(callbacks_.begin(), callbacks_.end(), std::not_fn(acts_on_metrics));
  const auto checkpointers = std::stable_partition(after_metrics, callbacks_.end(), std::not_fn(is_checkpointer));
  first_after_metrics_ = static_cast<size_t>(after_metrics - callbacks_.begin());
  first_checkpointer_ = static_cast<size_t>(checkpointers - callbacks_.begin());
}

std::vector<Checkpointer*> CallbackConnector::checkpointers() const {
  std::vector<Checkpointer*> found;
  for (const auto& callback : callbacks_)
    if (auto* checkpointer = dynamic_cast<Checkpointer*>(callback.get())) found.push_back(checkpointer);
  return found;
}

void CallbackConnector::save_last() {
  state_.at_resume_point = true;
  for (Checkpointer* checkpointer : checkpointers()) checkpointer->save_last(trainer_);
  state_.at_resume_point = false;
}

void CallbackConnector::on_exception(const std::exception_ptr& error) {
  for (const auto& callback : callbacks_) {
    try {
      callback->on_exception(trainer_, *state_.module, error);
    } catch (const std::exception&) {
      log::warning(
          fmt::format("a callback's on_exception failed as well: {}", error_message(std::current_exception())));
    }
  }
}

}  // namespace levin
