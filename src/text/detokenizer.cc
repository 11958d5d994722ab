#include "text/detokenizer.h"

#include "base/utf8.h"

namespace deepinfer {

std::string Detokenizer::Push(int32_t id) {
  pending_ += tokenizer_->TokenBytes(id);
  std::string text;
  DrainCompleteUtf8(&pending_, &text);
  return text;
}

std::string Detokenizer::Finish() {
  pending_.clear();
  return {};
}

}  // namespace deepinfer
