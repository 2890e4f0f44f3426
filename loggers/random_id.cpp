#include <levin/loggers/random_id.h>

#include <random>
#include <string_view>

namespace levin {

std::string random_id(size_t length) {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device device;
  std::uniform_int_distribution<size_t> any(0, kLetters.size() - 1);
  std::string id(length, '0');
  for (char& c : id) c = kLetters[any(device)];
  return id;
}

}  // namespace levin
