#include <levin/callbacks/top_checkpoints.h>

#include <levin/callbacks/monitor.h>

#include <cmath>

namespace levin {

bool TopCheckpoints::accepts(double score) const {
  if (limit_ == 0) return false;
  const Item* last = worst_of_full();
  return last == nullptr || is_better(score, last->score, mode_);
}

std::string TopCheckpoints::next_superseded() const {
  const Item* item = worst_of_full();
  return item == nullptr ? "" : item->path;
}

std::string TopCheckpoints::add(const std::string& path, double score) {
  std::erase_if(items_, [&](const Item& item) { return item.path == path; });
  std::string superseded = next_superseded();
  std::erase_if(items_, [&](const Item& item) { return item.path == superseded; });
  items_.push_back({path, score});
  return superseded;
}

const TopCheckpoints::Item* TopCheckpoints::best() const {
  const Item* best = nullptr;
  for (const auto& item : items_)
    if (!std::isnan(item.score) && (best == nullptr || is_better(item.score, best->score, mode_))) best = &item;
  return best;
}

const TopCheckpoints::Item* TopCheckpoints::worst_of_full() const {
  return limit_ < 0 || static_cast<int64_t>(items_.size()) < limit_ ? nullptr : worst();
}

const TopCheckpoints::Item* TopCheckpoints::worst() const {
  const Item* worst = nullptr;
  for (const auto& item : items_)
    if (worst == nullptr || !is_better(item.score, worst->score, mode_)) worst = &item;
  return worst;
}

State TopCheckpoints::to_state(const PathFunction& to_saved) const {
  State list = State::list();
  for (const auto& item : items_) list.push_back(State::Map{{"path", to_saved(item.path)}, {"score", item.score}});
  return list;
}

int64_t TopCheckpoints::load(const State& state, const PathFunction& to_path) {
  items_.clear();
  int64_t gone = 0;
  for (const auto& saved : state.as_list()) {
    const Item item{to_path(saved.at("path").as_string()), saved.at("score").as_double()};
    if (item.path.empty())
      ++gone;
    else if (accepts(item.score))
      add(item.path, item.score);
  }
  return gone;
}

}  // namespace levin
