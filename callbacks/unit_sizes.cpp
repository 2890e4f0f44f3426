#include <levin/callbacks/unit_sizes.h>

#include <levin/core/nn/sequential.h>
#include <levin/core/nn/unit_call.h>

#include <ATen/core/Tensor.h>

#include <utility>

namespace levin {
namespace {

using SizesByPath = std::map<std::string, UnitSizes>;

/// What the members of a chain add up to; nothing where one of them was not seen.
std::optional<UnitSizes> of_chain(SequentialImpl& chain, const std::string& path, const SizesByPath& found) {
  std::optional<UnitSizes> whole;
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto member = found.find((path.empty() ? "" : path + ".") + chain.element(i).name());
    if (member == found.end()) return std::nullopt;
    const UnitSizes& sizes = member->second;
    if (!whole) whole = {.inputs = sizes.inputs, .outputs = {}, .flops = 0};
    whole->outputs = sizes.outputs;
    whole->flops = whole->flops && sizes.flops ? std::optional(*whole->flops + *sizes.flops) : std::nullopt;
  }
  return whole;
}

}  // namespace

class UnitSizeRecorder::Hook final : public UnitHook {
 public:
  explicit Hook(UnitSizeRecorder& recorder) : recorder_(recorder) {}

  void before_forward(UnitCall& call) override {
    if (std::this_thread::get_id() != recorder_.thread_) {
      recorder_.has_other_threads_ = true;
      return;
    }
    if (call_ != nullptr || seen_ || call.is_repetition()) return;
    call_ = &call;
    call.for_each_argument([this](at::Tensor& tensor) { add(sizes_.inputs, tensor); });
    flops_before_ = recorder_.counter_.count().executed;
  }
  void after_forward(UnitCall& call) override {
    if (std::this_thread::get_id() != recorder_.thread_ || call_ != &call) return;
    call_ = nullptr;
    seen_ = true;
    call.for_each_result([this](at::Tensor& tensor) { add(sizes_.outputs, tensor); });
    sizes_.flops = recorder_.counter_.count().executed - flops_before_;
  }

  /// What the first call was; nullptr before it.
  const UnitSizes* sizes() const { return seen_ ? &sizes_ : nullptr; }

 private:
  static void add(UnitSizes::Sizes& sizes, const at::Tensor& tensor) {
    if (tensor.defined()) sizes.push_back(tensor.sizes().vec());
  }

  UnitSizeRecorder& recorder_;
  const UnitCall* call_ = nullptr;  ///< the first one, while it runs
  bool seen_ = false;
  int64_t flops_before_ = 0;
  UnitSizes sizes_;
};

UnitSizeRecorder::UnitSizeRecorder(torch::nn::Module& module)
    : module_(module), thread_(std::this_thread::get_id()), units_(named_units(module)) {
  for (const NamedUnit& named : units_) {
    hooks_.push_back(std::make_unique<Hook>(*this));
    named.unit->add_hook(*hooks_.back());
  }
}

UnitSizeRecorder::~UnitSizeRecorder() {
  for (size_t i = 0; i < units_.size(); ++i) units_[i].unit->remove_hook(*hooks_[i]);
}

std::map<std::string, UnitSizes> UnitSizeRecorder::sizes() const {
  SizesByPath found;
  for (size_t i = 0; i < units_.size(); ++i) {
    const UnitSizes* const seen = hooks_[i]->sizes();
    if (seen == nullptr) continue;
    UnitSizes& sizes = found[units_[i].path] = *seen;
    if (has_other_threads_) sizes.flops.reset();
  }
  for (const auto& part : module_.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    auto* const chain = dynamic_cast<SequentialImpl*>(part.value().get());
    if (chain == nullptr || found.contains(part.key())) continue;
    if (auto whole = of_chain(*chain, part.key(), found)) found.emplace(part.key(), std::move(*whole));
  }
  return found;
}

std::optional<int64_t> UnitSizeRecorder::flops() const {
  return has_other_threads_ ? std::nullopt : std::optional(counter_.count().executed);
}

}  // namespace levin
