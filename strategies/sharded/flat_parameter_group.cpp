#include <levin/strategies/sharded/flat_parameter_group.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

/// Around whatever writes tensors that steps use later.
struct PlainTensors {
  c10::InferenceMode ordinary{false};
  at::NoGradGuard no_grad;
  /// Parts of weights that are cut are what this is about.
  c10::impl::ExcludeDispatchKeyGuard no_behaviours{detail::kBehaviourKey};
};

c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// What comes later on one stream waits for what another was given so far.
void order(const c10::Stream& first, const c10::Stream& second) {
  c10::Event done(first.device_type());
  done.record(first);
  done.block(second);
}

std::vector<int64_t> sizes_of(const std::vector<FlatParameterGroup::NamedParameter>& parameters) {
  std::vector<int64_t> sizes;
  sizes.reserve(parameters.size());
  for (const auto& [name, parameter] : parameters) sizes.push_back(parameter.numel());
  return sizes;
}

void allocate_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  if (storage->nbytes() == bytes) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

/// Collectives that are waited for together.
class SeveralWorks final : public Work {
 public:
  void add(std::unique_ptr<Work> work) { works_.push_back(std::move(work)); }
  void wait() override {
    for (const auto& work : works_) work->wait();
  }
  bool is_completed() const override {
    return std::ranges::all_of(works_, [](const auto& work) { return work->is_completed(); });
  }

 private:
  std::vector<std::unique_ptr<Work>> works_;
};

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

at::Tensor released_parameter(const std::string& name, const at::Tensor& like) {
  return released_tensor(
      like, like.device(),
      fmt::format(
          "[sharded] the parameter '{}' is divided over the ranks and not here now; hint: in a step use it "
          "inside the forward of its unit; elsewhere open a scope around its use, on all ranks: const auto full "
          "= trainer().full_parameters(*this)",
          name));
}

}  // namespace

FlatParameterGroup::FlatParameterGroup(std::string name, std::vector<NamedParameter> parameters,
                                       std::shared_ptr<Collective> group, std::shared_ptr<Collective> replicas,
                                       const ShardingOptions& options)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      group_(std::move(group)),
      replicas_(std::move(replicas)),
      options_(options),
      layout_(sizes_of(parameters_), group_->world_size()),
      is_taken_(parameters_.size()),
      is_reduced_(parameters_.size()),
      is_kept_(parameters_.size()) {
  const PlainTensors plain;
  const at::Tensor& first = parameters_.front().second;
  if (options_.offload && !first.is_cpu())
    copies_ = c10::impl::VirtualGuardImpl(first.device().type()).getStreamFromGlobalPool(first.device());
  std::vector<at::Tensor> values;
  for (const auto& [parameter_name, parameter] : parameters_) {
    LEVIN_CHECK(parameter.device() == first.device() && parameter.scalar_type() == first.scalar_type(),
                "parameters of one group are of one device and type");
    values.push_back(is_released(parameter) ? at::Tensor() : parameter.detach());
  }
  lay_out(first.options().requires_grad(false), values);
}

FlatParameterGroup::~FlatParameterGroup() = default;

void FlatParameterGroup::lay_out(const at::TensorOptions& like, const std::vector<at::Tensor>& values) {
  const at::ScalarType stepped = c10::typeMetaToScalarType(like.dtype());
  whole_ = at::empty({layout_.flat_size()}, like.dtype(options_.type));
  const bool shares = options_.keeps_parameters && options_.type == stepped && !options_.offload;
  shard_ = shares ? own_part(whole_) : at::zeros({shard_size()}, shard_options(stepped));
  const std::vector<at::Tensor> before = std::exchange(views_, {});
  local_shards_.clear();
  absent_.clear();
  versions_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [parameter_name, parameter] = parameters_[i];
    const at::Tensor& value = values[i];
    views_.push_back(
        with_behaviours_of(before.empty() ? parameter : before[i],
                           whole_.narrow(0, layout_.offset(i), layout_.parameter_size(i)).view(parameter.sizes())));
    if (value.defined())
      views_.back().copy_(value);
    else
      views_.back().zero_();
    const auto here = local_shard(i);
    if (!shares && value.defined())
      shard_.narrow(0, here.in_shard, here.size).copy_(value.flatten().narrow(0, here.in_parameter, here.size));
    local_shards_.push_back(in_shard(shard_, i).detach().requires_grad_(parameter.requires_grad()));
    if (!options_.keeps_parameters) absent_.push_back(released_parameter(parameter_name, views_.back()));
  }
  show(/*whole=*/true);
  for (const auto& item : parameters_) versions_.push_back(version_of(item.second));
  unsharded_ = true;
  reshard();
}

