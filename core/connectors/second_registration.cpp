#include <levin/core/connectors/second_registration.h>

#include <levin/core/base/error.h>
#include <levin/core/base/error_notes.h>
#include <levin/core/base/type_name.h>
#include <levin/core/interfaces/module.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <regex>
#include <string>
#include <typeinfo>

namespace levin {

void explain_second_registration(const char* hook, const Module& module, const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    // Of register_module, register_parameter and register_buffer.
    static const std::regex pattern("(Submodule|Parameter|Buffer) '([^']*)' already defined");
    const std::string text = error.what_without_backtrace();
    std::smatch found;
    if (!std::regex_search(text, found, pattern)) throw;
    const std::string name = found[2];
    const char* const kind = found[1] == "Submodule" ? "module" : found[1] == "Buffer" ? "buffer" : "parameter";
    throw_instead(
        Error("module", fmt::format("{} of {} registers the {} '{}', which is there already; hint: every "
                                    "call of the trainer runs {}, so make only what is missing, as in `if "
                                    "(!{}) {} = register_{}(\"{}\", ...)`",
                                    hook, short_class_name(typeid(module)), kind, name, hook, name, name, kind, name)));
  }
}

}  // namespace levin
