#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <span>
#include <unordered_set>

#include "text/json_fields.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using json_fields::GetArray;
using json_fields::GetBool;
using json_fields::GetField;
using json_fields::GetObject;
using json_fields::GetString;
using json_fields::Quote;

Result<int32_t> ToTokenId(const json::value& value, std::string_view where) {
  const int64_t* id = value.if_int64();
  if (id == nullptr || *id < 0 || *id >= kMaxVocabSize) {
    return DataCorruption(fmt::format("the id of {} is {}, not an integer in 0..{}", where,
                                      Quote(value), kMaxVocabSize - 1));
  }
  return static_cast<int32_t>(*id);
}

Status RequireBool(const json::object& object, std::string_view key, bool absent, bool wanted,
                   std::string_view where) {
  DI_ASSIGN_OR_RETURN(const bool value, GetBool(object, key, absent, where));
  if (value == wanted) return OkStatus();
  return Unsupported(fmt::format("{} sets \"{}\" to {}", where, key, value));
}

// An optional part that must be null, absent or the kind that does nothing to the ids.
Status CheckKind(const json::object& root, std::string_view key, std::string_view accepted) {
  const json::value* value = root.if_contains(key);
  if (value == nullptr || value->is_null()) return OkStatus();
  DI_ASSIGN_OR_RETURN(const json::object* part, GetObject(root, key, "the tokenizer"));
  DI_ASSIGN_OR_RETURN(const std::string_view type, GetString(*part, "type", key));
  if (type == accepted) return OkStatus();
  return Unsupported(fmt::format("unknown {} kind {}", key, Quote(type)));
}

Status CheckNormalizer(const json::object& root) {
  DI_RETURN_IF_ERROR(CheckKind(root, "normalizer", "Sequence"));
  const json::value* value = root.if_contains("normalizer");
  if (value == nullptr || value->is_null()) return OkStatus();
  DI_ASSIGN_OR_RETURN(const json::array* steps,
                      GetArray(value->get_object(), "normalizers", "normalizer"));
  if (steps->empty()) return OkStatus();
  const json::object* step = steps->front().if_object();
  if (step == nullptr) return DataCorruption("a step of the normalizer is not an object");
  DI_ASSIGN_OR_RETURN(const std::string_view type, GetString(*step, "type", "normalizer"));
  return Unsupported(fmt::format("unknown normalizer kind {}", Quote(type)));
}

Status CheckSplit(const json::object& step, std::string_view wanted_pattern) {
  constexpr std::string_view kWhere = "a Split pre-tokenizer";
  DI_ASSIGN_OR_RETURN(const json::object* pattern, GetObject(step, "pattern", kWhere));
  const json::value* regex = pattern->if_contains("Regex");
  if (regex == nullptr || !regex->is_string()) {
    return Unsupported("a Split pre-tokenizer whose pattern is not a regular expression");
  }
  if (std::string_view(regex->get_string()) != wanted_pattern) {
    return Unsupported(fmt::format("unknown pre-tokenizer pattern {}", Quote(*regex)));
  }
  DI_ASSIGN_OR_RETURN(const std::string_view behavior, GetString(step, "behavior", kWhere));
  if (behavior != "Isolated") {
    return Unsupported(fmt::format("Split behavior {}", Quote(behavior)));
  }
  return RequireBool(step, "invert", false, false, kWhere);
}

Status CheckByteLevel(const json::object& step, bool use_regex) {
  constexpr std::string_view kWhere = "the ByteLevel pre-tokenizer";
  // Both default to true in files that leave them out.
  DI_RETURN_IF_ERROR(RequireBool(step, "add_prefix_space", true, false, kWhere));
  return RequireBool(step, "use_regex", true, use_regex, kWhere);
}

// {"type": "Sequence", "pretokenizers": [Split, Split, Split, ByteLevel]} with the three patterns
// of PreTokenizerKind::kThreePass.
Status CheckThreePass(const json::object& sequence) {
  constexpr std::string_view kPatterns[] = {kNumberPattern, kCjkPattern, kMainPattern};
  DI_ASSIGN_OR_RETURN(const json::array* steps,
                      GetArray(sequence, "pretokenizers", "pre_tokenizer"));
  size_t num_splits = 0;
  bool byte_level = false;
  for (const json::value& value : *steps) {
    const json::object* step = value.if_object();
    if (step == nullptr) return DataCorruption("a step of the pre_tokenizer is not an object");
    DI_ASSIGN_OR_RETURN(const std::string_view type, GetString(*step, "type", "pre_tokenizer"));
    if (type == "Split" && !byte_level && num_splits < std::size(kPatterns)) {
      DI_RETURN_IF_ERROR(CheckSplit(*step, kPatterns[num_splits++]));
    } else if (type == "ByteLevel" && !byte_level) {
      DI_RETURN_IF_ERROR(CheckByteLevel(*step, /*use_regex=*/false));
      byte_level = true;
    } else {
      return Unsupported(fmt::format("unknown pre_tokenizer step {}", Quote(type)));
    }
  }
  if (num_splits == std::size(kPatterns) && byte_level) return OkStatus();
  return Unsupported("a pre_tokenizer sequence other than three Split steps and ByteLevel");
}

