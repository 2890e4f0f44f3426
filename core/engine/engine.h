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
  /// Checks the options. Throws ConfigError for those of a loop over data, and for a strategy whose ranks take batches
  /// of one loader. Ranks are this process, those that a launcher has started, or threads and processes of `run`.
  explicit Engine(std::shared_ptr<Module> module, TrainerOptions options = {});
  /// Closes it. Where an exception is on its way, or closing fails, the engine is left as after an error.
  ~Engine() override;

  /// Goes on from a checkpoint of an engine or of fit: "last", "auto", "best" or a path, as for fit. Before the first
  /// step, or before `run`.
  void load(const std::string& ckpt);
  /// Runs `steps` on every rank, which it starts as fit does where the strategy has threads or processes: each has a
  /// module and callbacks of its own, forks have copies of the program's variables, and processes of `ddp` run the
  /// program's main again up to here. Ends the engine; the module has the weights. What a rank throws ends all of them,
  /// and is thrown. Where this process is one rank, `rank` is the engine itself.
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
