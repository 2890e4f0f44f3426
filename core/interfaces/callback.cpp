#include <levin/core/interfaces/callback.h>

#include <typeinfo>

namespace levin {

std::string Callback::state_key() const {
  return recipe_name().empty() ? detail::demangled(typeid(*this).name()) : recipe_name();
}

}  // namespace levin
