#include "tests/fuzz/fuzz.h"

#include <levin/core/data/cifar10.h>

namespace {

struct Cifar10Reader : levin::data::Cifar10 {
  using Cifar10::Cifar10;
  using Cifar10::read;
};

}  // namespace

// A file of CIFAR-10.
void levin::fuzzing::fuzz(std::string_view input) {
  write_file("test_batch.bin", input);
  reads([] { Cifar10Reader({.root = folder()}).read(/*training=*/false); });
}
