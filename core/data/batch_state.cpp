#include <levin/core/data/batch_state.h>

namespace levin {

State to_state(const Batch& batch) {
  State tensors = State::list();
  for (const auto& [name, tensor] : batch.items()) tensors.push_back(State(State::List{name, tensor}));
  return tensors;
}

Batch to_batch(const State& state) {
  Batch batch;
  for (const State& item : state.as_list()) batch.set(item.as_list()[0].as_string(), item.as_list()[1].as_tensor());
  return batch;
}

}  // namespace levin
