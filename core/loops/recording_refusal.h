#pragma once

#include <string>

namespace levin {

class Collective;

/// Tells the user why steps are not recorded, once, whichever rank has the reason.
class RecordingRefusal {
 public:
  /// Notes why this rank takes ordinary steps. Rank 0 says it immediately.
  void note(const std::string& reason);
  /// Has rank 0 say why steps of other ranks are not recorded, where its own are. Collective.
  void tell(Collective& ranks);

 private:
  bool is_refused_ = false;
  std::string untold_;
};

}  // namespace levin
