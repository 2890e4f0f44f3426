#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/state.h>
#include <levin/core/data/dataset.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace levin::data {

/// What a replay buffer draws, and how often.
enum class ReplaySampling {
  kUniform,      ///< steps, each as often as any other
  kPrioritized,  ///< steps in proportion to their priorities (Schaul et al.: "Prioritized experience replay", 2016)
  kEpisodes,     ///< whole episodes that have ended, each as often as any other
};

/// Options of ReplayBuffer.
struct ReplayBufferOptions {
  int64_t capacity = 100'000;  ///< steps; the oldest makes room for a new one
  ReplaySampling sampling = ReplaySampling::kUniform;
  int64_t n_step = 1;                 ///< rewards that are summed up in front of the value of the next observation
  double discount = 0.99;             ///< of each further reward
  double alpha = 0.6;                 ///< exponent of priorities; 0: uniform
  double beta = 0.4;                  ///< exponent of the weights of prioritized steps; 1: no bias
  double epsilon = 1e-6;              ///< added to the error that is a priority
  std::optional<uint64_t> seed = {};  ///< of `sample`; nothing: seed_everything's
  std::string folder = {};            ///< where the steps are; empty: memory
  int64_t epoch_size = 0;             ///< steps that an epoch of `fit` draws; 0: as many as the capacity

  static void describe(Schema<ReplayBufferOptions>& schema);
};

/// A ring of the steps that programs such as environments make, each a set of named tensors, from which training draws:
/// a data set of `fit`, and by `sample` a source for an Engine. Thread-safe. See docs/simulations.md.
///
/// Some names have a meaning. `reward` [n] is summed up over `n_step` steps; `terminated` [n] says that an episode has
/// ended with this step and that nothing is to be expected behind it, `truncated` [n] that it was cut off here; tensors
/// `next_…` are those of the last of the steps that were summed up.
///
/// Batches have the steps' tensors and `index`, the numbers of the steps in the order of adding; with `reward` also
/// `discount`, the factor of the value of what comes next: discount^n, 0 where the episode terminated; prioritized also
/// `weight`, float32 of at most 1. Those of episodes are [episodes, longest, ...] with zeros behind the end and `mask`,
/// bool [episodes, longest], true where there is a step; their `index` is that of the first step.
///
/// Its state is all of it. What is drawn follows from it and, for `sample`, from the seed and how often it was called:
/// a resumed run draws what an uninterrupted one does. As the data set of a loader it is read where a batch is due
/// (num_workers: 0), and the seed is the loader's.
class ReplayBuffer : public Dataset, public Stateful {
 public:
  /// Throws ConfigError for options out of range.
  explicit ReplayBuffer(const ReplayBufferOptions& options = {});
  ~ReplayBuffer() override;

  /// Adds steps, [n, ...] each: one of each of the writers `first_writer` to `first_writer + n - 1`, such as
  /// environments that are stepped together. The steps of a writer follow each other. Throws levin::Error, and nothing
  /// was added, where they are not like the first ones, and where an episode that shall be drawn whole is longer than
  /// the capacity.
  void add(const Batch& steps, int64_t first_writer = 0);
  /// Returns the number of steps that it has.
  int64_t num_steps() const;
  /// Returns the number of steps that were ever added.
  int64_t num_added() const;
  /// Returns the number of whole episodes that it has, where they are drawn.
  int64_t num_episodes() const;

  /// Draws steps or episodes, with replacement. Throws levin::Error where it has fewer than `count`.
  Batch sample(int64_t count);
  /// Sets the priorities of drawn steps: (|error| + epsilon)^alpha. `index`: as drawn; steps that are not there any
  /// more are left out. New steps have the highest priority so far.
  void update_priorities(const at::Tensor& index, const at::Tensor& error);
  /// Sets the exponent of the weights from here on.
  void set_beta(double beta);

  /// Returns the steps of an epoch of `fit`, whatever it has.
  int64_t size() const override;
  /// Draws as many as there are indices, from `generator`'s streams of them.
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;

  /// Copies all of it; into a file where it is in files.
  State state_dict() const override;
  /// Throws levin::Error for the state of a buffer with another capacity or another kind of sampling.
  void load_state_dict(const State& state) override;

 private:
  class Core;
  static std::unique_ptr<Core> make_core(const ReplayBufferOptions& options);
  const std::unique_ptr<Core> core_;
};

}  // namespace levin::data
