#include <levin/core/metrics/pictures.h>

#include <levin/core/base/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace levin::metrics {
namespace {

using Color = std::array<uint8_t, 3>;

constexpr Color kWhite = {255, 255, 255};
constexpr Color kBlack = {0, 0, 0};
constexpr Color kGrey = {200, 200, 200};
constexpr Color kBlue = {31, 119, 180};
/// Those of Matplotlib.
constexpr std::array<Color, 8> kColors = {kBlue,           {255, 127, 14}, {44, 160, 44},   {214, 39, 40},
                                          {148, 103, 189}, {140, 86, 75},  {227, 119, 194}, {23, 190, 207}};

constexpr std::string_view kGlyphs = "0123456789.kM";
constexpr int64_t kGlyphWidth = 3;
constexpr int64_t kGlyphHeight = 5;
constexpr std::array<const char*, 13> kBits = {
    "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
    "111100111001111", "111100111101111", "111001010010010", "111101111101111", "111101111001111",
    "000000000000010", "101101110101101", "101111111101101"};
constexpr int64_t kDot = 2;  ///< pixels across a dot of a glyph
constexpr int64_t kLetter = kDot * (kGlyphWidth + 1);
constexpr int64_t kLine = kDot * kGlyphHeight;
constexpr int64_t kMargin = 4 * kLetter;

class Canvas {
 public:
  Canvas(int64_t height, int64_t width)
      : height_(height),
        width_(width),
        image_(at::full({3, height, width}, 255, at::kByte)),
        pixels_(image_.mutable_data_ptr<uint8_t>()) {}

  void dot(int64_t x, int64_t y, const Color& color) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
    for (int64_t channel = 0; channel < 3; ++channel)
      pixels_[(channel * height_ + y) * width_ + x] = color[static_cast<size_t>(channel)];
  }
  void rectangle(int64_t x, int64_t y, int64_t width, int64_t height, const Color& color) {
    for (int64_t row = y; row < y + height; ++row)
      for (int64_t column = x; column < x + width; ++column) dot(column, row, color);
  }
  /// Two pixels wide.
  void line(double x0, double y0, double x1, double y1, const Color& color) {
    const auto steps = static_cast<int64_t>(std::ceil(std::max(std::abs(x1 - x0), std::abs(y1 - y0)))) + 1;
    for (int64_t i = 0; i <= steps; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(steps);
      const auto x = std::lround(x0 + share * (x1 - x0));
      const auto y = std::lround(y0 + share * (y1 - y0));
      rectangle(x, y, 2, 2, color);
    }
  }
  /// Its middle is at x and y.
  void text(const std::string& text, int64_t x, int64_t y, const Color& color) {
    int64_t left = x - (kLetter * static_cast<int64_t>(text.size()) - kDot) / 2;
    for (const char letter : text) {
      const size_t glyph = kGlyphs.find(letter);
      LEVIN_CHECK(glyph != std::string_view::npos, "a letter that can be drawn");
      for (int64_t row = 0; row < kGlyphHeight; ++row)
        for (int64_t column = 0; column < kGlyphWidth; ++column)
          if (kBits[glyph][row * kGlyphWidth + column] == '1')
            rectangle(left + kDot * column, y - kLine / 2 + kDot * row, kDot, kDot, color);
      left += kLetter;
    }
  }
  const at::Tensor& image() const { return image_; }

 private:
  int64_t height_;
  int64_t width_;
  at::Tensor image_;
  uint8_t* pixels_;
};

Color between(const Color& from, const Color& to, double share) {
  Color mixed{};
  for (size_t i = 0; i < mixed.size(); ++i)
    mixed[i] = static_cast<uint8_t>(std::lround(from[i] + share * (to[i] - from[i])));
  return mixed;
}

/// At most four letters.
std::string short_number(double value, bool is_share) {
  if (!std::isfinite(value) || value < 0) return "";
  if (is_share) return value >= 0.995 ? "1" : fmt::format("{:.2f}", value).substr(1);
  if (value < 1e4) return fmt::format("{:.0f}", value);
  if (value < 999.5e3) return fmt::format("{:.0f}k", value / 1e3);
  return value < 999.5e6 ? fmt::format("{:.0f}M", value / 1e6) : "999M";
}

}  // namespace

