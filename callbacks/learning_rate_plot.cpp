#include <levin/callbacks/learning_rate_plot.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace levin {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 440;
constexpr double kLeft = 80;
constexpr double kRight = 20;
constexpr double kTop = 50;
constexpr double kBottom = 60;

/// A range of values along one side of the picture.
class Axis {
 public:
  Axis(double low, double high, bool logarithmic, double from, double to)
      : logarithmic_(logarithmic), low_(scaled(low)), high_(scaled(high)), from_(from), to_(to) {
    if (high_ <= low_) high_ = low_ + 1;
  }

  double place(double value) const { return from_ + (scaled(value) - low_) / (high_ - low_) * (to_ - from_); }

  /// Round values inside the range: powers of ten, or about five of 1, 2 and 5 times one.
  std::vector<double> ticks() const {
    double distance = 1;
    if (!logarithmic_) {
      const double rough = (high_ - low_) / 5;
      const double power = std::pow(10, std::floor(std::log10(rough)));
      distance = power * (rough < 2 * power ? 2 : rough < 5 * power ? 5 : 10);
    }
    std::vector<double> values;
    const double margin = 1e-9 * (high_ - low_);
    for (double step = std::ceil((low_ - margin) / distance); step * distance <= high_ + margin; ++step)
      values.push_back(logarithmic_ ? std::pow(10, step) : step * distance);
    return values;
  }

 private:
  double scaled(double value) const { return logarithmic_ ? std::log10(value) : value; }

  bool logarithmic_;
  double low_;
  double high_;
  double from_;
  double to_;
};

std::string polyline(const std::vector<LearningRateSweep::Point>& points, const Axis& x, const Axis& y,
                     double LearningRateSweep::Point::*value, const char* style) {
  std::string corners;
  for (const auto& point : points) {
    // A loss that diverges runs along the upper edge.
    const double height = std::max(y.place(point.*value), kTop);
    corners += fmt::format("{:.1f},{:.1f} ", x.place(point.rate), height);
  }
  return fmt::format("<polyline fill=\"none\" {} points=\"{}\"/>\n", style, corners);
}

std::string text(double x, double y, const char* style, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, style, words);
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

}  // namespace

std::string learning_rate_plot(const LearningRateSweep& sweep) {
  const auto& points = sweep.points();
  const double right = kWidth - kRight;
  const double bottom = kHeight - kBottom;
  double least = points.front().smoothed;
  double greatest = least;
  for (const auto& point : points) {
    least = std::min({least, point.loss, point.smoothed});
    greatest = std::max(greatest, point.smoothed);
  }
  const double padding = 0.05 * std::max(greatest - least, 1e-12);
  const Axis x(points.front().rate, points.back().rate, sweep.options().exponential, kLeft, right);
  const Axis y(least - padding, greatest + padding, false, bottom, kTop);

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, kHeight);
  for (const double value : x.ticks()) {
    svg += line(x.place(value), kTop, x.place(value), bottom, "stroke=\"#e4e4e4\"");
    svg += text(x.place(value), bottom + 20, "text-anchor=\"middle\"", fmt::format("{:.3g}", value));
  }
  for (const double value : y.ticks()) {
    svg += line(kLeft, y.place(value), right, y.place(value), "stroke=\"#e4e4e4\"");
    svg += text(kLeft - 8, y.place(value) + 4, "text-anchor=\"end\"", fmt::format("{:.3g}", value));
  }
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#555\"/>\n", kLeft,
                     kTop, right - kLeft, bottom - kTop);
  using Point = LearningRateSweep::Point;
  svg += polyline(points, x, y, &Point::loss, "stroke=\"#b8cfe6\" stroke-width=\"1.2\"");
  svg += polyline(points, x, y, &Point::smoothed, "stroke=\"#1f5f9f\" stroke-width=\"2\"");
  std::string title = "Learning rate sweep: nothing to suggest";
  if (const auto best = sweep.steepest()) {
    const Point& point = points[*best];
    title = fmt::format("Learning rate sweep: suggestion {:.3g}", *sweep.suggestion());
    svg += line(x.place(point.rate), kTop, x.place(point.rate), bottom, "stroke=\"#c8102e\" stroke-dasharray=\"4 4\"");
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"#c8102e\"/>\n", x.place(point.rate),
                       y.place(point.smoothed));
  }
  svg += text((kLeft + right) / 2, 28, "text-anchor=\"middle\" font-size=\"16\"", title);
  svg += text((kLeft + right) / 2, kHeight - 16, "text-anchor=\"middle\"", "learning rate");
  const double middle = (kTop + bottom) / 2;
  svg += text(20, middle, fmt::format("text-anchor=\"middle\" transform=\"rotate(-90 20 {:.1f})\"", middle).c_str(),
              "loss (dark: smoothed)");
  return svg + "</svg>\n";
}

std::string learning_rate_table(const LearningRateSweep& sweep) {
  std::string table = "learning_rate,loss,smoothed_loss\n";
  for (const auto& point : sweep.points()) table += fmt::format("{},{},{}\n", point.rate, point.loss, point.smoothed);
  return table;
}

}  // namespace levin
