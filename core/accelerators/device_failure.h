#pragma once

#include <c10/core/Device.h>

#include <exception>
#include <string>

namespace levin {

/// Returns what LibTorch threw of a device as a levin::Error that says what to do: that the device was lost, that it
/// lacks an operator, or that tensors of one operation are on several devices; any other error as it is. `device`: that
/// of the rank. `last_checkpoint`: path of the newest one; empty when there is none.
std::exception_ptr explain_device_failure(const std::exception_ptr& error, const at::Device& device,
                                          const std::string& last_checkpoint);

}  // namespace levin
