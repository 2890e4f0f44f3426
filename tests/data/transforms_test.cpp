// Transforms have the values of torchvision's v2 on photographs, and draw from the example's own generator alone.

#include <levin/core/data/transforms/auto_augment.h>
#include <levin/core/data/transforms/batch_mix.h>
#include <levin/core/data/transforms/color_operations.h>
#include <levin/core/data/transforms/color_transforms.h>
#include <levin/core/data/transforms/crops.h>
#include <levin/core/data/transforms/distortions.h>
#include <levin/core/data/transforms/sequence_transforms.h>
#include <levin/core/data/transforms/transform_registry.h>
#include <levin/core/data/transforms/value_transforms.h>

#include <levin/core/base/error.h>
#include <levin/core/data/images/image_file.h>

#include "photographs.h"
#include "temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {
namespace {

using namespace operations;

/// Results beside expressions of Python that must give the same.
class Comparison {
 public:
  explicit Comparison(const TemporaryFolder& folder) : folder_(folder) {}

  void add(const std::string& expression, const torch::Tensor& input, const torch::Tensor& output) {
    write(".in", input);
    write(".out", output);
    lines_ += fmt::format("{}\t{}\t{}\n", expression, describe(input), describe(output));
    ++count_;
  }

  /// Compares them all to the bit.
  void expect_equal() {
    folder_.write("cases.txt", lines_);
    const auto result = testing::run_with_torchvision("compare_with_torchvision.py", {folder_.path()});
    ASSERT_EQ(result.status, 0) << result.err;
    std::istringstream lines(result.out);
    std::string line;
    int compared = 0;
    while (std::getline(lines, line)) {
      EXPECT_EQ(line.rfind("0.0 0\t", 0), 0U) << line;
      ++compared;
    }
    EXPECT_EQ(compared, count_) << result.out << result.err;
  }

 private:
  static std::string describe(const torch::Tensor& tensor) {
    std::string text = tensor.scalar_type() == torch::kByte ? "uint8\t" : "float\t";
    for (const int64_t size : tensor.sizes()) text += std::to_string(size) + " ";
    return text;
  }
  void write(const std::string& ending, const torch::Tensor& tensor) const {
    const auto whole = tensor.contiguous();
    folder_.write(std::to_string(count_) + ending,
                  std::string(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()));
  }

