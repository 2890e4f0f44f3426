#include <levin/core/connectors/callback_connector.h>

#include <levin/core/base/error.h>
#include <levin/core/base/type_name.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/connectors/second_registration.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace levin {

void CallbackConnector::set(std::vector<std::shared_ptr<Callback>> callbacks) {
  const auto is_checkpointer = [](const std::shared_ptr<Callback>& callback) {
    return dynamic_cast<Checkpointer*>(callback.get()) != nullptr;
  };
  const auto acts_on_metrics = [&](const auto& callback) {
    return is_checkpointer(callback) || callback->runs_after_metrics();
  };
  callbacks_ = std::move(callbacks);
  checkpointers_.clear();
  for (const auto& callback : callbacks_)
    if (auto* checkpointer = dynamic_cast<Checkpointer*>(callback.get())) checkpointers_.push_back(checkpointer);
  const auto after_metrics = std::stable_partition(callbacks_.begin(), callbacks_.end(), std::not_fn(acts_on_metrics));
  const auto checkpointers = std::stable_partition(after_metrics, callbacks_.end(), std::not_fn(is_checkpointer));
  // States of callbacks with one key are told apart by their order.
  std::set<std::string> keys;
  const bool have_keys = std::all_of(checkpointers, callbacks_.end(),
                                     [&](const auto& callback) { return keys.insert(callback->state_key()).second; });
  if (have_keys)
    std::stable_partition(checkpointers, callbacks_.end(), [](const auto& callback) {
      return dynamic_cast<const Checkpointer&>(*callback).saves_weights_only();
    });
  first_after_metrics_ = static_cast<size_t>(after_metrics - callbacks_.begin());
  first_checkpointer_ = static_cast<size_t>(checkpointers - callbacks_.begin());
}

void CallbackConnector::set_up(Stage stage) {
  const Activity activity(tracer_, "setup");
  set_up_for_ = stage;
  for (size_t i = 0; i < callbacks_.size(); ++i) {
    run_callbacks("setup", &Callback::setup, i, i + 1, stage);
    set_up_.push_back(callbacks_[i]);
  }
  set_up_module(stage);
}

void CallbackConnector::set_up_module(Stage stage) {
  set_up_for_ = stage;
  explain_second_registration("setup", *state_.module, [&] { run_module("setup", &Module::setup, stage); });
  module_is_set_up_ = true;
}

void CallbackConnector::tear_down() {
  const Activity activity(tracer_, "teardown");
  while (!set_up_.empty()) {
    const auto callback = std::find(callbacks_.begin(), callbacks_.end(), set_up_.front());
    set_up_.erase(set_up_.begin());
    LEVIN_CHECK(callback != callbacks_.end(), "callbacks that were set up are those of the call");
    const auto index = static_cast<size_t>(callback - callbacks_.begin());
    run_callbacks("teardown", &Callback::teardown, index, index + 1, set_up_for_);
  }
  if (std::exchange(module_is_set_up_, false)) run_module("teardown", &Module::teardown, set_up_for_);
}

void CallbackConnector::tear_down_after_failure() {
  while (!set_up_.empty() || module_is_set_up_) log_further_error("teardown", [this] { tear_down(); });
}

void CallbackConnector::save_last() {
  state_.at_resume_point = true;
  for (Checkpointer* checkpointer : checkpointers()) checkpointer->save_last(trainer_);
  state_.at_resume_point = false;
}

void CallbackConnector::on_exception(const std::exception_ptr& error) {
  for (const auto& callback : callbacks_) {
    Callback& own = *callback;
    log_further_error("on_exception of " + short_class_name(typeid(own)), [&] {
      call_user(state_, "on_exception", own, [&] { own.on_exception(trainer_, *state_.module, error); });
    });
  }
}

}  // namespace levin
