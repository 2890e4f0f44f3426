#include <levin/strategies/launchers/rank_report.h>

#include <levin/core/base/error.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <new>

namespace levin {
namespace {

/// What precedes the texts. Both ends of the pipe are the same program, so the layout is no matter.
struct Header {
  RankReport::Kind kind;
  bool consequence;
  std::chrono::steady_clock::time_point time;
  size_t component_size;
  size_t message_size;
};

std::string without_component(const Error& error) {
  const std::string text = error.what();
  return text.substr(error.component().size() + std::strlen("[] "));
}

}  // namespace

RankReport RankReport::success() { return {.time = std::chrono::steady_clock::now()}; }

RankReport RankReport::of_current_exception() {
  RankReport report{.kind = Kind::kOtherError, .time = std::chrono::steady_clock::now()};
  try {
    throw;
  } catch (const ConfigError& error) {
    report.kind = Kind::kConfigError;
    report.message = without_component(error);
  } catch (const Error& error) {
    report.kind = Kind::kLevinError;
    report.component = error.component();
    report.message = without_component(error);
  } catch (const c10::Error& error) {
    report.message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    report.message = error.what();
  } catch (...) {
    report.message = "an exception that is no std::exception";
  }
  return report;
}

std::string RankReport::to_bytes() const {
  const Header header{.kind = kind,
                      .consequence = consequence,
                      .time = time,
                      .component_size = component.size(),
                      .message_size = message.size()};
  std::string bytes(sizeof(header), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes + component + message;
}

std::optional<RankReport> RankReport::from_bytes(std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.remove_prefix(sizeof(header));
  if (bytes.size() != header.component_size + header.message_size) return std::nullopt;
  return RankReport{.kind = header.kind,
                    .consequence = header.consequence,
                    .time = header.time,
                    .component = std::string(bytes.substr(0, header.component_size)),
                    .message = std::string(bytes.substr(header.component_size))};
}

void RankReport::raise(int64_t rank) const {
  const std::string text = fmt::format("rank {} failed: {}", rank, message);
  switch (kind) {
    case Kind::kConfigError:
      throw ConfigError(text);
    case Kind::kLevinError:
      throw Error(component, text);
    default:
      throw Error("ranks", text);
  }
}

}  // namespace levin
