#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// W&B's own client, a program that uploads runs. Who the user is, it knows by itself (`wandb login`, WANDB_API_KEY).
class WandbClient {
 public:
  /// `command`: the words that start it, such as {"wandb"} or {"python3", "-m", "wandb"}; none: there is no client.
  explicit WandbClient(std::vector<std::string> command) : command_(std::move(command)) {}

  bool is_given() const { return !command_.empty(); }
  /// Returns whether there is such a program, here or in PATH.
  bool is_found() const;
  /// Returns the command line that uploads a run's folder `offline-run-TIME-ID`.
  std::string command_line(const std::string& folder) const;
  /// Uploads such a folder and waits for the end of it. What the client says goes to `sync.log` in the folder. Throws
  /// levin::Error with the last line of that when the client fails; after `longest` it is ended, which is a failure.
  void upload(const std::string& folder, std::chrono::milliseconds longest) const;

 private:
  std::vector<std::string> words(const std::string& folder) const;

  const std::vector<std::string> command_;
};

}  // namespace levin
