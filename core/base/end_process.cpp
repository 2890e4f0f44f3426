#include <levin/core/base/end_process.h>

#include <unistd.h>

#include <string_view>

namespace levin {

void end_process(const std::string& reason) {
  // Neither the log nor stdio: a thread that is stuck may hold their locks.
  const std::string line = "[levin] error: " + reason + "\n";
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = write(STDERR_FILENO, rest.data(), rest.size());
    if (written <= 0) break;
    rest.remove_prefix(static_cast<size_t>(written));
  }
  _exit(1);
}

}  // namespace levin