void FlatParameterGroup::divide_by_tensor(const std::vector<int64_t>& owners) {
  const PlainTensors plain;
  const at::Tensor flat = gathered_shards();
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < parameters_.size(); ++i)
    values.push_back(flat.narrow(0, layout_.offset(i), layout_.parameter_size(i)).view(parameters_[i].second.sizes()));
  whole_gradient_.reset();
  shard_gradient_.reset();
  layout_ = ShardLayout(sizes_of(parameters_), owners, group_->world_size());
  lay_out(flat.options(), values);
}

at::TensorOptions FlatParameterGroup::shard_options(at::ScalarType type) const {
  const auto options = whole_.options().dtype(type);
  if (!options_.offload) return options;
  // From page-locked memory a copy runs beside the computation.
  return options.device(at::kCPU).pinned_memory(!whole_.is_cpu());
}

void FlatParameterGroup::wait_for_device() const {
  if (copies_) copies_->synchronize();
}

void FlatParameterGroup::rename(std::string name, const std::function<std::string(const at::Tensor&)>& name_of) {
  const PlainTensors plain;
  name_ = std::move(name);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].first = name_of(parameters_[i].second);
    if (!options_.keeps_parameters) absent_[i] = released_parameter(parameters_[i].first, views_[i]);
  }
  if (!options_.keeps_parameters && !unsharded_) show(/*whole=*/false);
}

at::Tensor FlatParameterGroup::shard_of(const at::Tensor& flat, int64_t rank) const {
  return flat.narrow(0, layout_.shard_begin(rank), layout_.shard_size(rank));
}

at::Tensor FlatParameterGroup::in_shard(const at::Tensor& shard, size_t parameter) const {
  const auto here = local_shard(parameter);
  const at::Tensor part = shard.narrow(0, here.in_shard, here.size);
  return layout_.is_even() || here.size == 0 ? part : part.view(parameters_[parameter].second.sizes());
}

// ---- Whole parameters

void FlatParameterGroup::show(bool whole) {
  for (size_t i = 0; i < parameters_.size(); ++i)
    replace_data(parameters_[i].second, whole ? views_[i].detach() : absent_[i]);
}

void FlatParameterGroup::start_unshard() {
  if (unsharded_) return;
  const PlainTensors plain;
  allocate_storage(whole_);
  c10::OptionalStreamGuard on_copies;
  if (copies_) {
    order(current_stream(whole_.device()), *copies_);  // which may still read what was in that memory before
    on_copies.reset_stream(*copies_);
  }
  at::Tensor own = own_part(whole_);
  if (!shard_.is_alias_of(whole_)) own.copy_(shard_, /*non_blocking=*/true);
  gathering_ = start_gather(whole_);
  unsharded_ = true;
}

void FlatParameterGroup::finish_unshard() {
  start_unshard();
  if (gathering_ == nullptr) return;
  gathering_->wait();
  gathering_.reset();
  const PlainTensors plain;
  if (!options_.keeps_parameters) show(/*whole=*/true);
}

void FlatParameterGroup::take_changes() {
  if (!is_ready() || shard_.is_alias_of(whole_)) return;
  const PlainTensors plain;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const uint32_t version = version_of(parameter);
    const auto here = local_shard(i);
    if (std::exchange(versions_[i], version) == version || here.size == 0) continue;
    at::Tensor own = shard_.narrow(0, here.in_shard, here.size);
    const at::Tensor written = parameter.detach().flatten().narrow(0, here.in_parameter, here.size).to(own.device());
    own.copy_(at::where(written == own.to(written.scalar_type()), own, written.to(own.scalar_type())));
  }
}

void FlatParameterGroup::reshard() {
  if (options_.keeps_parameters) return;
  take_changes();
  if (gathering_ != nullptr) gathering_->wait();
  gathering_.reset();
  const PlainTensors plain;
  show(/*whole=*/false);
  release_storage(whole_);
  unsharded_ = false;
}

std::unique_ptr<Work> FlatParameterGroup::start_gather(const at::Tensor& flat) {
  if (layout_.is_even()) return group_->all_gather(flat, own_part(flat));
  auto works = std::make_unique<SeveralWorks>();
  for (int64_t rank = 0; rank < group_->world_size(); ++rank) works->add(group_->broadcast(shard_of(flat, rank), rank));
  return works;
}

