#include <levin/core/data/batch_state.h>

#include <string>
#include <utility>
#include <vector>

namespace levin {

State to_state(const Batch& batch) {
  State items = State::list();
  for (const auto& [name, tensor] : batch.items()) items.push_back(State(State::List{name, tensor}));
  for (const auto& [name, texts] : batch.text_items()) {
    State list = State::list();
    for (const std::string& text : texts) list.push_back(text);
    items.push_back(State(State::List{name, std::move(list)}));
  }
  return items;
}

Batch to_batch(const State& state) {
  Batch batch;
  for (const State& item : state.as_list()) {
    const std::string& name = item.as_list()[0].as_string();
    const State& value = item.as_list()[1];
    if (!value.is_list()) {
      batch.set(name, value.as_tensor());
      continue;
    }
    std::vector<std::string> texts;
    for (const State& text : value.as_list()) texts.push_back(text.as_string());
    batch.set_texts(name, std::move(texts));
  }
  return batch;
}

}  // namespace levin
