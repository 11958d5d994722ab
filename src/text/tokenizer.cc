#include "text/tokenizer.h"

#include "base/utf8.h"

namespace deepinfer {

struct Tokenizer::Impl {};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path&) {
  return Unsupported("tokenizer loading");
}
Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view) {
  return Unsupported("tokenizer loading");
}
void Tokenizer::EncodeText(std::string_view, std::vector<int32_t>*) const {}
void Tokenizer::EncodeWithSpecials(std::string_view, std::vector<int32_t>*) const {}
std::string_view Tokenizer::TokenBytes(int32_t) const { return {}; }
std::string_view Tokenizer::TokenString(int32_t) const { return {}; }
bool Tokenizer::IsValidId(int32_t) const { return false; }
bool Tokenizer::IsAdded(int32_t) const { return false; }
std::optional<int32_t> Tokenizer::FindAdded(std::string_view) const { return std::nullopt; }
int32_t Tokenizer::vocab_size() const { return 0; }
std::string Tokenizer::Decode(std::span<const int32_t>, bool) const { return {}; }

}  // namespace deepinfer
