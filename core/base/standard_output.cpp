#include <levin/core/base/standard_output.h>

#include <iostream>

namespace levin {

int finish_standard_output(int status) {
  std::cout.flush();
  if (std::cout.good()) return status;
  std::cerr << "error: [output] not all that was printed could be written; hint: is the disk of the standard output "
               "full?\n";
  return status == 0 ? 1 : status;
}

}  // namespace levin
