#include <levin/strategies/pipeline/pipeline_picture.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace levin {
namespace {

using EventKind = PipelineEvent::Kind;

// In pixels.
constexpr double kWidth = 1040;
constexpr double kLeft = 76;
constexpr double kRight = 92;
constexpr double kTop = 104;
constexpr double kLane = 34;
constexpr double kGap = 8;
constexpr double kBottom = 52;
constexpr double kThinBar = 5;
constexpr double kDigitWidth = 7.4;

struct Color {
  int red;
  int green;
  int blue;
};

Color color_of(EventKind kind) {
  switch (kind) {
    case EventKind::kForward:
      return {110, 168, 220};
    case EventKind::kBackward:
      return {240, 160, 92};
    case EventKind::kBackwardInput:
      return {230, 130, 96};
    case EventKind::kBackwardWeight:
      return {246, 205, 124};
    case EventKind::kReceiveWait:
      return {176, 176, 176};
    case EventKind::kSendWait:
      return {120, 120, 120};
    case EventKind::kReduce:
      return {170, 148, 208};
    case EventKind::kOptimizer:
      return {130, 186, 146};
  }
  throw InternalError("unknown kind of pipeline event");
}

bool is_wait(EventKind kind) { return kind == EventKind::kReceiveWait || kind == EventKind::kSendWait; }

/// `whiteness` 0 leaves the colour as it is, 1 is white.
std::string color_text(const Color& color, double whiteness) {
  const auto mixed = [&](int part) { return static_cast<int>(std::lround(part + whiteness * (255 - part))); };
  return fmt::format("#{:02x}{:02x}{:02x}", mixed(color.red), mixed(color.green), mixed(color.blue));
}

/// What XML reads as this text. Control characters, which it has no way to write, become spaces.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char character : text) {
    if (character == '&')
      result += "&amp;";
    else if (character == '<')
      result += "&lt;";
    else if (character == '>')
      result += "&gt;";
    else if (static_cast<unsigned char>(character) < ' ')
      result += ' ';
    else
      result += character;
  }
  return result;
}

std::string text_at(double x, double y, const std::string& style, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, style, escaped(words));
}

std::string box(double x, double y, double width, double height, const std::string& style) {
  return fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" {}/>", x, y, width, height,
                     style);
}

/// A round distance (1, 2 or 5 times a power of ten) that goes about eight times into `length`.
double tick_distance(double length) {
  const double rough = length / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  return power * (rough < 2 * power ? 2 : rough < 5 * power ? 5 : 10);
}

double milliseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

class Picture {
 public:
  explicit Picture(const std::vector<PipelineEvent>& events) : events_(events), bubble_(measured_bubble(events)) {
    if (events.empty()) return;
    start_ = events.front().begin_ns;
    int64_t end = start_;
    for (const PipelineEvent& event : events) {
      lanes_[event.rank] = 0;
      kinds_.insert(event.kind);
      last_chunk_ = std::max(last_chunk_, event.chunk);
      start_ = std::min(start_, event.begin_ns);
      end = std::max(end, event.end_ns);
    }
    double y = kTop;
    for (auto& [rank, lane] : lanes_) {
      lane = y;
      y += kLane + kGap;
    }
    if (end > start_) length_ = milliseconds(end - start_);
  }

