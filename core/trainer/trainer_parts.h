#pragma once

#include <levin/core/trainer/rank_core.h>
#include <levin/core/trainer/session.h>

#include <utility>

namespace levin {

/// What a trainer consists of: the rank's state and the session that works on it.
struct TrainerParts {
  TrainerParts(Trainer& trainer, TrainerOptions options) : core(trainer, std::move(options)), session(core) {}
  RankCore core;
  Session session;
};

}  // namespace levin
