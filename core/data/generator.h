#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace levin::data {

/// A random stream that is a pure function of (seed, epoch, sample). Random transforms draw from it and never from
/// LibTorch's global generator, so that the number of workers or ranks changes nothing and a resumed run sees the same
/// values. Copies continue from the same position. Making one costs nothing.
class Generator {
 public:
  Generator(uint64_t seed, int64_t epoch, int64_t sample = 0);

  /// Returns the stream of another sample of the same seed and epoch; get_batch gives each of its examples one.
  Generator for_sample(int64_t sample) const { return {seed_, epoch_, sample}; }

  /// Returns 64 random bits.
  uint64_t next();
  /// Returns a uniform number in [0, 1).
  double uniform();
  /// Returns a uniform integer in [0, bound); bound > 0.
  int64_t below(int64_t bound);
  /// Makes a LibTorch CPU generator seeded from this stream, for calls such as torch::randn({3}, generator).
  at::Generator torch();

  uint64_t seed() const { return seed_; }
  int64_t epoch() const { return epoch_; }

 private:
  uint64_t seed_;
  int64_t epoch_;
  uint64_t state_;
};

}  // namespace levin::data
