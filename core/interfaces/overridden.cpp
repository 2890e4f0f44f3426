#include <levin/core/interfaces/overridden.h>

#include <levin/core/interfaces/module.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace levin {
namespace {

class WithoutSteps final : public Module {};

/// Returns what a call of a virtual function runs: the entry of the object's table of functions. C++ has no question
/// for it; this is how the Itanium C++ ABI, which GCC and Clang follow, lays out tables and pointers to members. The
/// first word of such a pointer is the entry's place in bytes, on x86 plus one.
template <class Function>
const void* function_of(const Module& object, Function called) {
  std::array<ptrdiff_t, 2> pointer;
  static_assert(sizeof(called) == sizeof(pointer));
  std::memcpy(pointer.data(), &called, sizeof(pointer));
  const char* table = *reinterpret_cast<const char* const*>(&object);  // NOLINT: as above
  const void* function;
  std::memcpy(&function, table + (pointer[0] & ~ptrdiff_t{1}), sizeof(function));
  return function;
}

template <class Function>
bool overrides(const Module& module, Function function) {
  static const auto* const without = new WithoutSteps;  // threads may outlive static objects
  return function_of(module, function) != function_of(*without, function);
}

}  // namespace

bool overrides_training_step(const Module& module) { return overrides(module, &Module::training_step); }
bool overrides_validation_step(const Module& module) { return overrides(module, &Module::validation_step); }
bool overrides_predict_step(const Module& module) { return overrides(module, &Module::predict_step); }
bool overrides_optimizer_zero_grad(const Module& module) { return overrides(module, &Module::optimizer_zero_grad); }

}  // namespace levin
