#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <string>

namespace levin::data {

/// Options of Truncate.
struct TruncateOptions {
  std::string tensor = "text";
  int64_t max_length = 0;

  static void describe(Schema<TruncateOptions>& schema);
};

/// Cuts off what a sequence [length, ...] has beyond a length: torchtext's Truncate.
class Truncate : public Transform {
 public:
  using Options = TruncateOptions;
  explicit Truncate(const Options& options);
  void apply(Batch& example, Generator& generator) const override;

 private:
  Options options_;
};

/// Options of PadSequence.
struct PadSequenceOptions {
  std::string tensor = "text";
  int64_t length = 0;
  double value = 0;

  static void describe(Schema<PadSequenceOptions>& schema);
};

/// Fills a shorter sequence [length, ...] up at its end: torchtext's PadTransform. Longer ones stay.
class PadSequence : public Transform {
 public:
  using Options = PadSequenceOptions;
  explicit PadSequence(const Options& options);
  void apply(Batch& example, Generator& generator) const override;

 private:
  Options options_;
};

}  // namespace levin::data
