#include <levin/core/comm/heartbeat.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <sstream>

namespace levin {
namespace {

std::string batch_text(int64_t batch) { return batch < 0 ? "" : fmt::format(" of batch {}", batch); }

}  // namespace

std::string duration_text(std::chrono::milliseconds duration) {
  if (duration < std::chrono::seconds(1)) return fmt::format("{} ms", duration.count());
  return fmt::format("{} s", std::chrono::round<std::chrono::seconds>(duration).count());
}

std::string Heartbeat::place() const {
  return (collective.empty() ? "in " + activity : "waiting in " + collective) + batch_text(batch);
}

std::string Heartbeat::sentence() const {
  if (left) return "has left";
  const std::string where = batch_text(batch) + " for " + duration_text(unchanged);
  if (collective.empty()) return "in " + activity + where;
  return fmt::format("waits in {}{} (activity {})", collective, where, activity);
}

std::string Heartbeat::encode() const {
  // Names of activities hold anything but line breaks.
  return fmt::format("{} {} {} {}\n{}\n{}\n", count, left ? 1 : 0, batch, unchanged.count(), activity, collective);
}

Heartbeat Heartbeat::decode(const std::string& text) {
  Heartbeat heartbeat;
  int64_t unchanged = 0;
  std::istringstream stream(text);
  stream >> heartbeat.count >> heartbeat.left >> heartbeat.batch >> unchanged;
  stream.ignore();
  std::getline(stream, heartbeat.activity);
  std::getline(stream, heartbeat.collective);
  LEVIN_CHECK(!stream.fail(), "a heartbeat in the store has three lines; got '" + text + "'");
  heartbeat.unchanged = std::chrono::milliseconds(unchanged);
  return heartbeat;
}

}  // namespace levin
