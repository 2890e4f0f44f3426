#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin {

class Callback;
class Module;

/// Names of the hooks of callbacks and of the module in a profile: "[Callback]ModelCheckpoint.on_train_batch_end",
/// "[Module]Classifier.on_train_start". Each name is made when it is first asked for, and stays where it is.
class SpanNames {
 public:
  /// Names of a hook of each callback, in order. `hook`: a string literal.
  const std::string* of_callbacks(const char* hook, const std::vector<std::shared_ptr<Callback>>& callbacks);
  const char* of_module(const char* hook, const Module& module);
  /// Forgets all names, for another call with other callbacks or another module.
  void clear();

 private:
  std::unordered_map<const void*, std::vector<std::string>> of_callbacks_;  ///< by the literal's address
  std::unordered_map<const void*, std::string> of_module_;
};

}  // namespace levin
