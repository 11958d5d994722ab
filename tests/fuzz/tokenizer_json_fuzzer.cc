// Any bytes as tokenizer.json: a clean error, or a tokenizer that encodes and decodes the same
// bytes as text without loss.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const Result<std::unique_ptr<Tokenizer>> loaded = Tokenizer::FromJson(input);
  if (!loaded.ok()) {
    DI_CHECK(!loaded.status().message().empty());
    DI_CHECK(IsValidUtf8(loaded.status().message()));
    return 0;
  }
  const Tokenizer& tokenizer = **loaded;
  static_cast<void>(SpecialTokens::Resolve(tokenizer).ok());

  std::vector<int32_t> with_specials;
  tokenizer.EncodeWithSpecials(input, &with_specials);
  Detokenizer detokenizer(tokenizer);
  for (const int32_t id : with_specials) {
    DI_CHECK(tokenizer.IsValidId(id));
    DI_CHECK(IsValidUtf8(detokenizer.Push(id)));
  }

  std::vector<int32_t> plain;
  tokenizer.EncodeText(input, &plain);
  // A file may declare a byte of the alphabet as an added token, which then decodes to its string.
  const bool any_added =
      std::any_of(plain.begin(), plain.end(), [&](int32_t id) { return tokenizer.IsAdded(id); });
  DI_CHECK(any_added || tokenizer.Decode(plain) == ReplaceInvalidUtf8(input));
  return 0;
}
