#include "text/tokenizer.h"

#include <fmt/format.h>

#include <fstream>
#include <system_error>
#include <unordered_map>

#include "base/utf8.h"
#include "text/added_token_matcher.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/code_point_class.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"

namespace deepinfer {
namespace {

Result<std::string> ReadFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return NotFound(fmt::format("{} does not exist or is no file", path.string()));
  }
  const uintmax_t size_bytes = std::filesystem::file_size(path, error);
  if (error) return NotFound(fmt::format("{}: {}", path.string(), error.message()));
  if (size_bytes > kMaxTokenizerFileBytes) {
    return DataCorruption(fmt::format("{} has {} bytes, more than the limit of {}", path.string(),
                                      size_bytes, kMaxTokenizerFileBytes));
  }
  std::string content(size_bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(content.data(), static_cast<std::streamsize>(size_bytes))) {
    return NotFound(fmt::format("{} cannot be read", path.string()));
  }
  return content;
}

// Strings packed end to end: two allocations for a whole vocabulary.
class StringTable {
 public:
  void Append(std::string_view text) {
    bytes_ += text;
    ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  size_t size() const { return ends_.size(); }

 private:
  std::string bytes_;
  std::vector<uint32_t> ends_;
};

std::vector<AddedTokenMatcher::Pattern> AddedPatterns(const TokenizerFile& file, bool normalized) {
  std::vector<AddedTokenMatcher::Pattern> patterns;
  for (const AddedTokenEntry& token : file.added_tokens) {
    if (token.normalized == normalized) patterns.push_back({token.content, token.id});
  }
  return patterns;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(const TokenizerFile& file, const std::array<int32_t, 256>& byte_ids)
      : pre_tokenizer(file.pre_tokenizer),
        bpe(file.merges_by_rank, byte_ids),
        single_token_pieces(file.token_strings.size()),
        exact_added(AddedPatterns(file, /*normalized=*/false)),
        normalized_added(AddedPatterns(file, /*normalized=*/true)),
        is_added(file.token_strings.size()) {}

  void FillTokens(const TokenizerFile& file);
  void FindSingleTokenPieces();

  // Precondition of the three: valid UTF-8.
  void EncodePieces(std::string_view text, std::vector<int32_t>* ids) const;
  void EncodeAroundNormalized(std::string_view text, std::vector<int32_t>* ids) const;
  void EncodeAroundAdded(std::string_view text, std::vector<int32_t>* ids) const;

  bool HasIndex(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < strings.size(); }

  PreTokenizerKind pre_tokenizer;
  BpeModel bpe;
  SingleTokenPieces single_token_pieces;  // views into `bytes`
  AddedTokenMatcher exact_added;
  AddedTokenMatcher normalized_added;
  StringTable strings;
  StringTable bytes;
  std::vector<bool> is_added;
  std::unordered_map<std::string, int32_t> added_ids;
};

void Tokenizer::Impl::FillTokens(const TokenizerFile& file) {
  for (const AddedTokenEntry& token : file.added_tokens) {
    is_added[static_cast<size_t>(token.id)] = true;
    added_ids.emplace(token.content, token.id);
  }
  std::string spelled;
  for (size_t id = 0; id < file.token_strings.size(); ++id) {
    const std::string& token = file.token_strings[id];
    strings.Append(token);
    spelled.clear();
    const bool byte_level = !is_added[id] && AppendByteLevelBytes(token, &spelled);
    bytes.Append(byte_level ? spelled : token);
  }
}

void Tokenizer::Impl::FindSingleTokenPieces() {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < bytes.size(); ++id) {
    const std::string_view piece = bytes[id];
    if (is_added[id] || piece.empty() || piece.size() > SingleTokenPieces::kMaxPieceBytes) continue;
    ids.clear();
    bpe.Encode(piece, &ids);
    if (ids.size() == 1 && ids[0] == static_cast<int32_t>(id)) {
      single_token_pieces.Add(piece, ids[0]);
    }
  }
}

