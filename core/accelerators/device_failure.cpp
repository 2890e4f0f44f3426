#include <levin/core/accelerators/device_failure.h>

#include <levin/core/base/error.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace levin {
namespace {

/// What drivers say, of errors that have no type of their own: CUDA's of a GPU that fell off the bus, failed or was
/// taken away, and "device lost" of others.
constexpr std::array<std::string_view, 9> kLost = {"device lost",
                                                   "uncorrectable ECC error",
                                                   "uncorrectable NVLink error",
                                                   "devices are busy or unavailable",
                                                   "device(s) is/are busy or unavailable",
                                                   "no CUDA-capable device is detected",
                                                   "hardware stack error",
                                                   "unspecified launch failure",
                                                   "CUDA error: unknown error"};

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

/// The part of a text between two others; empty when they are not there.
std::string between(std::string_view text, std::string_view before, std::string_view after) {
  const size_t begin = text.find(before);
  if (begin == text.npos) return "";
  const size_t end = text.find(after, begin + before.size());
  return end == text.npos ? "" : std::string(text.substr(begin + before.size(), end - begin - before.size()));
}

std::string lost(std::string_view text, const at::Device& device, const std::string& last_checkpoint) {
  return fmt::format("{} was lost, and this process cannot use it again; got: {}; hint: {}", device.str(),
                     first_line(text),
                     last_checkpoint.empty() ? "start again in a new process; there is no checkpoint yet"
                                             : fmt::format("resume in a new process from {}", last_checkpoint));
}

/// LibTorch: "Could not run 'aten::tanh.out' with arguments from the 'PrivateUse1' backend. ..."
std::string lacks_operator(std::string_view text, const at::Device& device) {
  const std::string name = between(text, "Could not run '", "'");
  const std::string backend = between(text, "arguments from the '", "'");
  if (name.empty() || backend.empty()) return "";
  if (backend.starts_with("Sparse"))
    return fmt::format(
        "the operator {} does not take sparse tensors; hint: the gradients of an Embedding with `sparse` are sparse: "
        "leave it out, or what computes with the gradients",
        name);
  const std::string plain = name.starts_with("aten::") ? name.substr(6) : name;
  return fmt::format(
      "{} lacks the operator {}: LibTorch has no kernel of it for the backend {}; hint: run it on the CPU, with\n"
      "  TORCH_LIBRARY_IMPL(aten, {}, m) {{ m.impl(\"{}\", "
      "torch::CppFunction::makeFromBoxedFunction<&at::native::cpu_fallback>()); }}\n"
      "  or for all operators that are missing, with m.fallback(...) of the same function; see docs/extending.md",
      at::DeviceTypeName(device.type(), /*lower_case=*/true), name, backend, backend, plain);
}

/// LibTorch: "mat1 and mat2 must have the same dtype, but got Float and BFloat16"
std::string of_two_types(std::string_view text) {
  return fmt::format(
      "an operation got tensors of two types; got: {}; hint: convert one, x.to(weight.dtype()), or, in a hook, open "
      "`const auto autocast = trainer().autocast();`, which computes in the trainer's precision as a step does",
      first_line(text));
}

std::string mixed(std::string_view text, const at::Device& device) {
  return fmt::format(
      "tensors of one operation are on different devices; got: {}; valid here: {}; hint: the trainer moves the "
      "module's "
      "parameters and buffers and the batch: register other tensors with register_buffer, and make new ones with "
      "x.options() or on device()",
      first_line(text), device.str());
}

/// oneDNN: "could not create a primitive descriptor for the LSTM forward propagation primitive. ..."
std::string lacks_kernel(std::string_view text) {
  return fmt::format(
      "this CPU has no kernel for an operation on tensors of this type; got: {}; hint: precision bf16-mixed or "
      "32-true, or "
      "that operation in float32, with levin::FullPrecision and x.to(torch::kFloat)",
      first_line(text));
}

}  // namespace

std::exception_ptr explain_device_failure(const std::exception_ptr& error, const at::Device& device,
                                          const std::string& last_checkpoint) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& of_libtorch) {
    const std::string_view text = of_libtorch.what_without_backtrace();
    const auto says = [&](std::string_view words) { return text.find(words) != text.npos; };
    std::string explained;
    if (!device.is_cpu() && std::any_of(kLost.begin(), kLost.end(), says))
      explained = lost(text, device, last_checkpoint);
    else if (dynamic_cast<const c10::NotImplementedError*>(&of_libtorch) != nullptr)
      explained = lacks_operator(text, device);
    else if (says("xpected all tensors to be on the same device"))
      explained = mixed(text, device);
    else if (says("must have the same dtype"))
      return std::make_exception_ptr(Error("precision", of_two_types(text)));
    if (!explained.empty()) return std::make_exception_ptr(Error("device", explained));
  } catch (const std::exception& other) {
    const std::string_view text = other.what();
    if (text.starts_with("could not create a primitive"))
      return std::make_exception_ptr(Error("device", lacks_kernel(text)));
  } catch (...) {
    // Not of LibTorch.
  }
  return error;
}

}  // namespace levin