at::Tensor FlatParameterGroup::gathered_shards() {
  take_changes();
  reshard();
  // Whole parameters that are kept may still be on their way, and the shard is a part of them.
  if (gathering_ != nullptr) gathering_->wait();
  gathering_.reset();
  at::Tensor flat = at::empty({layout_.flat_size()}, whole_.options().dtype(shard_.scalar_type()));
  at::Tensor own = own_part(flat);
  own.copy_(shard_);
  start_gather(flat)->wait();
  return flat;
}

void FlatParameterGroup::gather_full_parameters() {
  const PlainTensors plain;
  const at::Tensor flat = gathered_shards();
  for (size_t i = 0; i < parameters_.size(); ++i)
    replace_data(
        parameters_[i].second,
        with_behaviours_of(
            views_[i],
            flat.narrow(0, layout_.offset(i), layout_.parameter_size(i)).view(parameters_[i].second.sizes()).clone()));
}

// ---- Gradients

at::Tensor FlatParameterGroup::gradient_view(size_t parameter) const {
  return whole_gradient_.narrow(0, layout_.offset(parameter), layout_.parameter_size(parameter))
      .view(parameters_[parameter].second.sizes());
}

bool FlatParameterGroup::take_gradient(size_t parameter) {
  const PlainTensors plain;
  at::Tensor& gradient = parameters_[parameter].second.mutable_grad();
  if (!gradient.defined()) return false;  // frozen since the forward
  gradient = dense_gradient(gradient);
  if (taken_ == 0) keep_reduced_apart();
  if (!whole_gradient_.defined()) whole_gradient_ = at::empty({layout_.flat_size()}, whole_.options());
  at::Tensor view = gradient_view(parameter);
  if (is_kept_[parameter])
    view.add_(gradient);
  else
    view.copy_(gradient);
  gradient.reset();
  if (!is_taken_[parameter]) ++taken_;
  is_taken_[parameter] = true;
  const auto expected = std::count_if(parameters_.begin(), parameters_.end(),
                                      [](const auto& item) { return item.second.requires_grad(); });
  return taken_ == expected;
}

void FlatParameterGroup::start_reduce() {
  const PlainTensors plain;
  if (taken_ == 0) keep_reduced_apart();
  if (!whole_gradient_.defined()) whole_gradient_ = at::empty({layout_.flat_size()}, whole_.options());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    is_reduced_[i] = is_taken_[i] || is_kept_[i];
    if (!is_reduced_[i]) gradient_view(i).zero_();
  }
  at::Tensor input = whole_gradient_;
  if (options_.reduce_type != options_.type) input = whole_gradient_.to(options_.reduce_type);
  // Where full gradients are kept, this rank's part of them is what is left of them.
  const bool in_place = !layout_.is_even() || (options_.keeps_gradients && input.is_same(whole_gradient_));
  reduced_ = in_place ? own_part(input) : at::empty({shard_size()}, input.options());
  if (copies_) {
    // The copy stream will wait for the reduction, not the one whose memory these are.
    input.record_stream(*copies_);
    reduced_.record_stream(*copies_);
  }
  // c10d's reduce-scatter takes equal parts alone.
  reducing_ = layout_.is_even() ? group_->reduce_scatter(reduced_, input, ReduceOp::kMean)
                                : group_->all_reduce(input, ReduceOp::kMean);
  if (!options_.keeps_gradients) whole_gradient_.reset();
  std::fill(is_taken_.begin(), is_taken_.end(), false);
  std::fill(is_kept_.begin(), is_kept_.end(), false);
  taken_ = 0;
}

