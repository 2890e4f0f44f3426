#include <levin/core/data/generator.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>

#include <ATen/CPUGeneratorImpl.h>

#include <string>

namespace levin::data {

Generator::Generator(uint64_t seed, int64_t epoch, int64_t sample)
    : seed_(seed), epoch_(epoch), state_(mix_seed(seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(sample))) {}

// SplitMix64 (Steele, Lea and Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014): a counter and a
// mixing function, so that a stream has no state to warm up.
uint64_t Generator::next() {
  uint64_t bits = state_ += 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

double Generator::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

// Lemire: "Fast random integer generation in an interval", 2019: the high half of a product is the result; the few
// products whose low half would favour some results are drawn again.
int64_t Generator::below(int64_t bound) {
  if (bound <= 0) throw Error("data", "Generator::below needs a bound of at least 1; got " + std::to_string(bound));
  __extension__ using Wide = unsigned __int128;
  const auto range = static_cast<uint64_t>(bound);
  Wide product = static_cast<Wide>(next()) * range;
  if (static_cast<uint64_t>(product) < range) {
    const uint64_t rejected = -range % range;
    while (static_cast<uint64_t>(product) < rejected) product = static_cast<Wide>(next()) * range;
  }
  return static_cast<int64_t>(product >> 64);
}

at::Generator Generator::torch() { return at::make_generator<at::CPUGeneratorImpl>(next()); }

}  // namespace levin::data
