#include <levin/core/data/transforms/transform.h>

#include <levin/core/base/error.h>
#include <levin/core/data/fetch_times.h>
#include <levin/core/data/transforms/image_operations.h>

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace levin::data {

void ImageTransform::apply(Batch& example, Generator& generator) const {
  const Batch& given = example;
  const at::Tensor* image = given.find("image");
  if (image == nullptr) throw Error("data", "there is no tensor 'image' in the example");
  if (image->dim() != 3 || (image->scalar_type() != at::kByte && !image->is_floating_point()))
    throw Error("data", fmt::format("an image must be uint8 or floating [channels, height, width]; got {} {}",
                                    c10::toString(image->scalar_type()), c10::str(image->sizes())));
  example["image"] = transform(*image, generator);
}

void apply_transforms(const Transforms& transforms, Batch& example, Generator& generator) {
  for (const auto& transform : transforms) {
    const std::string& name = transform->init_name();
    const FetchPart part(name.empty() ? "a transform" : std::string_view(name));
    transform->apply(example, generator);
  }
}

void bytes_to_float(Batch& example) {
  const at::Tensor* image = std::as_const(example).find("image");
  if (image != nullptr && image->dim() == 3 && image->scalar_type() == at::kByte)
    example.set("image", operations::to_dtype(*image, at::kFloat));
}

}  // namespace levin::data
