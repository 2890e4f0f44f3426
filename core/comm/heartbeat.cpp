#include <levin/core/comm/heartbeat.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <sstream>

namespace levin {
namespace {

std::string batch_text(const Heartbeat& heartbeat) {
  if (heartbeat.evaluation.empty()) return heartbeat.batch < 0 ? "" : fmt::format(" of batch {}", heartbeat.batch);
  std::string text = fmt::format(" of {} batch {}", heartbeat.evaluation, heartbeat.evaluation_batch);
  if (heartbeat.evaluation_loader > 0) text += fmt::format(" of loader {}", heartbeat.evaluation_loader);
  return text;
}

}  // namespace

std::string duration_text(std::chrono::milliseconds duration) {
  if (duration < std::chrono::seconds(1)) return fmt::format("{} ms", duration.count());
  return fmt::format("{} s", std::chrono::round<std::chrono::seconds>(duration).count());
}

std::string Heartbeat::place() const {
  return (collective.empty() ? "in " + activity : "waiting in " + collective) + batch_text(*this);
}

std::string Heartbeat::sentence() const {
  if (left) return "has left";
  const std::string where = batch_text(*this) + " for " + duration_text(unchanged);
  if (collective.empty()) return "in " + activity + where;
  return fmt::format("waits in {}{} (activity {})", collective, where, activity);
}

std::string Heartbeat::encode() const {
  // Names of activities hold anything but line breaks.
  return fmt::format("{} {} {} {} {} {}\n{}\n{}\n{}\n", count, left ? 1 : 0, batch, evaluation_loader, evaluation_batch,
                     unchanged.count(), activity, collective, evaluation);
}

Heartbeat Heartbeat::decode(const std::string& text) {
  Heartbeat heartbeat;
  int64_t unchanged = 0;
  std::istringstream stream(text);
  stream >> heartbeat.count >> heartbeat.left >> heartbeat.batch >> heartbeat.evaluation_loader >>
      heartbeat.evaluation_batch >> unchanged;
  stream.ignore();
  std::getline(stream, heartbeat.activity);
  std::getline(stream, heartbeat.collective);
  std::getline(stream, heartbeat.evaluation);
  LEVIN_CHECK(!stream.fail(), "a heartbeat in the store has four lines; got '" + text + "'");
  heartbeat.unchanged = std::chrono::milliseconds(unchanged);
  return heartbeat;
}

}  // namespace levin