Result<PreTokenizerKind> ReadPreTokenizer(const json::object& root) {
  DI_ASSIGN_OR_RETURN(const json::object* part, GetObject(root, "pre_tokenizer", "the tokenizer"));
  DI_ASSIGN_OR_RETURN(const std::string_view type, GetString(*part, "type", "pre_tokenizer"));
  if (type == "ByteLevel") {
    DI_RETURN_IF_ERROR(CheckByteLevel(*part, /*use_regex=*/true));
    return PreTokenizerKind::kByteLevel;
  }
  if (type == "Sequence") {
    DI_RETURN_IF_ERROR(CheckThreePass(*part));
    return PreTokenizerKind::kThreePass;
  }
  return Unsupported(fmt::format("unknown pre_tokenizer kind {}", Quote(type)));
}

Status CheckModelKind(const json::object& model) {
  DI_ASSIGN_OR_RETURN(const std::string_view type, GetString(model, "type", "model"));
  if (type != "BPE") return Unsupported(fmt::format("unknown model kind {}", Quote(type)));
  for (const std::string_view key : {"dropout", "unk_token"}) {
    const json::value* value = model.if_contains(key);
    if (value != nullptr && !value->is_null()) {
      return Unsupported(fmt::format("model sets \"{}\" to {}", key, Quote(*value)));
    }
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json::value* value = model.if_contains(key);
    if (value == nullptr || value->is_null()) continue;
    if (!value->is_string() || !value->get_string().empty()) {
      return Unsupported(fmt::format("model sets \"{}\" to {}", key, Quote(*value)));
    }
  }
  DI_RETURN_IF_ERROR(RequireBool(model, "byte_fallback", false, false, "model"));
  return RequireBool(model, "ignore_merges", false, false, "model");
}

// Puts `content` at `id`, growing the table; an id that is taken must hold the same content.
Status PlaceToken(int32_t id, std::string_view content, std::vector<std::string>* token_strings) {
  const auto index = static_cast<size_t>(id);
  if (index >= token_strings->size()) token_strings->resize(index + 1);
  std::string& slot = (*token_strings)[index];
  if (slot.empty()) {
    slot = content;
  } else if (slot != content) {
    return DataCorruption(
        fmt::format("id {} belongs to both {} and {}", id, Quote(slot), Quote(content)));
  }
  return OkStatus();
}

Status ReadVocabulary(const json::object& vocab, std::vector<std::string>* token_strings) {
  for (const json::key_value_pair& entry : vocab) {
    const std::string_view content = entry.key();
    if (content.empty()) return DataCorruption("model.vocab holds an empty token");
    DI_ASSIGN_OR_RETURN(const int32_t id, ToTokenId(entry.value(), Quote(content)));
    DI_RETURN_IF_ERROR(PlaceToken(id, content, token_strings));
  }
  return OkStatus();
}

// "left right", or ["left", "right"] where tokens may hold spaces.
Result<std::pair<std::string_view, std::string_view>> SplitMerge(const json::value& merge) {
  if (const json::string* text = merge.if_string()) {
    const std::string_view both = *text;
    const size_t space = both.find(' ');
    if (space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos) {
      return std::pair(both.substr(0, space), both.substr(space + 1));
    }
  } else if (const json::array* pair = merge.if_array()) {
    if (pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
      return std::pair(std::string_view((*pair)[0].get_string()),
                       std::string_view((*pair)[1].get_string()));
    }
  }
  return DataCorruption(fmt::format("{} is not a pair of tokens", Quote(merge)));
}

// Precondition: the ids in `vocab` passed ReadVocabulary.
Result<BpeMerge> ReadMerge(const json::value& value, const json::object& vocab,
                           std::string* scratch) {
  DI_ASSIGN_OR_RETURN(const auto pair, SplitMerge(value));
  const auto find = [&](std::string_view token) -> Result<int32_t> {
    const json::value* id = vocab.if_contains(token);
    if (id == nullptr) {
      return DataCorruption(fmt::format("{} is not in model.vocab", Quote(token)));
    }
    return static_cast<int32_t>(id->get_int64());
  };
  BpeMerge merge;
  DI_ASSIGN_OR_RETURN(merge.left, find(pair.first));
  DI_ASSIGN_OR_RETURN(merge.right, find(pair.second));
  scratch->assign(pair.first).append(pair.second);
  DI_ASSIGN_OR_RETURN(merge.result, find(*scratch));
  return merge;
}