  const TemporaryFolder& folder_;
  std::string lines_;
  int count_ = 0;
};

/// Parts of two photographs, of 130 x 101 and 130 x 121 pixels; empty where torchvision or they are missing.
std::vector<torch::Tensor> test_images() {
  std::vector<torch::Tensor> images;
  if (!testing::missing_module("torchvision").empty()) return images;
  for (const auto& path : testing::photographs()) {
    if (images.size() == 2) break;
    images.push_back(crop(read_image(path), 60, 90, {101 + 20 * static_cast<int64_t>(images.size()), 130}));
  }
  return images;
}

constexpr const char* kMissing = "no torchvision or no scikit-image; hint: scripts/bootstrap --with-test-packages";

/// The same image as bytes and as floats of 0 to 1.
std::vector<torch::Tensor> both_types(const torch::Tensor& image) { return {image, to_dtype(image, torch::kFloat)}; }

void add_resized_bytes(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  for (const auto& image : images) {
    for (const auto& [height, width] : {std::pair<int64_t, int64_t>{64, 64}, {113, 301}, {224, 224}, {400, 50}}) {
      comparison.add(fmt::format("F.resize(x, [{}, {}])", height, width), image,
                     operations::resize(image, {height, width}));
      comparison.add(fmt::format("F.resize(x, [{}, {}], BICUBIC)", height, width), image,
                     operations::resize(image, {height, width}, Interpolation::kBicubic));
      comparison.add(fmt::format("F.resize(x, [{}, {}], antialias=False)", height, width), image,
                     operations::resize(image, {height, width}, Interpolation::kBilinear, false));
      comparison.add(fmt::format("F.resize(x, [{}, {}], NEAREST)", height, width), image,
                     operations::resize(image, {height, width}, Interpolation::kNearest));
      comparison.add(fmt::format("F.resize(x, [{}, {}], NEAREST_EXACT)", height, width), image,
                     operations::resize(image, {height, width}, Interpolation::kNearestExact));
    }
    comparison.add("F.resize(F.crop(x, 11, 13, 71, 99), [64, 72])", image,
                   operations::resize(crop(image, 11, 13, {71, 99}), {64, 72}));
    Generator generator(1, 0);
    comparison.add("F.resize(x, 100)", image, Resize({.size = 100}).transform(image, generator));
    comparison.add("F.resize(x, 100, max_size=110)", image,
                   Resize({.size = 100, .max_size = 110}).transform(image, generator));
  }
}

void add_resized_floats(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  for (const auto& image : images) {
    const auto floats = to_dtype(image, torch::kFloat);
    comparison.add("F.resize(x, [64, 80])", floats, operations::resize(floats, {64, 80}));
    comparison.add("F.resize(x, [300, 310], BICUBIC)", floats,
                   operations::resize(floats, {300, 310}, Interpolation::kBicubic));
  }
}

void add_crops_and_padding(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  for (const auto& whole : images)
    for (const auto& image : both_types(whole)) {
      comparison.add("F.center_crop(x, [100, 77])", image, center_crop(image, {100, 77}));
      comparison.add("F.center_crop(x, [401, 300])", image, center_crop(image, {401, 300}));
      comparison.add("F.pad(x, [3, 4, 5, 6])", image, operations::pad(image, {3, 4, 5, 6}));
      comparison.add("F.pad(x, [3, 4, 5, 6], fill=[7, 8, 9])", image,
                     operations::pad(image, {3, 4, 5, 6}, {{7, 8, 9}}));
      comparison.add("F.pad(x, [3, 4, 5, 6], padding_mode='edge')", image,
                     operations::pad(image, {3, 4, 5, 6}, {}, PaddingMode::kEdge));
      comparison.add("F.pad(x, [3, 4, 5, 6], padding_mode='reflect')", image,
                     operations::pad(image, {3, 4, 5, 6}, {}, PaddingMode::kReflect));
      comparison.add("F.pad(x, [3, 4, 5, 6], padding_mode='symmetric')", image,
                     operations::pad(image, {3, 4, 5, 6}, {}, PaddingMode::kSymmetric));
      comparison.add("F.horizontal_flip(x)", image, horizontal_flip(image));
      comparison.add("F.vertical_flip(x)", image, vertical_flip(image));
      comparison.add("F.erase(x, 5, 6, 70, 80, torch.tensor([1., 2, 3])[:, None, None])", image,
                     erase(image, 5, 6, {70, 80}, torch::tensor({1.0F, 2.0F, 3.0F}).view({3, 1, 1})));
    }
}

void add_rotations(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  for (const auto& whole : images)
    for (const auto& image : both_types(whole))
      for (const bool nearest : {true, false}) {
        const auto mode = nearest ? Interpolation::kNearest : Interpolation::kBilinear;
        const std::string word = nearest ? "NEAREST" : "BILINEAR";
        for (const double angle : {0.0, 17.3, -45.0, 90.0, 180.0, 270.0, 359.0}) {
          comparison.add(fmt::format("F.rotate(x, {}, {})", angle, word), image,
                         rotate(image, angle, mode, false, {}, {}));
          comparison.add(fmt::format("F.rotate(x, {}, {}, expand=True, fill=[0])", angle, word), image,
                         rotate(image, angle, mode, true, {}, {{0}}));
        }
        comparison.add(fmt::format("F.rotate(x, 30, {}, center=[20, 31], fill=[1, 2, 3])", word), image,
                       rotate(image, 30, mode, false, {{20, 31}}, {{1, 2, 3}}));
        comparison.add(fmt::format("F.affine(x, 20, [7, -9], 1.25, [10, -5], {})", word), image,
                       affine(image, {.angle = 20, .translate = {7, -9}, .scale = 1.25, .shear = {10, -5}}, mode, {}));
        comparison.add(
            fmt::format("F.affine(x, -70, [1, 2], 0.5, [0, 15], {}, fill=[0.5], center=[9, 8])", word), image,
            affine(image, {.angle = -70, .translate = {1, 2}, .scale = 0.5, .shear = {0, 15}, .center = {{9, 8}}}, mode,
                   {{0.5}}));
      }
}

void add_colours(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  using Adjust = torch::Tensor (*)(const torch::Tensor&, double);
  const std::vector<std::pair<std::string, Adjust>> adjustments = {{"brightness", adjust_brightness},
                                                                   {"contrast", adjust_contrast},
                                                                   {"saturation", adjust_saturation},
                                                                   {"sharpness", adjust_sharpness}};
  for (const auto& whole : images)
    for (const auto& image : both_types(whole)) {
      for (const auto& [name, adjust] : adjustments)
        for (const double factor : {0.0, 0.3, 1.0, 1.7})
          comparison.add(fmt::format("F.adjust_{}(x, {})", name, factor), image, adjust(image, factor));
      for (const double factor : {-0.5, -0.1, 0.0, 0.21, 0.5})
        comparison.add(fmt::format("F.adjust_hue(x, {})", factor), image, adjust_hue(image, factor));
      for (const int channels : {1, 3})
        comparison.add(fmt::format("F.rgb_to_grayscale(x, {})", channels), image, rgb_to_grayscale(image, channels));
      comparison.add("F.posterize(x, 3)", image, posterize(image, 3));
      comparison.add("F.solarize(x, 0.4)", image, solarize(image, 0.4));
      comparison.add("F.autocontrast(x)", image, autocontrast(image));
      comparison.add("F.equalize(x)", image, equalize(image));
      comparison.add("F.invert(x)", image, invert(image));
    }
}

void add_blur_and_normalisation(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  for (const auto& whole : images) {
    for (const auto& image : both_types(whole)) {
      comparison.add("F.gaussian_blur(x, [5, 9], [0.7, 0.7])", image, gaussian_blur(image, {5, 9}, {0.7, 0.7}));
      comparison.add("F.gaussian_blur(x, [3, 3], [2.0, 2.0])", image, gaussian_blur(image, {3, 3}, {2, 2}));
    }
    comparison.add("F.to_dtype(x, torch.float32, scale=True)", whole, to_dtype(whole, torch::kFloat));
    const auto floats = to_dtype(whole, torch::kFloat) * 0.9;
    comparison.add("F.to_dtype(x, torch.uint8, scale=True)", floats, to_dtype(floats, torch::kByte));
    Generator generator(1, 0);
    const std::string normalize = "F.normalize({}, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])";
    comparison.add(fmt::format(fmt::runtime(normalize), "F.to_dtype(x, torch.float32, scale=True)"), whole,
                   Normalize({}).transform(whole, generator));
    comparison.add(fmt::format(fmt::runtime(normalize), "x"), floats, Normalize({}).transform(floats, generator));
  }
}

void add_augmentations(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  for (const auto& image : images) {
    Generator generator(3, 0);
    const RandAugment rand_augment({});
    const TrivialAugmentWide trivial_augment({});
    for (int i = 0; i < 60; ++i) {
      const auto operation =
          i % 2 == 0 ? rand_augment.draw(size_of(image), generator) : trivial_augment.draw(generator);
      comparison.add(fmt::format("augment(x, '{}', {})", operation.name, operation.magnitude), image,
                     augment(image, operation, Interpolation::kNearest, {}));
      comparison.add(fmt::format("augment(x, '{}', {}, [5], BILINEAR)", operation.name, operation.magnitude), image,
                     augment(image, operation, Interpolation::kBilinear, {{5}}));
    }
  }
}

void add_jitter(Comparison& comparison, const std::vector<torch::Tensor>& images) {
  const ColorJitter jitter({.brightness = 0.4, .contrast = {0.5, 0.9}, .saturation = 0.3, .hue = 0.1});
  const std::vector<std::string> names = {"brightness", "contrast", "saturation", "hue"};
  for (int64_t sample = 0; sample < 5; ++sample) {
    Generator generator(7, 2, sample);
    Generator same = generator;
    const auto change = jitter.draw(same);
    std::string expression = "x";
    for (const int which : change.order)
      expression = fmt::format("F.adjust_{}({}, {})", names[static_cast<size_t>(which)], expression,
                               *change.factors[static_cast<size_t>(which)]);
    comparison.add(expression, images[0], jitter.transform(images[0], generator));
  }
}

// A suite each, so that each is a test of its own for ctest.
TEST(TransformShapes, AreTorchvisionsToTheBit) {
  const auto images = test_images();
  if (images.empty()) GTEST_SKIP() << kMissing;
  const TemporaryFolder folder;
  Comparison comparison(folder);
  add_resized_bytes(comparison, images);
  add_resized_floats(comparison, images);
  add_crops_and_padding(comparison, images);
  add_rotations(comparison, images);
  comparison.expect_equal();
}

TEST(TransformValues, AreTorchvisionsToTheBit) {
  const auto images = test_images();
  if (images.empty()) GTEST_SKIP() << kMissing;
  const TemporaryFolder folder;
  Comparison comparison(folder);
  add_colours(comparison, images);
  add_blur_and_normalisation(comparison, images);
  add_augmentations(comparison, images);
  add_jitter(comparison, images);
  comparison.expect_equal();
}

TEST(Transforms, ARandomResizedCropHasAreasAndShapesInItsRanges) {
  const RandomResizedCrop crop_transform({.size = 32});
  double area = 0;
  constexpr int kDraws = 4000;
  for (int64_t sample = 0; sample < kDraws; ++sample) {
    Generator generator(0, 0, sample);
    const auto part = crop_transform.draw({300, 400}, generator);
    EXPECT_GE(part.top, 0);
    EXPECT_GE(part.left, 0);
    EXPECT_LE(part.top + part.size.height, 300);
    EXPECT_LE(part.left + part.size.width, 400);
    const double shape = static_cast<double>(part.size.width) / static_cast<double>(part.size.height);
    EXPECT_GT(shape, 0.73);
    EXPECT_LT(shape, 1.36);
    area += static_cast<double>(part.size.width * part.size.height) / (300 * 400) / kDraws;
  }
  // torchvision's mean over 20,000 draws for this image.
  EXPECT_NEAR(area, 0.4327, 0.01);
  Generator generator(0, 0);
  const auto long_one = crop_transform.draw({10, 1000}, generator);
  EXPECT_EQ(long_one.size.height, 10);
}

TEST(Transforms, DrawFromTheGeneratorOfTheirExample) {
  const auto image = torch::randint(0, 256, {3, 60, 70}, torch::kByte);
  const auto specs = ConfigCodec<std::vector<Spec<Transform>>>::parse(
      Config::parse(
          "[{random_resized_crop: {size: 48}}, random_horizontal_flip, random_vertical_flip, {random_rotation: "
          "{degrees: 30}}, {random_affine: {degrees: 5, translate: [0.1, 0.1], scale: [0.9, 1.1], shear: 3}}, "
          "{color_jitter: {brightness: 0.4, hue: 0.1}}, {random_grayscale: {p: 0.3}}, rand_augment, "
          "trivial_augment_wide, {gaussian_blur: {kernel_size: 3}}, {random_crop: {size: 40, padding: 2}}, "
          "normalize, {random_erasing: {value: null}}]",
          {}),
      "transforms");
  const Transforms transforms = make_transforms(specs, "transforms");
  const auto run = [&](int64_t sample) {
    Batch example{{"image", image}, {"label", torch::tensor(1)}};
    Generator generator(5, 1, sample);
    apply_transforms(transforms, example, generator);
    return example["image"];
  };
  torch::manual_seed(1);
  const auto first = run(3);
  const auto other = run(4);
  torch::manual_seed(2);
  EXPECT_TRUE(run(3).equal(first));
  EXPECT_FALSE(other.equal(first));
  EXPECT_EQ(first.sizes(), (torch::IntArrayRef{3, 40, 40}));
}

TEST(Transforms, OneHotSmoothsLabels) {
  Batch example{{"label", torch::tensor(2)}};
  Generator generator(0, 0);
  OneHot({.num_classes = 4, .label_smoothing = 0.2}).apply(example, generator);
  EXPECT_TRUE(example["label"].allclose(torch::tensor({0.05F, 0.05F, 0.85F, 0.05F})));
  Batch outside{{"label", torch::tensor(4)}};
  EXPECT_THROW(OneHot({.num_classes = 4}).apply(outside, generator), Error);
}

TEST(Transforms, SequencesAreCutOffAndFilledUp) {
  Batch example{{"text", torch::arange(5)}, {"scores", torch::ones({2, 3})}};
  Generator generator(0, 0);
  Truncate({.max_length = 3}).apply(example, generator);
  EXPECT_TRUE(example["text"].equal(torch::tensor({0, 1, 2}, torch::kLong)));
  PadSequence({.length = 5, .value = 9}).apply(example, generator);
  EXPECT_TRUE(example["text"].equal(torch::tensor({0, 1, 2, 9, 9}, torch::kLong)));
  PadSequence({.tensor = "scores", .length = 3, .value = 0.5}).apply(example, generator);
  EXPECT_TRUE(example["scores"].equal(torch::cat({torch::ones({2, 3}), torch::full({1, 3}, 0.5)})));
  PadSequence({.length = 2}).apply(example, generator);
  EXPECT_EQ(example["text"].size(0), 5);
  EXPECT_THROW(Truncate({.tensor = "words", .max_length = 3}).apply(example, generator), Error);
  EXPECT_THROW(Truncate({}), ConfigError);
}

/// Those that the documentation promises, each by its name in YAML.
TEST(Transforms, EachIsThereInYaml) {
  for (const char* name : {"resize",
                           "center_crop",
                           "random_crop",
                           "random_resized_crop",
                           "random_horizontal_flip",
                           "random_vertical_flip",
                           "random_rotation",
                           "random_affine",
                           "color_jitter",
                           "grayscale",
                           "random_grayscale",
                           "gaussian_blur",
                           "random_erasing",
                           "normalize",
                           "one_hot",
                           "pad",
                           "truncate",
                           "pad_sequence",
                           "rand_augment",
                           "trivial_augment_wide",
                           "to_dtype"})
    EXPECT_NE(transform_registry().find(name), nullptr) << name;
  for (const char* name : {"mix_up", "cut_mix"}) EXPECT_NE(mix_registry().find(name), nullptr) << name;
}

std::string config_error(const std::string& yaml) {
  try {
    make_transforms(ConfigCodec<std::vector<Spec<Transform>>>::parse(Config::parse(yaml, {}), "data.transforms"),
                    "data.transforms");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Transforms, WrongOptionsAreNamed) {
  EXPECT_EQ(config_error("[{resize: {size: 224}}, normalize]"), "");
  EXPECT_NE(config_error("[{resiez: {size: 224}}]").find("unknown transform 'resiez'; did you mean 'resize'?"),
            std::string::npos);
  EXPECT_NE(config_error("[resize]").find("resize.size must be one or two numbers"), std::string::npos);
  EXPECT_NE(config_error("[{resize: {size: [1, 2, 3]}}]").find("data.transforms[0].resize.size must be one or two"),
            std::string::npos);
  EXPECT_NE(config_error("[{random_resized_crop: {size: 8, scale: [1, 0.5]}}]").find("the smaller first; got [1, 0.5]"),
            std::string::npos);
  EXPECT_NE(config_error("[{gaussian_blur: {kernel_size: 4}}]").find("odd numbers"), std::string::npos);
  EXPECT_NE(config_error("[{color_jitter: {hue: 0.7}}]").find("0.5"), std::string::npos);
  EXPECT_NE(config_error("[{random_horizontal_flip: {p: 2}}]").find("at most 1"), std::string::npos);
  EXPECT_NE(config_error("[{rand_augment: {magnitude: 31}}]").find("below num_magnitude_bins, 31"), std::string::npos);
}

}  // namespace
}  // namespace levin::data