at::Tensor confusion_matrix_image(const at::Tensor& matrix, const ConfusionMatrixImageOptions& options) {
  if (matrix.dim() != 2 || matrix.size(0) != matrix.size(1) || options.cell < 2)
    throw Error("metrics", fmt::format("confusion_matrix_image: got {} with cells of {} pixels; valid: a matrix [C, C] "
                                       "with cells of at least 2",
                                       c10::str(matrix.sizes()), options.cell));
  const bool is_share = matrix.is_floating_point();
  const at::Tensor values = matrix.detach().to(at::kCPU, at::kDouble).contiguous();
  const int64_t classes = values.size(0);
  const int64_t cell = options.cell;
  const bool has_numbers = cell >= kMargin;
  const int64_t margin = has_numbers ? kMargin : 0;
  Canvas canvas(margin + cell * classes + 1, margin + cell * classes + 1);
  const double* of_row = values.const_data_ptr<double>();
  for (int64_t row = 0; row < classes; ++row, of_row += classes) {
    double sum = 0;
    for (int64_t column = 0; column < classes; ++column) sum += of_row[column];
    const int64_t y = margin + row * cell;
    for (int64_t column = 0; column < classes; ++column) {
      const double share = sum > 0 ? std::clamp(of_row[column] / sum, 0.0, 1.0) : 0;
      const int64_t x = margin + column * cell;
      canvas.rectangle(x, y, cell + 1, cell + 1, kGrey);
      canvas.rectangle(x + 1, y + 1, cell - 1, cell - 1, between(kWhite, kBlue, share));
      if (has_numbers)
        canvas.text(short_number(of_row[column], is_share), x + cell / 2, y + cell / 2, share > 0.6 ? kWhite : kBlack);
    }
    if (!has_numbers) continue;
    canvas.text(short_number(static_cast<double>(row), false), margin / 2, y + cell / 2, kBlack);
    canvas.text(short_number(static_cast<double>(row), false), y + cell / 2, margin / 2, kBlack);
  }
  return canvas.image();
}

at::Tensor curve_image(const std::vector<Curve>& curves, const CurveImageOptions& options) {
  constexpr int64_t kLeastSize = 16;
  if (options.size < kLeastSize)
    throw Error("metrics", fmt::format("curve_image: got a size of {}; valid: at least {}", options.size, kLeastSize));
  const int64_t side = options.size + 2 * kMargin;
  const auto size = static_cast<double>(options.size);
  const auto across = [&](double x) { return static_cast<double>(kMargin) + x * size; };
  const auto down = [&](double y) { return static_cast<double>(kMargin) + (1 - y) * size; };
  Canvas canvas(side, side);
  for (const auto& [at, label] : {std::pair{0.0, "0"}, {0.25, ""}, {0.5, ".5"}, {0.75, ""}, {1.0, "1"}}) {
    const auto x = std::lround(across(at));
    const auto y = std::lround(down(at));
    canvas.rectangle(x, kMargin, 1, options.size + 1, kGrey);
    canvas.rectangle(kMargin, y, options.size + 1, 1, kGrey);
    canvas.text(label, x, side - kMargin / 2, kBlack);
    canvas.text(label, kMargin / 2, y, kBlack);
  }
  if (options.diagonal) canvas.line(across(0), down(0), across(1), down(1), kGrey);
  for (size_t i = 0; i < curves.size(); ++i) {
    const at::Tensor xs = curves[i].x.to(at::kCPU, at::kDouble).contiguous();
    const at::Tensor ys = curves[i].y.to(at::kCPU, at::kDouble).contiguous();
    const Color& color = kColors[i % kColors.size()];
    bool has_last = false;
    double last_x = 0;
    double last_y = 0;
    for (int64_t point = 0; point < xs.numel(); ++point) {
      const double x = xs.const_data_ptr<double>()[point];
      const double y = ys.const_data_ptr<double>()[point];
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      if (has_last && options.steps) {
        // A rise of the recall has the precision at its end.
        const double level = x > last_x ? y : last_y;
        canvas.line(across(last_x), down(last_y), across(last_x), down(level), color);
        canvas.line(across(last_x), down(level), across(x), down(level), color);
        canvas.line(across(x), down(level), across(x), down(y), color);
      } else if (has_last) {
        canvas.line(across(last_x), down(last_y), across(x), down(y), color);
      }
      has_last = true;
      last_x = x;
      last_y = y;
    }
  }
  return canvas.image();
}

at::Tensor curve_image(const PrecisionRecallCurve& metric) { return curve_image(metric.curves(), {.steps = true}); }
at::Tensor curve_image(const Roc& metric) { return curve_image(metric.curves(), {.diagonal = true}); }

}  // namespace levin::metrics
