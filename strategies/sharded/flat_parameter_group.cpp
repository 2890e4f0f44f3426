#include <levin/strategies/sharded/flat_parameter_group.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/released_storage.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

/// Around whatever writes tensors that steps use later.
struct PlainTensors {
  c10::InferenceMode ordinary{false};
  at::NoGradGuard no_grad;
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
  whole_ = at::empty({layout_.flat_size()}, first.options().requires_grad(false).dtype(options_.type));
  const bool shares = options_.keeps_parameters && options_.type == first.scalar_type() && !options_.offload;
  if (options_.offload && !whole_.is_cpu())
    copies_ = c10::impl::VirtualGuardImpl(whole_.device().type()).getStreamFromGlobalPool(whole_.device());
  shard_ = shares ? own_part(whole_) : at::zeros({layout_.shard_size()}, shard_options(first.scalar_type()));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [parameter_name, parameter] = parameters_[i];
    LEVIN_CHECK(parameter.device() == first.device() && parameter.scalar_type() == first.scalar_type(),
                "parameters of one group are of one device and type");
    views_.push_back(whole_.narrow(0, layout_.offset(i), parameter.numel()).view(parameter.sizes()));
    const bool absent = is_released(parameter);
    if (absent)
      views_.back().zero_();
    else
      views_.back().copy_(parameter.detach());
    const auto here = local_shard(i);
    if (!shares && !absent)
      shard_.narrow(0, here.in_shard, here.size)
          .copy_(parameter.detach().flatten().narrow(0, here.in_parameter, here.size));
    local_shards_.push_back(
        shard_.narrow(0, here.in_shard, here.size).detach().requires_grad_(parameter.requires_grad()));
    if (!options_.keeps_parameters) absent_.push_back(released_parameter(parameter_name, views_.back()));
  }
  show(/*whole=*/true);
  reshard();
}

FlatParameterGroup::~FlatParameterGroup() = default;

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

at::Tensor FlatParameterGroup::own_part(const at::Tensor& flat) const {
  return flat.narrow(0, group_->rank() * layout_.shard_size(), layout_.shard_size());
}

// ---- Whole parameters

void FlatParameterGroup::show(bool whole) {
  for (size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].second.set_data(whole ? views_[i].detach() : absent_[i]);
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
  gathering_ = group_->all_gather(whole_, own);
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

void FlatParameterGroup::reshard() {
  if (options_.keeps_parameters) return;
  if (gathering_ != nullptr) gathering_->wait();
  gathering_.reset();
  const PlainTensors plain;
  show(/*whole=*/false);
  release_storage(whole_);
  unsharded_ = false;
}

void FlatParameterGroup::gather_full_parameters() {
  const PlainTensors plain;
  reshard();
  // Whole parameters that are kept may still be on their way, and the shard is a part of them.
  if (gathering_ != nullptr) gathering_->wait();
  gathering_.reset();
  at::Tensor flat = at::empty({layout_.flat_size()}, whole_.options().dtype(shard_.scalar_type()));
  at::Tensor own = own_part(flat);
  own.copy_(shard_);
  group_->all_gather(flat, own)->wait();
  for (size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].second.set_data(
        flat.narrow(0, layout_.offset(i), layout_.parameter_size(i)).view(parameters_[i].second.sizes()).clone());
}

// ---- Gradients

at::Tensor FlatParameterGroup::gradient_view(size_t parameter) const {
  return whole_gradient_.narrow(0, layout_.offset(parameter), layout_.parameter_size(parameter))
      .view(parameters_[parameter].second.sizes());
}

bool FlatParameterGroup::take_gradient(size_t parameter) {
  const PlainTensors plain;
  at::Tensor& gradient = parameters_[parameter].second.mutable_grad();
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
  reduced_ = options_.keeps_gradients && input.is_same(whole_gradient_)
                 ? own_part(whole_gradient_)
                 : at::empty({layout_.shard_size()}, input.options());
  if (copies_) {
    // The copy stream will wait for the reduction, not the one whose memory these are.
    input.record_stream(*copies_);
    reduced_.record_stream(*copies_);
  }
  reducing_ = group_->reduce_scatter(reduced_, input, ReduceOp::kMean);
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
  if (reduced_.scalar_type() != options_.type) reduced_ = reduced_.to(options_.type);
  if (options_.offload)
    reduced_ = at::empty({layout_.shard_size()}, shard_options(options_.type)).copy_(reduced_, /*non_blocking=*/true);
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
  const at::Tensor gradients = at::zeros({layout_.shard_size()}, shard_options(shard_.scalar_type()));
  for (size_t i = 0; i < local_shards_.size(); ++i)
    if (const auto here = local_shard(i); local_shards_[i].grad().defined())
      gradients.narrow(0, here.in_shard, here.size).copy_(local_shards_[i].grad());
  return gradients;
}

void FlatParameterGroup::set_local_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = local_shards_[i].mutable_grad();
    // One that is not trained just now, as with toggled optimizers, keeps what it had.
    if (!is_reduced_[i] && !parameters_[i].second.requires_grad() && !gradient.defined()) continue;
    const auto here = local_shard(i);
    gradient = shard_gradient_.narrow(0, here.in_shard, here.size);
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
    const auto here = local_shard(i);
    if (gradient.defined()) gradient = shard_gradient_.narrow(0, here.in_shard, here.size);
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
