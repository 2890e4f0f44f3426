#include <levin/core/interfaces/overridden.h>

#include <levin/core/interfaces/module.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace levin {
namespace {

using Step = StepOutput (Module::*)(const Batch&, int64_t);

class WithoutSteps final : public Module {};

/// Returns what a call of a virtual function runs: the entry of the object's table of functions. C++ has no question
/// for it; this is how the Itanium C++ ABI, which GCC and Clang follow, lays out tables and pointers to members. The
/// first word of such a pointer is the entry's place in bytes, on x86 plus one.
const void* function_of(const Module& object, Step step) {
  std::array<ptrdiff_t, 2> pointer;
  static_assert(sizeof(step) == sizeof(pointer));
  std::memcpy(pointer.data(), &step, sizeof(pointer));
  const char* table = *reinterpret_cast<const char* const*>(&object);  // NOLINT: as above
  const void* function;
  std::memcpy(&function, table + (pointer[0] & ~ptrdiff_t{1}), sizeof(function));
  return function;
}

}  // namespace

bool overrides_validation_step(const Module& module) {
  static const auto* const without = new WithoutSteps;  // threads may outlive static objects
  return function_of(module, &Module::validation_step) != function_of(*without, &Module::validation_step);
}

}  // namespace levin
