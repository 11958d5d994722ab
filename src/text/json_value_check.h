// Tells whether text that arrives in pieces is exactly one JSON value, without building it.
// Thread rule: one object, one thread. Owner: the tool section of one choice.
#pragma once

#include <memory>
#include <string_view>

namespace deepinfer {

class JsonValueCheck {
 public:
  JsonValueCheck();
  ~JsonValueCheck();

  void Push(std::string_view text);
  // Precondition: called once, after the last Push.
  bool Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
