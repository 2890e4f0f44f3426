#include <levin/callbacks/top_checkpoints.h>

#include <levin/callbacks/monitor.h>
#include <levin/core/base/file_system.h>

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

State TopCheckpoints::to_state() const {
  State list = State::list();
  for (const auto& item : items_) list.push_back(State::Map{{"path", item.path}, {"score", item.score}});
  return list;
}

void TopCheckpoints::load(const State& state) {
  items_.clear();
  for (const auto& saved : state.as_list()) {
    Item item{saved.at("path").as_string(), saved.at("score").as_double()};
    if (FileSystem::current().exists(item.path) && accepts(item.score)) add(item.path, item.score);
  }
}

}  // namespace levin
