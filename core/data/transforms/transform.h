#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/data/batch.h>
#include <levin/core/data/generator.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace levin::data {

/// A change of one example before it becomes part of a batch. Worker threads call it at the same time: it must not
/// change members, and must draw random numbers only from the generator it is given, which belongs to the example.
class Transform : public Configurable {
 public:
  /// Changes tensors of the example, which have no batch dimension.
  virtual void apply(Batch& example, Generator& generator) const = 0;
  /// Returns whether it draws random numbers. Those that do are left out where data are evaluated, unless named there.
  virtual bool is_random() const { return false; }
};

/// A transform of the example's tensor "image": uint8 with values 0...255 or floating with values 0...1, [channels,
/// height, width], on the CPU.
class ImageTransform : public Transform {
 public:
  void apply(Batch& example, Generator& generator) const final;
  /// Returns the changed image, which may be a view of the given one. Must not change the given one.
  virtual at::Tensor transform(const at::Tensor& image, Generator& generator) const = 0;
};

using Transforms = std::vector<std::shared_ptr<const Transform>>;

/// Applies them in order.
void apply_transforms(const Transforms& transforms, Batch& example, Generator& generator);

/// Makes a tensor "image" of bytes, [channels, height, width], floats from 0 to 1; any other example stays as it is.
void bytes_to_float(Batch& example);

}  // namespace levin::data
