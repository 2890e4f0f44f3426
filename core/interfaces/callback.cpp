#include <levin/core/interfaces/callback.h>

#include <typeinfo>

namespace levin {

std::string Callback::state_key() const {
  return init_name().empty() ? detail::demangled(typeid(*this).name()) : init_name();
}

}  // namespace levin
