#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/standard_output.h>

#include <c10/util/Exception.h>
#include <boost/program_options.hpp>

#include <exception>
#include <iostream>

namespace levin {

/// Serves as `main` of a command-line tool: calls `run` and returns its status. Prints what it throws on standard
/// error, led by `[component]` where the message names no component of its own, and returns 2.
inline int tool_main(const char* component, int (*run)(int, char**), int argc, char** argv) {
  try {
    return finish_standard_output(run(argc, argv));
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
  } catch (const boost::program_options::error& error) {
    std::cerr << "[command line] " << error.what() << "; hint: --help\n";
  } catch (const c10::Error& error) {
    std::cerr << "[" << component << "] " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "[" << component << "] " << error.what() << "\n";
  }
  return 2;
}

}  // namespace levin