Result<std::vector<BpeMerge>> ReadMerges(const json::array& array, const json::object& vocab) {
  std::vector<BpeMerge> merges;
  merges.reserve(array.size());
  std::unordered_set<uint64_t> seen;
  seen.reserve(array.size());
  std::string scratch;
  for (const json::value& value : array) {
    Result<BpeMerge> merge = ReadMerge(value, vocab, &scratch);
    if (!merge.ok()) {
      return merge.status().Annotate(fmt::format("model.merges[{}]", merges.size()));
    }
    const uint64_t key = static_cast<uint64_t>(merge->left) << 32 |
                         static_cast<uint64_t>(static_cast<uint32_t>(merge->right));
    if (!seen.insert(key).second) {
      return DataCorruption(
          fmt::format("model.merges[{}] repeats {}", merges.size(), Quote(value)));
    }
    merges.push_back(*merge);
  }
  return merges;
}

Result<AddedTokenEntry> ReadAddedToken(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) return DataCorruption("an added token is not an object");
  DI_ASSIGN_OR_RETURN(const std::string_view content,
                      GetString(*object, "content", "an added token"));
  if (content.empty() || content.size() > kMaxAddedTokenBytes) {
    return DataCorruption(fmt::format("an added token of {} bytes, not 1 to {}", content.size(),
                                      kMaxAddedTokenBytes));
  }
  const std::string where = "added token " + Quote(content);
  DI_ASSIGN_OR_RETURN(const json::value* id_value, GetField(*object, "id", where));
  DI_ASSIGN_OR_RETURN(const int32_t id, ToTokenId(*id_value, where));
  for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
    DI_RETURN_IF_ERROR(RequireBool(*object, flag, false, false, where));
  }
  DI_ASSIGN_OR_RETURN(const bool normalized, GetBool(*object, "normalized", false, where));
  return AddedTokenEntry{id, std::string(content), normalized};
}

Status ReadAddedTokens(const json::object& root, const json::object& vocab, TokenizerFile* file) {
  const json::value* list = root.if_contains("added_tokens");
  if (list == nullptr || list->is_null()) return OkStatus();
  DI_ASSIGN_OR_RETURN(const json::array* tokens, GetArray(root, "added_tokens", "the tokenizer"));
  std::unordered_set<std::string> seen;
  for (const json::value& value : *tokens) {
    DI_ASSIGN_OR_RETURN(AddedTokenEntry token, ReadAddedToken(value));
    if (!seen.insert(token.content).second) {
      return DataCorruption(fmt::format("added token {} appears twice", Quote(token.content)));
    }
    const json::value* in_vocab = vocab.if_contains(token.content);
    if (in_vocab != nullptr && in_vocab->get_int64() != token.id) {
      return DataCorruption(fmt::format("added token {} has id {}, but {} in model.vocab",
                                        Quote(token.content), token.id, in_vocab->get_int64()));
    }
    DI_RETURN_IF_ERROR(PlaceToken(token.id, token.content, &file->token_strings));
    file->added_tokens.push_back(std::move(token));
  }
  return OkStatus();
}

Result<TokenizerFile> ReadTokenizer(const json::value& document) {
  const json::object* root = document.if_object();
  if (root == nullptr) return DataCorruption("the document is not a JSON object");
  // The post-processor only moves offsets, and truncation and padding are settings of a training
  // pipeline: none of them takes part in serving.
  DI_RETURN_IF_ERROR(CheckNormalizer(*root));
  DI_RETURN_IF_ERROR(CheckKind(*root, "decoder", "ByteLevel"));
  DI_RETURN_IF_ERROR(CheckKind(*root, "post_processor", "ByteLevel"));
  TokenizerFile file;
  DI_ASSIGN_OR_RETURN(file.pre_tokenizer, ReadPreTokenizer(*root));
  DI_ASSIGN_OR_RETURN(const json::object* model, GetObject(*root, "model", "the tokenizer"));
  DI_RETURN_IF_ERROR(CheckModelKind(*model));
  DI_ASSIGN_OR_RETURN(const json::object* vocab, GetObject(*model, "vocab", "model"));
  DI_ASSIGN_OR_RETURN(const json::array* merges, GetArray(*model, "merges", "model"));
  DI_RETURN_IF_ERROR(ReadVocabulary(*vocab, &file.token_strings));
  DI_ASSIGN_OR_RETURN(file.merges_by_rank, ReadMerges(*merges, *vocab));
  DI_RETURN_IF_ERROR(ReadAddedTokens(*root, *vocab, &file));
  return file;
}

}  // namespace

Result<TokenizerFile> ParseTokenizerFile(std::string_view text) {
  if (text.size() > kMaxTokenizerFileBytes) {
    return DataCorruption(fmt::format("tokenizer.json has {} bytes, more than the limit of {}",
                                      text.size(), kMaxTokenizerFileBytes));
  }
  try {
    json::monotonic_resource arena(text.size());
    json::error_code error;
    const json::value document = json::parse(text, error, &arena);
    if (error) return DataCorruption("tokenizer.json is not valid JSON: " + error.message());
    Result<TokenizerFile> file = ReadTokenizer(document);
    if (!file.ok()) return file.status().Annotate("tokenizer.json");
    return file;
  } catch (const std::exception& e) {
    return DataCorruption(fmt::format("tokenizer.json cannot be read: {}", e.what()));
  }
}

}  // namespace deepinfer
