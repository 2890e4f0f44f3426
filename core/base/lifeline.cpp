#include <levin/core/base/lifeline.h>

#include <levin/core/base/mutex.h>

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

namespace levin {
namespace {

/// Starts the thread that waits for the parent's end.
void watch(Descriptor read_end, std::function<void()> last_act) {
  // The thread must not be chosen to run the program's signal handlers.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([end = std::move(read_end), last_act = std::move(last_act)] {
    pthread_setname_np(pthread_self(), "levin-lifeline");
    char byte;
    ssize_t count;
    do count = read(end.number(), &byte, 1);
    while (count > 0 || (count < 0 && errno == EINTR));
    if (count < 0) return;  // somebody closed the descriptor: that says nothing about the parent
    if (last_act) last_act();
    _exit(1);
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

struct WordsOnParentsEnd {
  Mutex mutex;
  std::string text LEVIN_GUARDED_BY(mutex);
};

WordsOnParentsEnd& words_on_parents_end() {
  static auto* words = new WordsOnParentsEnd;  // never destroyed: the thread goes on while the process ends
  return *words;
}

std::optional<struct stat> pipe_behind(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode)) return std::nullopt;
  return status;
}

void watch_inherited_lifeline() {
  const char* value = std::getenv(Lifeline::kVariable);
  if (value == nullptr) return;
  // The variable goes on to programs that a rank starts, the descriptor does not: there the number means nothing, or
  // some other file, which the pipe's inode tells apart.
  char* colon = nullptr;
  const auto descriptor = static_cast<int>(std::strtol(value, &colon, 10));
  if (colon == value || *colon != ':') return;
  const auto pipe = pipe_behind(descriptor);
  if (!pipe || pipe->st_ino != std::strtoull(colon + 1, nullptr, 10)) return;
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  watch(Descriptor(descriptor), [] {
    WordsOnParentsEnd& words = words_on_parents_end();
    const MutexLock lock(words.mutex);
    if (!words.text.empty()) [[maybe_unused]]
      const auto written = write(STDERR_FILENO, words.text.data(), words.text.size());
  });
}

/// Before main: a rank may take long until its first call of a trainer, and its parent may end before that.
[[maybe_unused]] const bool watched_from_the_beginning = (watch_lifeline(), true);

}  // namespace

std::string Lifeline::variable_value() const {
  const auto pipe = pipe_behind(read_end());
  LEVIN_CHECK(pipe.has_value(), "the lifeline's read end is open");
  return fmt::format("{}:{}", read_end(), pipe->st_ino);
}

void Lifeline::watch_in_child(std::function<void()> last_act) {
  pipe_.write_end.close();
  watch(std::move(pipe_.read_end), std::move(last_act));
}

void set_words_on_parents_end(const std::string& words) {
  WordsOnParentsEnd& present = words_on_parents_end();
  const MutexLock lock(present.mutex);
  present.text = words;
}

void watch_lifeline() {
  static std::once_flag once;
  std::call_once(once, watch_inherited_lifeline);
}

}  // namespace levin
