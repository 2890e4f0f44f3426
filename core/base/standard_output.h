#pragma once

namespace levin {

/// Hands on what was printed (std::cout). Returns `status`; where some of it was lost, as on a full disk, says so on
/// standard error and returns 1 for a status of 0.
int finish_standard_output(int status);

}  // namespace levin
