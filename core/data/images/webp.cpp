#include <levin/core/data/images/webp.h>

#include <ATen/ops/from_blob.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>
#include <stdexcept>

namespace levin::data {

namespace {

int64_t orientation_of(const WebPData& file) {
  const std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer(WebPDemux(&file), &WebPDemuxDelete);
  WebPChunkIterator chunk;
  if (demuxer == nullptr || WebPDemuxGetChunk(demuxer.get(), "EXIF", 1, &chunk) == 0) return 1;
  std::string_view exif(reinterpret_cast<const char*>(chunk.chunk.bytes), chunk.chunk.size);
  constexpr std::string_view kLead("Exif\0\0", 6);
  if (exif.starts_with(kLead)) exif.remove_prefix(kLead.size());
  const int64_t orientation = exif_orientation(exif);
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

/// The first picture of an animation.
at::Tensor first_frame(const WebPData& file, int64_t height, int64_t width) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) throw std::runtime_error("libwebp is of another version");
  options.color_mode = MODE_RGBA;
  options.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(WebPAnimDecoderNew(&file, &options),
                                                                             &WebPAnimDecoderDelete);
  uint8_t* frame = nullptr;
  int time = 0;
  if (decoder == nullptr || WebPAnimDecoderGetNext(decoder.get(), &frame, &time) == 0)
    throw std::runtime_error("it is a broken WebP, or cut short");
  return at::from_blob(frame, {height, width, 4}, at::kByte).slice(2, 0, 3).contiguous();
}

}  // namespace

DecodedImage decode_webp(std::string_view bytes, int64_t max_pixels) {
  const WebPData file{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(file.bytes, file.size, &features) != VP8_STATUS_OK)
    throw std::runtime_error("it is a broken WebP, or cut short");
  DecodedImage image;
  image.pixels = allocate_pixels(features.height, features.width, max_pixels);
  image.orientation = orientation_of(file);
  if (features.has_animation != 0) {
    image.pixels = first_frame(file, features.height, features.width);
    return image;
  }
  const auto row_bytes = static_cast<int>(features.width) * 3;
  auto* pixels = image.pixels.mutable_data_ptr<uint8_t>();
  if (WebPDecodeRGBInto(file.bytes, file.size, pixels, image.pixels.nbytes(), row_bytes) == nullptr)
    throw std::runtime_error("it is a broken WebP, or cut short");
  return image;
}

}  // namespace levin::data