void Tokenizer::Impl::EncodePieces(std::string_view text, std::vector<int32_t>* ids) const {
  PieceScanner scanner(pre_tokenizer, text);
  for (std::string_view piece = scanner.Next(); !piece.empty(); piece = scanner.Next()) {
    if (piece.size() <= SingleTokenPieces::kMaxPieceBytes) {
      const int32_t id = single_token_pieces.Find(piece);
      if (id >= 0) {
        ids->push_back(id);
        continue;
      }
    }
    bpe.Encode(piece, ids);
  }
}

void Tokenizer::Impl::EncodeAroundNormalized(std::string_view text,
                                             std::vector<int32_t>* ids) const {
  size_t from = 0;
  while (from < text.size()) {
    const AddedTokenMatcher::Match match = normalized_added.FindNext(text, from);
    EncodePieces(text.substr(from, match.begin - from), ids);
    if (match.begin != match.end) ids->push_back(match.id);
    from = match.end;
  }
}

// Tokens matched against raw text win over those matched against normalised text, wherever they
// stand; no normaliser is supported, so both see the same text.
void Tokenizer::Impl::EncodeAroundAdded(std::string_view text, std::vector<int32_t>* ids) const {
  size_t from = 0;
  while (from < text.size()) {
    const AddedTokenMatcher::Match match = exact_added.FindNext(text, from);
    EncodeAroundNormalized(text.substr(from, match.begin - from), ids);
    if (match.begin != match.end) ids->push_back(match.id);
    from = match.end;
  }
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& path) {
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(path, error);
  DI_ASSIGN_OR_RETURN(const std::string content,
                      ReadFile(is_directory ? path / "tokenizer.json" : path));
  return FromJson(content);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json) {
  DI_ASSIGN_OR_RETURN(const TokenizerFile file, ParseTokenizerFile(json));
  std::array<int32_t, 256> byte_ids;
  byte_ids.fill(-1);
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < file.token_strings.size(); ++id) {
    ids.emplace(file.token_strings[id], static_cast<int32_t>(id));
  }
  for (unsigned byte = 0; byte < byte_ids.size(); ++byte) {
    std::string spelled;
    AppendUtf8(ByteLevelCodePoint(static_cast<unsigned char>(byte)), &spelled);
    const auto found = ids.find(spelled);
    if (found == ids.end()) {
      return DataCorruption(
          fmt::format("tokenizer.json: the vocabulary lacks a token for byte 0x{:02X}", byte));
    }
    byte_ids[byte] = found->second;
  }
  CodePointTable::Get();  // built now rather than during the first request
  auto impl = std::make_unique<Impl>(file, byte_ids);
  impl->FillTokens(file);
  impl->FindSingleTokenPieces();
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

void Tokenizer::EncodeText(std::string_view utf8, std::vector<int32_t>* ids) const {
  if (IsValidUtf8(utf8)) {
    impl_->EncodePieces(utf8, ids);
  } else {
    impl_->EncodePieces(ReplaceInvalidUtf8(utf8), ids);
  }
}

void Tokenizer::EncodeWithSpecials(std::string_view utf8, std::vector<int32_t>* ids) const {
  if (IsValidUtf8(utf8)) {
    impl_->EncodeAroundAdded(utf8, ids);
  } else {
    impl_->EncodeAroundAdded(ReplaceInvalidUtf8(utf8), ids);
  }
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (!impl_->HasIndex(id)) return {};
  return impl_->bytes[static_cast<size_t>(id)];
}

std::string_view Tokenizer::TokenString(int32_t id) const {
  if (!impl_->HasIndex(id)) return {};
  return impl_->strings[static_cast<size_t>(id)];
}

bool Tokenizer::IsValidId(int32_t id) const { return !TokenString(id).empty(); }

bool Tokenizer::IsAdded(int32_t id) const {
  return impl_->HasIndex(id) && impl_->is_added[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::FindAdded(std::string_view content) const {
  const auto found = impl_->added_ids.find(std::string(content));
  if (found == impl_->added_ids.end()) return std::nullopt;
  return found->second;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->strings.size()); }

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_added) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_added && IsAdded(id)) continue;
    bytes += TokenBytes(id);
  }
  return IsValidUtf8(bytes) ? bytes : ReplaceInvalidUtf8(bytes);
}

}  // namespace deepinfer
