#include <levin/core/data/transforms/transform_registry.h>

#include <levin/core/data/transforms/auto_augment.h>
#include <levin/core/data/transforms/color_transforms.h>
#include <levin/core/data/transforms/crops.h>
#include <levin/core/data/transforms/distortions.h>
#include <levin/core/data/transforms/sequence_transforms.h>
#include <levin/core/data/transforms/value_transforms.h>

#include <fmt/format.h>

namespace levin::data {

Registry<Transform>& transform_registry() {
  static Registry<Transform>* instance = [] {
    auto* made = new Registry<Transform>("transform");  // outlives every static object that may still use it
    made->add<Resize>("resize", "resizes the shorter side, or both");
    made->add<CenterCrop>("center_crop", "cuts out the middle");
    made->add<Pad>("pad", "adds pixels at the sides");
    made->add<RandomCrop>("random_crop", "cuts out a part at a random place");
    made->add<RandomResizedCrop>("random_resized_crop", "cuts out a part of random size and shape and resizes it");
    made->add<RandomHorizontalFlip>("random_horizontal_flip", "mirrors from left to right");
    made->add<RandomVerticalFlip>("random_vertical_flip", "mirrors from top to bottom");
    made->add<RandomRotation>("random_rotation", "turns by a random angle");
    made->add<RandomAffine>("random_affine", "turns, shifts, scales and shears at random");
    made->add<GaussianBlur>("gaussian_blur", "blurs by a random amount");
    made->add<RandomErasing>("random_erasing", "paints over a random rectangle");
    made->add<ColorJitter>("color_jitter", "changes brightness, contrast, saturation and hue at random");
    made->add<Grayscale>("grayscale", "takes the colours away");
    made->add<RandomGrayscale>("random_grayscale", "takes the colours away at random");
    made->add<RandAugment>("rand_augment", "some random operations of a given strength (Cubuk et al., 2019)");
    made->add<TrivialAugmentWide>("trivial_augment_wide",
                                  "one random operation of random strength (Mueller and Hutter, 2021)");
    made->add<ToDtype>("to_dtype", "converts between bytes and floats of 0 to 1");
    made->add<Normalize>("normalize", "subtracts a mean and divides by a deviation; bytes become 0 to 1 first");
    made->add<OneHot>("one_hot", "turns a label's number into a row of probabilities");
    made->add<Truncate>("truncate", "cuts a sequence off at a length");
    made->add<PadSequence>("pad_sequence", "fills a sequence up to a length");
    return made;
  }();
  return *instance;
}

Transforms make_transforms(const std::vector<Spec<Transform>>& specs, const std::string& path) {
  Transforms transforms;
  for (size_t i = 0; i < specs.size(); ++i)
    transforms.push_back(specs[i].resolve(transform_registry(), fmt::format("{}[{}]", path, i)));
  return transforms;
}

}  // namespace levin::data
