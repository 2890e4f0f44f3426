#pragma once

#include <levin/core/engine/rank.h>
#include <levin/core/options/options.h>

#include <functional>
#include <memory>
#include <string>

namespace levin {

/// The trainer's steps without its loop: for simulations, games, robots and reinforcement learning, whose own loop
/// makes the data. A step is that of `fit`, to the bit, and so are its checkpoints. See docs/engine.md.
///
/// The first call sets the rank up, as `fit` does before its first batch. Signals are left alone, and nothing but
/// warnings is printed unless callbacks are given that print.
class Engine : public Rank {
 public:
  /// Checks the options. Throws ConfigError for those of a loop over data, and for a strategy that would start
  /// processes: ranks are this process, those that a launcher has started, or threads (`run`).
  explicit Engine(std::shared_ptr<Module> module, TrainerOptions options = {});
  /// Closes it. Where an exception is on its way, or closing fails, the engine is left as after an error.
  ~Engine() override;

  /// Goes on from a checkpoint of an engine or of fit: "last", "auto", "best" or a path, as for fit. Before the first
  /// step, or before `run`.
  void load(const std::string& ckpt);
  /// Runs `steps` on every rank, at the same time where ranks are threads, each with a module and callbacks of its own.
  /// Ends the engine. What a rank throws ends all of them, and is thrown. Where this process is one rank, `rank` is the
  /// engine itself.
  void run(const std::function<void(Rank& rank)>& steps);
  /// Ends training as fit does, with the hooks of the end. Every rank calls it. The module keeps the weights; every
  /// later call throws levin::Error.
  void close();

 private:
  class Calls;
  explicit Engine(std::shared_ptr<Calls> calls);

  const std::shared_ptr<Calls> own_;
  const int exceptions_;  ///< on their way when it was made
};

}  // namespace levin
