#include <levin/core/base/image_bytes.h>

#include <levin/core/base/error.h>

#include <ATen/ops/nan_to_num.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

namespace levin {

at::Tensor image_bytes(const at::Tensor& image) {
  if (!image.defined()) throw Error("image", "an image was expected; got an undefined tensor");
  const int64_t channels = image.dim() == 3 ? image.size(0) : 0;
  const bool right_type = image.scalar_type() == at::kByte || image.is_floating_point();
  if ((channels != 1 && channels != 3 && channels != 4) || image.numel() == 0 || !right_type)
    throw Error("image",
                fmt::format("this tensor is no image; got {} {}; valid: uint8 or floating, [channels, height, width] "
                            "with 1, 3 or 4 channels; hint: make_grid makes one image of many",
                            c10::toString(image.scalar_type()), c10::str(image.sizes())));
  const at::NoGradGuard no_grad;
  if (image.scalar_type() == at::kByte) return image.cpu().contiguous();
  return image.cpu().to(at::kFloat).nan_to_num(0).clamp(0, 1).mul(255).round().to(at::kByte).contiguous();
}

}  // namespace levin