void FlatParameterGroup::finish_reduce() {
  if (reducing_ == nullptr) return;
  const std::optional<c10::Stream> computing = copies_ ? std::optional(current_stream(whole_.device())) : std::nullopt;
  c10::OptionalStreamGuard on_copies;
  if (copies_) on_copies.reset_stream(*copies_);
  reducing_->wait();
  reducing_.reset();
  const PlainTensors plain;
  if (replicas_ != nullptr) replicas_->all_reduce(reduced_, ReduceOp::kMean)->wait();
  if (reduced_.scalar_type() != options_.type)
    reduced_ = reduced_.to(options_.type);
  else if (!layout_.is_even() && !options_.keeps_gradients && !options_.offload)
    reduced_ = reduced_.clone();  // the full gradients go
  if (options_.offload)
    reduced_ = at::empty({shard_size()}, shard_options(options_.type)).copy_(reduced_, /*non_blocking=*/true);
  if (copies_ && options_.keeps_gradients) order(*copies_, *computing);  // which writes the next ones there
  is_widened_ = false;
  if (!has_local_gradients()) {
    shard_gradient_ = std::move(reduced_);
  } else {
    wait_for_device();
    // In the optimizer's type, so that nothing of many small gradients is lost.
    shard_gradient_ = own_gradients();
    for (size_t i = 0; i < local_shards_.size(); ++i)
      if (const auto here = local_shard(i); !local_shards_[i].grad().defined())
        shard_gradient_.narrow(0, here.in_shard, here.size).zero_();
    shard_gradient_.add_(reduced_);
  }
  reduced_.reset();
  set_local_gradients();
}

/// The result of an earlier reduction of this window is no longer to be a part of the full gradients.
void FlatParameterGroup::keep_reduced_apart() {
  if (!shard_gradient_.defined() || !whole_gradient_.defined() || !shard_gradient_.is_alias_of(whole_gradient_)) return;
  if (has_local_gradients())
    shard_gradient_ = shard_gradient_.clone();
  else
    shard_gradient_.reset();
}

bool FlatParameterGroup::has_local_gradients() const {
  return std::any_of(local_shards_.begin(), local_shards_.end(),
                     [](const auto& local_shard) { return local_shard.grad().defined(); });
}

/// The local shards' gradients in the optimizer's type.
at::Tensor FlatParameterGroup::own_gradients() const {
  if (shard_gradient_.defined()) return shard_gradient_.to(shard_.scalar_type());
  // They come from a checkpoint.
  const at::Tensor gradients = at::zeros({shard_size()}, shard_options(shard_.scalar_type()));
  for (size_t i = 0; i < local_shards_.size(); ++i)
    if (local_shards_[i].grad().defined()) in_shard(gradients, i).copy_(local_shards_[i].grad());
  return gradients;
}

void FlatParameterGroup::set_local_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = local_shards_[i].mutable_grad();
    // One that is not trained just now, as with toggled optimizers, keeps what it had.
    if (!is_reduced_[i] && !parameters_[i].second.requires_grad() && !gradient.defined()) continue;
    gradient = in_shard(shard_gradient_, i);
  }
}

bool FlatParameterGroup::begins_window() const { return !has_local_gradients() && !has_kept_gradients(); }

void FlatParameterGroup::keep_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    is_kept_[i] = is_kept_[i] || is_taken_[i];
    is_taken_[i] = false;
  }
  taken_ = 0;
}

void FlatParameterGroup::widen_gradients() {
  wait_for_device();
  if (!shard_gradient_.defined() || shard_gradient_.scalar_type() == shard_.scalar_type()) return;
  const PlainTensors plain;
  convert_gradients(shard_gradient_.to(shard_.scalar_type()));
  is_widened_ = true;
}

void FlatParameterGroup::narrow_gradients() {
  if (!is_widened_) return;
  const PlainTensors plain;
  if (!has_local_gradients()) {
    shard_gradient_.reset();
  } else if (options_.keeps_gradients && whole_gradient_.defined() && options_.reduce_type == options_.type &&
             !options_.offload) {
    // Where they were before they were widened.
    convert_gradients(own_part(whole_gradient_).copy_(shard_gradient_));
  } else {
    convert_gradients(shard_gradient_.to(options_.type));
  }
  is_widened_ = false;
}

/// The same gradients in another type; a local shard without one keeps none.
void FlatParameterGroup::convert_gradients(const at::Tensor& converted) {
  shard_gradient_ = converted;
  for (size_t i = 0; i < local_shards_.size(); ++i) {
    at::Tensor& gradient = local_shards_[i].mutable_grad();
    if (gradient.defined()) gradient = in_shard(shard_gradient_, i);
  }
}

void FlatParameterGroup::abandon() noexcept {
  // What other ranks still write to lives as long as the works of the group, and stays allocated.
  gathering_.reset();
  reducing_.reset();
  reduced_.reset();
  shard_gradient_.reset();
  whole_gradient_.reset();
  for (auto& local_shard : local_shards_) local_shard.mutable_grad().reset();
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  std::fill(is_taken_.begin(), is_taken_.end(), false);
  std::fill(is_kept_.begin(), is_kept_.end(), false);
  taken_ = 0;
}

}  // namespace levin
