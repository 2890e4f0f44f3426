#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace levin {

/// How a program is started. It gets no input and no blocked signals.
struct ChildProcessOptions {
  std::map<std::string, std::string> environment = {};  ///< set beside the variables of this process
  std::vector<int> inherited = {};  ///< descriptors that it has under the same numbers, beside those that all get
  std::string output = {};          ///< file to which its output and errors are appended; empty: where this one's go
  /// In a process group of its own, which has the number of its process: Ctrl-C at the terminal does not reach it.
  bool own_group = false;
};

/// Starts a program with these words as its command line, of which the first is its name. `file` without a slash is
/// searched for in PATH. Throws std::system_error when it cannot be started.
pid_t start_process(const std::string& file, std::vector<std::string> words, const ChildProcessOptions& options);

/// The words of the command line that started this program. Throws levin::Error where /proc is not mounted.
std::vector<std::string> own_command_line();

/// The file that this program runs. One that was removed or replaced meanwhile can still be started, as /proc/self/exe.
std::string own_program_file();

}  // namespace levin
