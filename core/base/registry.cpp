#include <levin/core/base/registry.h>

#include <cxxabi.h>

#include <cstdlib>

namespace levin {

std::shared_ptr<Configurable> Configurable::rebuild() const {
  if (!can_rebuild())
    throw Error("make",
                "this object cannot be made a second time because nothing remembers its options; hint: make it "
                "with levin::make<T>({...}) instead of std::make_shared");
  return rebuild_();
}

namespace detail {

std::string demangled(const char* type_name) {
  int status = 0;
  char* text = abi::__cxa_demangle(type_name, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : type_name;
  std::free(text);
  return result;
}

}  // namespace detail
}  // namespace levin
