#pragma once

#include <levin/core/base/descriptor.h>

#include <functional>
#include <string>

namespace levin {

/// Ends child processes when this process has gone, however it went (kill -9 included).
///
/// It is a pipe into which nobody writes. This process alone holds the write end, so that the children find the pipe at
/// its end once this process is gone. A thread in each child waits for that and ends the child with status 1 at once.
class Lifeline {
 public:
  Lifeline() : pipe_(make_pipe()) {}

  /// Environment variable that tells a started program of the lifeline; see watch_lifeline().
  static constexpr const char* kVariable = "LEVIN_LIFELINE";
  /// Value of that variable. The program must inherit read_end() under the same number.
  std::string variable_value() const;
  int read_end() const { return pipe_.read_end.number(); }
  /// Closes the read end; to be called once all children run.
  void close_read_end() { pipe_.read_end.close(); }

  /// Makes a forked child depend on the parent's end; to be called in it once. `last_act` runs before it is ended.
  void watch_in_child(std::function<void()> last_act);

 private:
  Pipe pipe_;
};

/// Says, from any thread, what this process writes on standard error when the process that started it as a rank is
/// gone: that one can say nothing itself. Empty: nothing.
void set_words_on_parents_end(const std::string& words);

/// Binds this process's life to that of the process that started it as a rank; without effect in every other process,
/// and when called again. Happens by itself before main, as long as nothing keeps this file from being linked.
void watch_lifeline();

}  // namespace levin
