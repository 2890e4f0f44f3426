#include <levin/core/accelerators/accelerator_registry.h>

#include <levin/core/base/error.h>
#include <levin/core/devices/device_spec.h>

#include <gmock/gmock.h>

#include <memory>

namespace levin {
namespace {

using ::testing::HasSubstr;

/// Two devices of a kind that LibTorch has a name for, and no code here.
class Toy final : public Accelerator {
 public:
  explicit Toy(const char* name = "toy", at::DeviceType type = at::kXPU) : Accelerator(name, type) {}
  int64_t device_count() const override { return 2; }
  std::string hint_for_none() const override { return "plug one in"; }
};

int64_t own_count(const Accelerator& kind) { return kind.name() == "toy" ? kind.device_count() : 0; }
int64_t nothing(const Accelerator&) { return 0; }

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(AcceleratorRegistry, OneOfTheUsersOwnIsNamedAndCounted) {
  AcceleratorRegistry& registry = AcceleratorRegistry::instance();
  ASSERT_EQ(registry.find("toy"), nullptr);
  EXPECT_THAT(message_of([&] { registry.of(at::kXPU); }), HasSubstr("nothing is known of devices of type xpu"));
  registry.add(std::make_unique<Toy>());
  EXPECT_EQ(&accelerator_of(at::Device(at::kXPU, 1)), registry.find("toy"));
  EXPECT_EQ(registry.all().front()->name(), "toy");
  EXPECT_EQ(registry.all().back()->name(), "cpu");

  using Devices = std::vector<at::Device>;
  const at::Device first(at::kXPU, 0);
  const at::Device second(at::kXPU, 1);
  EXPECT_EQ(resolve_devices("toy", "auto", {}, own_count), (Devices{first, second}));
  EXPECT_EQ(resolve_devices("auto", "auto", {}, own_count), (Devices{first, second}));
  EXPECT_EQ(resolve_devices("toy", 1, {}, own_count), Devices{first});
  EXPECT_EQ(resolve_devices("toy", "1,", {}, own_count), Devices{second});
  EXPECT_EQ(resolve_devices("cpu", 1, {}, own_count), Devices{at::Device(at::kCPU)});
  EXPECT_THAT(message_of([] { resolve_devices("toy", 3, {}, own_count); }),
              HasSubstr("asks for toy:2; valid: toy:0 to toy:1"));
  EXPECT_THAT(message_of([] { resolve_devices("toy", 1, {}, nothing); }), HasSubstr("hint: plug one in"));
  EXPECT_THAT(message_of([] { resolve_devices("toyy", 1, {}, nothing); }),
              HasSubstr("did you mean 'toy'?; valid: auto, cpu, cuda, gpu, toy"));
}

TEST(AcceleratorRegistry, NamesAndTypesAreThereOnce) {
  AcceleratorRegistry& registry = AcceleratorRegistry::instance();
  EXPECT_THAT(message_of([&] { registry.add(std::make_unique<Toy>("cuda", at::kHPU)); }),
              HasSubstr("'cuda' (hpu) is added"));
  EXPECT_THAT(message_of([&] { registry.add(std::make_unique<Toy>("other", at::kCPU)); }),
              HasSubstr("but there is 'cpu'"));
}

TEST(Accelerator, OfTheProcessorHasTheProcesssMemory) {
  const Accelerator& cpu = accelerator_of(at::kCPU);
  EXPECT_GT(cpu.memory_stats(at::kCPU).allocated, 0);
  EXPECT_EQ(cpu.memory_stats(at::kCPU).reserved, 0);
  EXPECT_EQ(cpu.make_copy_stream(at::kCPU), nullptr);
  EXPECT_NE(cpu.make_graph_recorder(at::kCPU).recorder, nullptr);
  EXPECT_EQ(cpu.device_name(at::kCPU), "cpu");
  EXPECT_EQ(cpu.default_backend(/*one_host=*/true), "shared_memory");
  EXPECT_EQ(cpu.default_backend(/*one_host=*/false), "gloo");
  EXPECT_FALSE(cpu.has_started());
}

}  // namespace
}  // namespace levin