  std::string draw(const std::string& title, double theoretical_bubble) const {
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"{0}\" height=\"{1}\" "
        "fill=\"white\"/>\n",
        kWidth, bottom() + kBottom);
    svg += text_at(kLeft, 28, "font-size=\"16\" font-weight=\"bold\"", title);
    svg += text_at(kLeft, 50, "font-size=\"13\"", bubble_text(theoretical_bubble));
    svg += legend() + lanes() + axis();
    // Waiting first: where a rank computes while a message is on its way, the computation is what counts.
    for (const bool waits : {true, false})
      for (const PipelineEvent& event : events_)
        if (is_wait(event.kind) == waits) svg += drawn(event);
    return svg + "</svg>\n";
  }

 private:
  double right() const { return kWidth - kRight; }
  double bottom() const { return kTop + static_cast<double>(std::max<size_t>(lanes_.size(), 1)) * (kLane + kGap); }
  double place(double time) const { return kLeft + time / length_ * (right() - kLeft); }

  std::string bubble_text(double theoretical_bubble) const {
    const size_t ranks = bubble_.of_rank.size();
    const std::string measured = ranks == 0 ? "nothing computed"
                                            : fmt::format("measured {:.1f} % (mean of {} rank{})", 100 * bubble_.mean,
                                                          ranks, ranks == 1 ? "" : "s");
    return fmt::format("bubble: {}, theoretical {:.1f} %", measured, 100 * theoretical_bubble);
  }

  std::string legend() const {
    std::string svg;
    double x = kLeft;
    const auto words = [&](const std::string& text) {
      svg += text_at(x, 78, "", text);
      x += 6.4 * static_cast<double>(text.size()) + 18;
    };
    for (const EventKind kind : kinds_) {
      const double height = is_wait(kind) ? kThinBar : 12;
      svg += box(x, 74 - height / 2, 16, height, style_of(kind, 0)) + "\n";
      x += 22;
      words(name_of(kind));
    }
    if (last_chunk_ > 0) words("(lighter: the later stages of a rank)");
    return svg;
  }

  std::string lanes() const {
    std::string svg;
    for (const auto& [rank, y] : lanes_) {
      svg += box(kLeft, y, right() - kLeft, kLane, "fill=\"#f4f4f4\"") + "\n";
      svg += text_at(kLeft - 10, y + kLane / 2 + 4, "text-anchor=\"end\"", fmt::format("rank {}", rank));
      const auto bubble = bubble_.of_rank.find(rank);
      if (bubble != bubble_.of_rank.end())
        svg += text_at(right() + 10, y + kLane / 2 + 4, "fill=\"#666\"",
                       fmt::format("{:.1f} % idle", 100 * bubble->second));
    }
    return svg;
  }

  std::string axis() const {
    if (events_.empty())
      return text_at((kLeft + right()) / 2, bottom() - kLane / 2, "text-anchor=\"middle\"", "no events");
    std::string svg;
    const double distance = tick_distance(length_);
    for (double tick = 0; tick * distance <= length_ * (1 + 1e-9); ++tick) {
      const double x = place(tick * distance);
      svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>\n", x, kTop - 4,
                         bottom());
      svg += text_at(x, bottom() + 15, "text-anchor=\"middle\"", fmt::format("{:g}", tick * distance));
    }
    return svg + text_at((kLeft + right()) / 2, bottom() + 36, "text-anchor=\"middle\"", "time (ms)");
  }

  std::string style_of(EventKind kind, int64_t chunk) const {
    const double whiteness =
        last_chunk_ > 0 && is_computation(kind)
            ? 0.55 * static_cast<double>(std::max<int64_t>(chunk, 0)) / static_cast<double>(last_chunk_)
            : 0;
    return fmt::format("fill=\"{}\"", color_text(color_of(kind), whiteness));
  }

  std::string drawn(const PipelineEvent& event) const {
    const double begin = milliseconds(event.begin_ns - start_);
    const double end = milliseconds(event.end_ns - start_);
    const double x = place(begin);
    const double width = std::max(place(end) - x, 0.3);  // so that it is seen at all
    const double y = lanes_.at(event.rank);

    std::string hint = name_of(event.kind);
    if (event.micro_batch != PipelineEvent::kNone) hint += fmt::format(", micro-batch {}", event.micro_batch);
    if (last_chunk_ > 0 && event.chunk != PipelineEvent::kNone) hint += fmt::format(", chunk {}", event.chunk);
    hint += fmt::format(": {:.3f} to {:.3f} ms", begin, end);

    std::string svg = fmt::format("<g><title>{}</title>", escaped(hint));
    std::string style = style_of(event.kind, event.chunk);
    if (is_wait(event.kind)) return svg + box(x, y + (kLane - kThinBar) / 2, width, kThinBar, style) + "</g>\n";
    if (width >= 3) style += " stroke=\"white\" stroke-width=\"0.8\"";
    svg += box(x, y, width, kLane, style);
    const std::string number = std::to_string(event.micro_batch);
    if (event.micro_batch != PipelineEvent::kNone && width >= kDigitWidth * static_cast<double>(number.size()) + 3)
      svg += text_at(x + width / 2, y + kLane / 2 + 4, "text-anchor=\"middle\"", number);
    return svg + "</g>\n";
  }

  const std::vector<PipelineEvent>& events_;
  PipelineBubble bubble_;
  std::map<int64_t, double> lanes_;  ///< a rank's upper edge
  std::set<EventKind> kinds_;
  int64_t last_chunk_ = 0;
  int64_t start_ = 0;
  double length_ = 1;  ///< milliseconds
};

}  // namespace

std::string pipeline_picture(const std::vector<PipelineEvent>& events, const std::string& title,
                             double theoretical_bubble) {
  return Picture(events).draw(title, theoretical_bubble);
}

}  // namespace levin
