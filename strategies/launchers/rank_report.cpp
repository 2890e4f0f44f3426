#include <levin/strategies/launchers/rank_report.h>

#include <levin/core/base/error.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <type_traits>

namespace levin {
namespace {

/// What precedes the texts. Both ends of the pipe are the same program, so the layout is no matter.
struct Header {
  RankReport::Kind kind;
  bool consequence;
  std::chrono::steady_clock::time_point time;
  size_t type;
  size_t component_size;
  size_t message_size;
};

/// A type of errors that is made again from its text.
struct KeptType {
  bool (*is)(const std::exception& error);
  void (*raise)(const std::string& text);
};

template <class E>
constexpr KeptType kept() {
  return {.is = [](const std::exception& error) { return dynamic_cast<const E*>(&error) != nullptr; },
          .raise =
              [](const std::string& text) {
                if constexpr (std::is_base_of_v<c10::Error, E>)
                  throw E(text, /*backtrace=*/nullptr);
                else
                  throw E(text);
              }};
}

/// Derived types before their bases.
constexpr std::array kKeptTypes = {kept<c10::IndexError>(),
                                   kept<c10::ValueError>(),
                                   kept<c10::TypeError>(),
                                   kept<c10::NotImplementedError>(),
                                   kept<c10::LinAlgError>(),
                                   kept<c10::SyntaxError>(),
                                   kept<c10::OutOfMemoryError>(),
                                   kept<c10::DistError>(),
                                   kept<c10::Error>(),
                                   kept<InternalError>(),
                                   kept<std::invalid_argument>(),
                                   kept<std::domain_error>(),
                                   kept<std::length_error>(),
                                   kept<std::out_of_range>(),
                                   kept<std::logic_error>(),
                                   kept<std::range_error>(),
                                   kept<std::overflow_error>(),
                                   kept<std::underflow_error>(),
                                   kept<std::runtime_error>()};

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
  } catch (const std::exception& error) {
    const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&error);
    report.message = of_libtorch == nullptr ? error.what() : of_libtorch->what_without_backtrace();
    const auto found = std::ranges::find_if(kKeptTypes, [&](const KeptType& type) { return type.is(error); });
    if (found != kKeptTypes.end()) report.kind = Kind::kKeptType;
    report.type = static_cast<size_t>(found - kKeptTypes.begin());
  } catch (...) {
    report.message = "an exception that is no std::exception";
  }
  return report;
}

std::string RankReport::to_bytes() const {
  const Header header{.kind = kind,
                      .consequence = consequence,
                      .time = time,
                      .type = type,
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
                    .type = header.type,
                    .message = std::string(bytes.substr(header.component_size))};
}

void RankReport::raise(int64_t rank) const {
  const std::string text = fmt::format("rank {} failed: {}", rank, message);
  switch (kind) {
    case Kind::kConfigError:
      throw ConfigError(text);
    case Kind::kLevinError:
      throw Error(component, text);
    case Kind::kKeptType:
      kKeptTypes.at(type).raise("[ranks] " + text);
      break;
    default:
      break;
  }
  throw Error("ranks", text);
}

}  // namespace levin
